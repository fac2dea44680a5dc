"""Who is contrasted with whom: anchors, their positives, and the negatives, written once.

A batch is a list of sides. A side is a run of anchors with

    blocks       the columns that hold its negatives, and which pairs do not count
    positives    a partner for each anchor, or several: columns of its class, or a list

Losses see one number per anchor: similarities of positives, logsumexps over negatives, margins.
`build` makes the pairs of a batch from the arguments of a loss; the diagnosis reads the same ones.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, Generic, NamedTuple, TypeVar, overload

import torch
from torch import Tensor

from macl.losses.objectives import FUNCTIONS, objective
from macl.losses.ops import operator
from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.maps import Logits, joined, logit, part
from macl.losses.ops.tiled import Direction, Operands, Plan, Values, wide
from macl.losses.ring import Ring

T = TypeVar("T")


class lazy(Generic[T]):
    """An attribute that is computed when first read.

    `functools.cached_property` without its lock, which torch.compile cannot trace.
    """

    def __init__(self, compute: Callable[[Any], T]) -> None:
        self._compute, self._name = compute, compute.__name__
        self.__doc__ = compute.__doc__

    @overload
    def __get__(self, instance: None, owner: type) -> lazy[T]: ...
    @overload
    def __get__(self, instance: object, owner: type) -> T: ...
    def __get__(self, instance: object | None, owner: type) -> lazy[T] | T:
        if instance is None:
            return self
        value = self._compute(instance)
        instance.__dict__[self._name] = value  # read first from now on
        return value


class Block(NamedTuple):
    """Columns against the rows of a side, and the pairs that do not count."""

    columns: Tensor
    exclude: Exclusions
    ring: Ring | None = None
    """Through which the columns of all ranks pass; None: they are all here."""

    @property
    def total(self) -> int:
        """Number of columns of all ranks."""
        return len(self.columns) if self.ring is None else sum(self.ring.sizes)


class Side(NamedTuple):
    """A run of anchors, (n, D) unit rows, with their negatives and positives."""

    rows: Tensor
    blocks: tuple[Block, ...]
    partner: Tensor | None = None
    """(n, D) the positive of each anchor; None: the rows are two views, one below the other, and
    each is the other's positive; or `positives` has several."""
    diagonals: tuple[int, ...] = ()
    """Diagonals of the first block on which the partners lie; empty where they do not."""
    positives: Block | None = None
    """Columns of which those that count are positives: of the anchor's class, or listed."""
    self_at: int | None = None
    """With classes: row i is column i + self_at of `positives`; None if it is not among them."""

    @property
    def is_mirror(self) -> bool:
        """Whether the rows are contrasted with themselves, on this rank."""
        return self.blocks[0].columns is self.rows and self.blocks[0].ring is None


