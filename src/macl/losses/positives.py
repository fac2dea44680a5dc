"""Any number of positives per anchor: rows of one class are positives of each other."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from macl import distributed
from macl.losses import ring
from macl.losses.checks import check_enough, check_groups
from macl.losses.groups import Members, count_same, gathered_groups, ring_sums
from macl.losses.inputs import Inputs
from macl.losses.kernels import operator
from macl.losses.kernels.interface import Exclusions
from macl.losses.lazy import lazy
from macl.losses.logits import Logits, joined
from macl.losses.pairs import Pairs
from macl.losses.ring import Ring
from macl.losses.unit import unit_rows, unit_views


class Side(NamedTuple):
    """Anchors against the rows among which their positives and negatives are."""

    rows: Tensor
    columns: Tensor
    classes: Tensor
    column_classes: Tensor
    self_at: int | None
    """Row i is column i + self_at; None where the anchors are not among the columns."""
    ring: Ring | None = None
    """Through which the columns of all ranks pass; None: they are all here."""

    @property
    def total(self) -> int:
        """Number of columns of all ranks."""
        return len(self.columns) if self.ring is None else sum(self.ring.sizes)

    def all(self) -> Exclusions:
        """Everything but the anchor itself."""
        return Exclusions(() if self.self_at is None else (self.self_at,))

    def negatives(self) -> Exclusions:
        """Columns of another class."""
        return Exclusions((), self.classes, self.column_classes)

    def positives(self) -> Exclusions:
        """Columns of the anchor's class, but not itself."""
        return Exclusions(self.all().diagonals, self.classes, self.column_classes, True)


