"""Who is contrasted with whom: the forms that a batch of similarities can take.

Each form offers three things and nothing else, which is all that an objective needs:

    positive            (n,) similarity of each anchor to its positive
    logsumexp(logits)   (n,) log Σ_j exp(l_j) over each anchor's negatives
    count               (n,) number of negatives of each anchor

`logits` is a scalar τ, (n,) one τ per anchor, or a map g(s): l = s/τ or l = g(s). Sums over the
negatives other than a logsumexp are taken over the `sides` of a form, see `negative_sums`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from macl import distributed
from macl.losses import ring
from macl.losses.groups import count_others, gathered_groups
from macl.losses.kernels import operator
from macl.losses.kernels.interface import Exclusions
from macl.losses.lazy import lazy
from macl.losses.logits import Logits, logit, part
from macl.losses.ring import Ring
from macl.losses.unit import reads_values


class Block(NamedTuple):
    """Rows against columns, with the pairs that do not count."""

    rows: Tensor
    columns: Tensor
    exclude: Exclusions
    ring: Ring | None = None
    """Through which the columns of all ranks pass; None: they are all here."""


class Pairs:
    """Base of the forms; `margin(logits)` is what the losses are made of."""

    complete: bool = False
    """Every anchor is known to have a negative."""

    kernel: str | None = None
    """Implementation of the streamed operator, see `kernels.select`."""

    @lazy
    def positive(self) -> Tensor:
        """(n,) s⁺, the similarity of each anchor to its positive."""
        raise NotImplementedError

    @lazy
    def count(self) -> Tensor:
        """(n,) number of negatives of each anchor."""
        raise NotImplementedError

    @property
    def number(self) -> int | None:
        """The number of negatives where all anchors have equally many, known without a tensor."""
        return None

    def log_count(self) -> Tensor | float:
        """log K, of a number or (n,); 0 for anchors without negatives."""
        if self.number is not None:
            return math.log(max(self.number, 1))
        return self.count.clamp(min=1).log()

    def logsumexp(self, logits: Logits) -> Tensor:
        """(n,) log Σ_j exp(l_j); −inf where an anchor has no negatives."""
        raise NotImplementedError

    def parts(self, temperature: Tensor, mean: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """logsumexp, positives' and mean logits from one pass; see `negative_sums.parts`.

        None where there is no such pass.
        """
        return None

    def hardened(self, logits: Logits, beta: float) -> tuple[Tensor, Tensor] | None:
        """(n,) logsumexp(βl) − logsumexp((1+β)l) and the positives' logits, from one pass.

        None where there is no such pass.
        """
        return None

    def sides(self) -> list[list[Block]]:
        """The negatives as blocks: for each run of anchors, in order, the blocks of its rows."""
        raise NotImplementedError

    def margin(self, logits: Logits) -> Tensor:
        """(n,) x = logsumexp_j(l_j) − l⁺."""
        negatives = self.logsumexp(logits)
        if (
            isinstance(logits, Tensor)
            and logits.ndim == 0
            and not logits.requires_grad
            and reads_values(negatives)
        ):
            return torch.sub(negatives, self.positive, alpha=1 / float(logits))
        return negatives - logit(self.positive, logits)


class BothViews(Pairs):
    """NT-Xent: 2N anchors; the negatives of each are the 2N−2 other rows of both views.

    `z` (2N, D) holds the first view, then the second. Under `gather` the anchors are this rank's
    and the negatives every rank's, held whole or, with "ring", block by block.
    """

    def __init__(self, z: Tensor, groups: Tensor | None, gather: bool | str) -> None:
        n = len(z) // 2
        z1, z2 = z.view(2, n, -1).unbind(0)
        self._views, self._rows = (z1, z2), z
        sizes = distributed.batch_sizes(n) if gather else [n]
        total, start = sum(sizes), sum(sizes[: distributed.rank()]) if gather else 0
        self._ring = Ring([2 * size for size in sizes]) if gather == "ring" else None
        self._alone, self._total = len(sizes) == 1, total
        self.complete = groups is None and total > 1
        self._groups = self._column_groups = _twice(groups)
        if self._alone or self._ring is not None:
            self._exclude = Exclusions((0, n, -n), self._groups, self._groups)
        else:
            self._column_groups = _twice(gathered_groups(groups, sizes))
            self._columns = torch.cat([distributed.gather(view, sizes) for view in (z1, z2)])
            self._exclude = Exclusions((start, start + total), groups, self._column_groups)

    @lazy
    def positive(self) -> Tensor:
        """(2N,)."""
        z1, z2 = self._views
        return (z1 * z2).sum(1).repeat(2)

    @property
    def number(self) -> int | None:
        """2N − 2 over all ranks, without groups."""
        return 2 * self._total - 2 if self._groups is None else None

    @lazy
    def count(self) -> Tensor:
        """(2N,)."""
        groups = (self._groups, self._column_groups, self._ring)
        return count_others(self.positive, 2 * self._total, 2, *groups)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(2N,): first view's anchors, then the second's."""
        if self._alone:
            return operator.logsumexp_mirror(self._rows, logits, self._exclude, self.kernel)
        if self._ring is not None:
            z = self._rows
            return ring.logsumexp(z, z, logits, self._exclude, self._ring, self.kernel)
        # Either view excludes the same two columns of sample i: itself and its positive.
        n = len(self._views[0])
        return torch.cat(
            [
                operator.logsumexp(z, self._columns, own, self._exclude, self.kernel)
                for z, own in zip(
                    self._views, (part(logits, 0, n), part(logits, n, 2 * n)), strict=True
                )
            ]
        )

    def sides(self) -> list[list[Block]]:
        """Both views at once, or with `gather` one after the other."""
        if self._alone or self._ring is not None:
            return [[Block(self._rows, self._rows, self._exclude, self._ring)]]
        return [[Block(view, self._columns, self._exclude)] for view in self._views]

    def parts(self, temperature: Tensor, mean: bool) -> tuple[Tensor, Tensor, Tensor | None] | None:
        """(2N,) each, alone and in plain torch."""
        z, n = self._rows, len(self._views[0])
        if not self._alone:
            return None
        return operator.parts(z, temperature, self._exclude, (n, -n), mean, self.kernel)

    def hardened(self, logits: Logits, beta: float) -> tuple[Tensor, Tensor] | None:
        """(2N,) each, alone and in plain torch."""
        z, n = self._rows, len(self._views[0])
        if not self._alone:
            return None
        return operator.hardened(z, logits, beta, self._exclude, (n, -n), self.kernel)

    def margin(self, logits: Logits) -> Tensor:
        """(2N,) x; alone, the positives lie in the kernel's matrix and cost nothing more."""
        z, n = self._rows, len(self._views[0])
        found = None
        if self._alone:
            found = operator.margin(z, z, logits, self._exclude, (n, -n), "mirror", self.kernel)
        return super().margin(logits) if found is None else found[0]