class Pairs:
    """The pairs of a batch.

    Args:
        sides: runs of anchors, in order.
        joint: two sides are the two directions of one matrix.
        kernel: implementation of the operator, see `ops.operator.selected`.
        sure: with several positives, every anchor is known to have one.
    """

    def __init__(
        self, sides: list[Side], joint: bool = False, kernel: str | None = None, sure: bool = True
    ) -> None:
        self.sides, self.joint, self.kernel, self.all_have_positives = sides, joint, kernel, sure
        self.several = sides[0].positives is not None
        """Whether an anchor may have any number of positives."""

    @lazy
    def complete(self) -> bool:
        """Whether every anchor is known to have a negative."""
        firsts = [side.blocks[0] for side in self.sides]
        return not any(block.exclude.may_empty(block.total) for block in firsts)

    @lazy
    def one_matrix(self) -> bool:
        """Whether all pairs are in one matrix on this rank, positives on its diagonals."""
        side, *others = self.sides
        return bool(side.diagonals) and len(side.blocks) == 1 and (self.joint or not others)

    @lazy
    def like(self) -> Tensor:
        """A tensor of the type and on the device of the results."""
        rows = self.sides[0].rows
        return rows if rows.dtype in (torch.float32, torch.float64) else wide(rows[:0])

    @lazy
    def anchors(self) -> int:
        """Number of anchors."""
        return sum(side.rows.shape[0] for side in self.sides)

    @lazy
    def rows(self) -> Tensor:
        """(n, D) the anchors' unit rows."""
        return joined([side.rows for side in self.sides])

    @lazy
    def positive(self) -> Tensor:
        """(n,) similarity of each anchor to its positive, the mean over several; detached."""
        with torch.no_grad():
            return self.positive_similarity()

    def positive_similarity(self) -> Tensor:
        """(n,) the same with gradient."""
        if self.several:
            zero = self.like.new_zeros(())
            return self.positive_sum("identity", zero, zero + 1) / self._divisor
        one = self.sides[0]
        if one.partner is None:
            z1, z2 = wide(one.rows).view(2, one.rows.shape[0] // 2, -1).unbind(0)
            return (z1 * z2).sum(1).repeat(2)
        parts = [(wide(one.rows) * wide(one.partner)).sum(1)]
        for side in self.sides[1:]:
            if side.rows is one.partner:  # the other direction of the same pairs
                parts.append(parts[0])
            elif side.partner is not None:
                parts.append((wide(side.rows) * wide(side.partner)).sum(1))
        return joined(parts)

    @lazy
    def count(self) -> Tensor:
        """(n,) number of negatives of each anchor."""
        with torch.no_grad():
            return joined([self._count_of(side) for side in self.sides])

    def _count_of(self, side: Side) -> Tensor:
        total, zero = self.like.new_zeros(side.rows.shape[0]), self.like.new_zeros(())
        for block in side.blocks:
            if block.exclude.by_position:
                total = total + float(block.total)
                for offset in block.exclude.diagonals:  # a row is not on all of them
                    total[max(0, -offset) : max(0, len(block.columns) - offset)] -= 1
            else:
                total = total + self._pair_sum(side, block, zero, zero, "one")
        return total

    def log_count(self) -> Tensor:
        """(n,) log K; 0 for anchors without negatives."""
        return self.count.clamp(min=1).log()

    def evaluate(self, logits: Logits, statistics: bool = False) -> Values:
        """(n,) logsumexp of the negatives, logit of the positive, and moments where asked for.

        `positive` is None where anchors have several.
        """
        per_anchor = isinstance(logits, Tensor) and logits.ndim > 0
        if isinstance(logits, Tensor) and logits.shape not in ((), (self.anchors,)):
            raise ValueError(
                f"a temperature gives one number, or one per anchor in the shape "
                f"({self.anchors},), got {tuple(logits.shape)}."
            )
        parts = []
        for side, own in self._each(logits):
            first, *rest = side.blocks
            direction = self._direction(side, per_anchor)
            values = self._block(side, first, own, statistics, direction)
            for block in rest:
                values = values.merged(self._block(side, block, own, statistics))
            parts.append(values)
            if direction == "both":
                break
        values = parts[0]
        if len(parts) > 1:
            columns = [list(column) for column in zip(*parts, strict=True)]
            values = Values(*(None if None in column else torch.cat(column) for column in columns))  # type: ignore[arg-type]
        if not self.several:
            values = values._replace(positive=logit(self.positive_similarity(), logits))
        return values

    def _direction(self, side: Side, per_anchor: bool) -> Direction:
        """How the first block of a side is passed over, with one τ or one per anchor."""
        if per_anchor or not side.blocks[0].exclude.symmetric:
            return "rows"
        if self.joint:
            return "both"
        return "mirror" if side.is_mirror else "rows"

    def _each(self, *numbers: Logits) -> Iterator[tuple[Any, ...]]:
        """Every side, with its part of each of `numbers`: one for all, or one per anchor."""
        start = 0
        for side in self.sides:
            stop = start + side.rows.shape[0]
            yield side, *(part(x, start, stop) for x in numbers)
            start = stop

    def _block(
        self,
        side: Side,
        block: Block,
        logits: Logits,
        statistics: bool = False,
        direction: Direction = "rows",
    ) -> Values:
        plan = Plan(block.exclude, direction, None, statistics, "", self.kernel, block.ring)
        columns = None if direction == "mirror" else block.columns
        return operator.logsumexp(side.rows, columns, logits, plan)

    def mean_objective(self, logits: Logits, function: str) -> tuple[Tensor, Tensor] | None:
        """Scalar mean f(x) and (n,) x, detached, in one step; None where there is no such step.

        For pairs in `one_matrix`.
        """
        side = self.sides[0]
        block, direction = side.blocks[0], self._direction(side, per_anchor=False)
        tau, map = (logits, None) if isinstance(logits, Tensor) else (None, logits)
        plan = Plan(block.exclude, direction, map, kernel=self.kernel)
        given = Operands(side.rows, block.columns, tau)
        return operator.mean_objective(given, plan, function, side.diagonals)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(n,) log Σ_j exp(l_j); −inf where an anchor has no negatives."""
        return self.evaluate(logits).lse

    def margin(self, logits: Logits) -> Tensor:
        """(n,) x = logsumexp_j(l_j) − l⁺; l⁺ is the mean over several positives."""
        values = self.evaluate(logits)
        if values.positive is None:
            return values.lse - self.mean_positive_logit(logits)
        return values.margin

    def pair_sum(self, scale: Tensor, offset: Tensor, function: str = "softplus") -> Tensor:
        """(n,) Σ_j f(offset + scale·s_ij) over the negatives of each anchor."""
        sums = []
        for side in self.sides:
            parts = [self._pair_sum(side, block, scale, offset, function) for block in side.blocks]
            sums.append(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])
        return joined(sums)

    def _pair_sum(
        self, side: Side, block: Block, scale: Tensor, offset: Tensor, function: str
    ) -> Tensor:
        plan = Plan(block.exclude, function=function, kernel=self.kernel, ring=block.ring)
        return operator.pair_sum(side.rows, block.columns, scale, offset, plan)

    # Several positives per anchor.

    @lazy
    def positive_count(self) -> Tensor:
        """(n,) number of positives of each anchor, weights of a list counted as they are."""
        with torch.no_grad():
            zero = self.like.new_zeros(())
            return self.positive_sum("one", zero, zero)

    @property
    def _divisor(self) -> Tensor:
        return self.positive_count.clamp(min=torch.finfo(self.positive_count.dtype).tiny)

    def mean_positive_logit(self, logits: Logits) -> Tensor:
        """(n,) mean over positives of s/τ."""
        return self.positive_similarity() / _temperature(logits)

    def mean_over_positives(self, negatives: Tensor, logits: Logits, function: str) -> Tensor:
        """(n,) mean over positives p of f(x_ip), x_ip = `negatives`_i − s_ip/τ.

        `negatives` are the (n,) logsumexps, `function` names f, see `objectives`.
        """
        sums = self.positive_sum(function, negatives, -1 / _temperature(logits))
        return sums / self._divisor

    def positive_sum(self, function: str, offset: Tensor, scale: Tensor) -> Tensor:
        """(n,) Σ_p w_p·f(offset_i + scale_i·s_ip) over the positives of each anchor."""
        sums = []
        for side, own_scale, own_offset in self._each(scale, offset):
            add = self._pair_sum if side.positives.exclude.listed is None else _listed_sum
            sums.append(add(side, side.positives, own_scale, own_offset, function))
        return joined(sums)

    def logsumexp_positives(self, logits: Logits) -> Tensor:
        """(n,) over the positives."""
        parts = []
        for side, own in self._each(logits):
            if side.positives.exclude.listed is not None:
                raise ValueError("this loss takes labels, not a list of positive pairs.")
            parts.append(self._block(side, side.positives, own).lse)
        return joined(parts)

    def logsumexp_all(self, logits: Logits) -> Tensor:
        """(n,) over positives and negatives."""
        if not all(_is_plain(side) for side in self.sides):
            positives = Values(self.logsumexp_positives(logits))
            return Values(self.logsumexp(logits)).merged(positives).lse
        sides = []
        for side in self.sides:
            (block,) = side.blocks
            diagonals = () if side.self_at is None else (side.self_at,)
            sides.append(side._replace(blocks=(block._replace(exclude=Exclusions(diagonals)),)))
        return Pairs(sides, self.joint, self.kernel).logsumexp(logits)


class Explicit(Pairs):
    """Algorithm 1: similarities given as `pos` (N,) and `neg` (N, K), in plain torch.

    −inf in `neg` marks what is not a negative.
    """

    def __init__(self, pos: Tensor, neg: Tensor, masked: bool = False) -> None:
        self.several = self.joint = self.one_matrix = False
        self.complete = not masked
        self.positive, self.like, self.anchors = pos.detach(), pos, len(pos)
        self._masked = neg.detach().isneginf() if masked else None
        # A map is not defined at −inf.
        self.negatives = neg if self._masked is None else neg.masked_fill(self._masked, 0.0)

    def positive_similarity(self) -> Tensor:
        """(N,)."""
        return self.like

    def _filled(self, values: Tensor, fill: float) -> Tensor:
        return values if self._masked is None else values.masked_fill(self._masked, fill)

    @lazy
    def count(self) -> Tensor:
        """(N,)."""
        return self._filled(torch.ones_like(self.negatives, requires_grad=False), 0.0).sum(1)

    def evaluate(self, logits: Logits, statistics: bool = False) -> Values:
        """(N,) each."""
        negatives = self._filled(logit(self.negatives, logits), -math.inf)
        lse, mean, square = torch.logsumexp(negatives, 1), None, None
        if statistics:
            with torch.no_grad():
                weights = torch.softmax(negatives, 1)
                finite = negatives.nan_to_num(math.nan, math.inf, 0.0)
                mean, square = (weights * finite).sum(1), (weights * finite.square()).sum(1)
        return Values(lse, mean, square, logit(self.like, logits))

    def pair_sum(self, scale: Tensor, offset: Tensor, function: str = "softplus") -> Tensor:
        """(N,)."""
        values = FUNCTIONS[function].value(scale * self.negatives + offset)
        return self._filled(values, 0.0).sum(1)


def _listed_sum(side: Side, block: Block, scale: Tensor, offset: Tensor, function: str) -> Tensor:
    """(n,) weighted sum of f over listed pairs, one inner product each."""
    rows, listed = side.rows, block.exclude.listed
    assert listed is not None
    s = (wide(rows[listed.rows]) * wide(block.columns[listed.columns])).sum(1)
    scale, offset = (x[listed.rows] if x.ndim else x for x in (scale, offset))
    values = objective(function, offset + scale * s) * listed.weights
    return values.new_zeros(rows.shape[0]).index_put((listed.rows,), values, accumulate=True)


def _is_plain(side: Side) -> bool:
    """Whether the positives are among the columns of the only block, and classes alone decide."""
    exclude = side.blocks[0].exclude
    return (
        len(side.blocks) == 1
        and side.positives is not None
        and side.positives.columns is side.blocks[0].columns
        and all(part is None for part in (exclude.groups, exclude.guide, exclude.listed))
    )


def _temperature(logits: Logits) -> Tensor:
    if isinstance(logits, Tensor):
        return logits
    raise ValueError(
        "several positives per anchor need a temperature; use a number, or leave positives out."
    )