class SeveralPositives(Pairs):
    """Anchors whose positives are the rows of their class, and whose negatives all others.

    `positive` is the mean similarity to the positives. An anchor without positives has 0 there.
    """

    def __init__(self, sides: list[Side], views: int) -> None:
        self._sides = sides
        self.all_have_positives = views > 1
        """An anchor's other view is one; with a single view a class may have one row only."""

    @classmethod
    def of(
        cls, inputs: Inputs, negatives: str, symmetric: bool, gather: bool | str
    ) -> SeveralPositives:
        """From the arguments of a loss; with one view (`z2` None) it is contrasted with itself."""
        z1, classes = inputs.z1, inputs.positives
        assert classes is not None
        for name in ("bank", "groups", "hard"):
            if getattr(inputs, name) is not None:
                raise ValueError(
                    f"{name} cannot be joined with classes of positives: rows of one class are "
                    f"positives, all others of the batch negatives. Leave {name} out."
                )
        check_groups("positives (or labels)", classes, len(z1))
        check_enough(z1, bool(gather))
        sizes = distributed.batch_sizes(len(z1)) if gather else [len(z1)]
        total, start = sum(sizes), sum(sizes[: distributed.rank()]) if gather else 0
        blocks = sizes if gather == "ring" else None
        if blocks is not None:
            gather, sizes = False, [len(z1)]  # a rank's columns are its own, the others' pass by
        everyone = gathered_groups(classes, sizes)
        assert everyone is not None
        if inputs.z2 is not None and negatives == "cross":
            one, two = unit_views(z1, inputs.z2)
            all1 = distributed.gather(one, sizes) if gather and symmetric else one
            all2 = distributed.gather(two, sizes) if gather else two
            ring_of = None if blocks is None else Ring(blocks)
            sides = [Side(one, all2, classes, everyone, None, ring_of)]
            if symmetric:
                sides.append(Side(two, all1, classes, everyone, None, ring_of))
            return cls(sides, views=2)
        views = [z1] if inputs.z2 is None else [z1, inputs.z2]
        rows = unit_rows(torch.cat(views), *("z1", "z2")[: len(views)])
        if len(sizes) == 1:
            twice = classes.repeat(len(views))
            ring_of = None if blocks is None else Ring([len(views) * size for size in blocks])
            return cls([Side(rows, rows, twice, twice, 0, ring_of)], len(views))
        parts = rows.split(len(z1))
        columns = torch.cat([distributed.gather(view, sizes) for view in parts])
        repeated = everyone.repeat(len(views))
        return cls(
            [
                Side(view, columns, classes, repeated, start + k * total)
                for k, view in enumerate(parts)
            ],
            len(views),
        )

    @lazy
    def _members(self) -> list[Members]:
        """For each side, which of its columns are of each anchor's class; not with a ring."""
        return [Members(side.classes, side.column_classes) for side in self._sides]

    @lazy
    def _of_class(self) -> list[Tensor]:
        """For each side, the number of columns of each anchor's class."""
        dtype = self._sides[0].rows.dtype
        return [
            (
                self._members[k].count
                if side.ring is None
                else count_same(side.classes, side.column_classes, side.ring)
            ).to(dtype)
            for k, side in enumerate(self._sides)
        ]

    @lazy
    def count(self) -> Tensor:
        """(n,) number of negatives."""
        sides = zip(self._sides, self._of_class, strict=True)
        return joined([side.total - of_class for side, of_class in sides])

    @lazy
    def positive_count(self) -> Tensor:
        """(n,) number of positives: of the anchor's class, but not itself."""
        sides = zip(self._sides, self._of_class, strict=True)
        return joined([n if side.self_at is None else n - 1 for side, n in sides])

    @property
    def _divisor(self) -> Tensor:
        """`positive_count`, 1 for anchors without positives."""
        return self.positive_count if self.all_have_positives else self.positive_count.clamp(min=1)

    @lazy
    def positive(self) -> Tensor:
        """(n,) mean similarity to the positives, from the sums of the rows of each class.

        Σ_p s_ip = r_i·(Σ_{c of the class} c − r_i) costs n·D instead of n·m·D. The gradient of
        r_i·r_i, along r_i, is left out: rows have length 1, and `unit_rows` would remove it.
        """
        sums = []
        for k, side in enumerate(self._sides):
            if side.ring is None:
                totals = self._members[k].sums(side.columns)
            else:
                totals = ring_sums(side.classes, side.columns, side.column_classes, side.ring)
            others = totals if side.self_at is None else totals - side.rows.detach()
            sums.append((side.rows * others).sum(1))
        return joined(sums) / self._divisor

    def mean_positive_logit(self, logits: Logits) -> Tensor:
        """(n,) mean over positives of s/τ."""
        return self.positive / self._scalar(logits)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(n,) over the negatives."""
        return self._logsumexp(logits, [side.negatives() for side in self._sides])

    def logsumexp_positives(self, logits: Logits) -> Tensor:
        """(n,) over the positives."""
        return self._logsumexp(logits, [side.positives() for side in self._sides])

    def logsumexp_all(self, logits: Logits) -> Tensor:
        """(n,) over positives and negatives."""
        return self._logsumexp(logits, [side.all() for side in self._sides])

    def mean_over_positives(self, negatives: Tensor, logits: Logits, function: str) -> Tensor:
        """(n,) mean over positives p of f(x_ip), x_ip = `negatives`_i − s_ip/τ, streamed.

        Args:
            negatives: (n,) `logsumexp(logits)`.
            logits: scalar τ.
            function: the name of f, see `kernels.functions`.
        """
        scale = -1 / self._scalar(logits)
        parts = negatives.split([len(side.rows) for side in self._sides])
        sums = [
            ring.pair_sum(
                side.rows,
                side.columns,
                scale,
                lse,
                side.positives(),
                side.ring,
                function,
                self.kernel,
            )
            for side, lse in zip(self._sides, parts, strict=True)
        ]
        return joined(sums) / self._divisor

    def _logsumexp(self, logits: Logits, exclude: list[Exclusions]) -> Tensor:
        tau = self._scalar(logits)
        return joined(
            [
                operator.logsumexp_mirror(side.rows, tau, left_out, self.kernel)
                if side.columns is side.rows and side.ring is None
                else ring.logsumexp(side.rows, side.columns, tau, left_out, side.ring, self.kernel)
                for side, left_out in zip(self._sides, exclude, strict=True)
            ]
        )

    @staticmethod
    def _scalar(logits: Logits) -> Tensor:
        if isinstance(logits, Tensor) and logits.ndim == 0:
            return logits
        raise ValueError(
            "several positives per anchor need one temperature for all pairs; use a number, or "
            "leave positives out."
        )