class Bank(Pairs):
    """MoCo: anchors against a (K, D) bank of keys; the positive comes from the other view.

    The bank is the same on every rank, so nothing is gathered.
    """

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        bank: Tensor,
        groups: Tensor | None = None,
        bank_groups: Tensor | None = None,
    ) -> None:
        self._query, self._key, self._bank = query, key, bank
        self.complete = bank_groups is None and len(bank) > 0
        self._exclude = Exclusions((), groups, bank_groups)

    @lazy
    def positive(self) -> Tensor:
        """(N,)."""
        return (self._query * self._key).sum(1)

    @property
    def number(self) -> int | None:
        """K, without groups."""
        return len(self._bank) if self._exclude.column_groups is None else None

    @lazy
    def count(self) -> Tensor:
        """(N,)."""
        exclude = self._exclude
        return count_others(
            self.positive, len(self._bank), 0, exclude.row_groups, exclude.column_groups
        )

    def logsumexp(self, logits: Logits) -> Tensor:
        """(N,). A bank without gradient may change before the backward pass."""
        return operator.logsumexp(self._query, self._bank, logits, self._exclude, self.kernel)

    def sides(self) -> list[list[Block]]:
        """The queries against the bank."""
        return [[Block(self._query, self._bank, self._exclude)]]


class Explicit(Pairs):
    """Algorithm 1: similarities given as `pos` (N,) and `neg` (N, K), in plain torch."""

    def __init__(self, pos: Tensor, neg: Tensor) -> None:
        self.positive, self.negatives = pos, neg

    @lazy
    def count(self) -> Tensor:
        """(N,)."""
        return count_others(self.positive, self.negatives.shape[1], 0, None, None)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(N,)."""
        return torch.logsumexp(logit(self.negatives, logits), dim=1)


def _twice(groups: Tensor | None) -> Tensor | None:
    return None if groups is None else torch.cat([groups, groups])
