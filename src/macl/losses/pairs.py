"""Who is contrasted with whom: the forms that a batch of similarities can take.

Each form offers three things and nothing else, which is all that an objective needs:

    positive            (n,) similarity of each anchor to its positive
    logsumexp(τ)        (n,) log Σ_j exp(s_j/τ) over each anchor's negatives
    count               (n,) number of negatives of each anchor
"""

from __future__ import annotations

import torch
from torch import Tensor

from macl import distributed
from macl.losses import margin
from macl.losses.margin import Exclusions


class Pairs:
    """Base of the forms; `margin(τ)` is what the losses are made of."""

    positive: Tensor
    count: Tensor

    def logsumexp(self, temperature: Tensor) -> Tensor:
        """(n,) log Σ_j exp(s_j/τ); −inf where an anchor has no negatives."""
        raise NotImplementedError

    def margin(self, temperature: Tensor) -> Tensor:
        """(n,) x = logsumexp_j(s_j/τ) − s⁺/τ."""
        return self.logsumexp(temperature) - self.positive / temperature


class BothViews(Pairs):
    """NT-Xent: 2N anchors; the negatives of each are the 2N−2 other rows of both views.

    Under `gather` the anchors are this rank's and the negatives everybody's.
    """

    def __init__(self, z1: Tensor, z2: Tensor, groups: Tensor | None, gather: bool) -> None:
        n = len(z1)
        positive = (z1 * z2).sum(1)
        self.positive = torch.cat([positive, positive])
        sizes = distributed.batch_sizes(n, z1.device) if gather else [n]
        total, start = sum(sizes), sum(sizes[: distributed.rank()]) if gather else 0
        everyone = _gathered_groups(groups, sizes)
        columns_groups = _twice(everyone)
        rows_groups = _twice(groups)
        self._alone = len(sizes) == 1
        if self._alone:
            self._rows = torch.cat([z1, z2])
            self._exclude = Exclusions((0, n, -n), rows_groups, columns_groups)
        else:
            self._local = (z1, z2)
            self._columns = torch.cat([distributed.gather(z, sizes) for z in (z1, z2)])
            self._exclude = Exclusions((start, start + total), groups, columns_groups)
        self.count = _count(2 * n, 2 * total, 2, rows_groups, columns_groups, z1)

    def logsumexp(self, temperature: Tensor) -> Tensor:
        """(2N,): first view's anchors, then the second's."""
        if self._alone:
            return margin.logsumexp_mirror(self._rows, temperature, self._exclude)
        # Either view excludes the same two columns of sample i: itself and its positive.
        return torch.cat(
            [margin.logsumexp(z, self._columns, temperature, self._exclude) for z in self._local]
        )


class CrossView(Pairs):
    """InfoNCE: anchors of one view against the rows of the other, N−1 negatives each.

    `symmetric` adds the other direction, (2N,) in all. `hard` (H, D) are further negatives for
    every anchor of the first view.
    """

    def __init__(
        self,
        z1: Tensor,
        z2: Tensor,
        groups: Tensor | None,
        gather: bool,
        symmetric: bool,
        hard: Tensor | None = None,
    ) -> None:
        n = len(z1)
        positive = (z1 * z2).sum(1)
        self.positive = torch.cat([positive, positive]) if symmetric else positive
        sizes = distributed.batch_sizes(n, z1.device) if gather else [n]
        total, start = sum(sizes), sum(sizes[: distributed.rank()]) if gather else 0
        everyone = _gathered_groups(groups, sizes)
        self._exclude = Exclusions((start,), groups, everyone)
        self._z1, self._z2, self._symmetric = z1, z2, symmetric
        self._alone = len(sizes) == 1
        self._all1 = distributed.gather(z1, sizes) if gather and symmetric else z1
        self._all2 = distributed.gather(z2, sizes) if gather else z2
        self._hard = hard
        if hard is not None and gather:
            self._hard = distributed.gather(hard, distributed.batch_sizes(len(hard), hard.device))
        count = _count(n, total, 1, groups, everyone, z1)
        extra = 0 if self._hard is None else len(self._hard)
        self.count = torch.cat([count + extra, count]) if symmetric else count + extra

    def logsumexp(self, temperature: Tensor) -> Tensor:
        """(N,), or (2N,) when symmetric."""
        if self._symmetric and self._alone:
            first, second = margin.logsumexp_both_ways(
                self._z1, self._z2, temperature, self._exclude
            )
        else:
            first = margin.logsumexp(self._z1, self._all2, temperature, self._exclude)
            if self._symmetric:
                second = margin.logsumexp(self._z2, self._all1, temperature, self._exclude)
        if self._hard is not None:
            more = margin.logsumexp(self._z1, self._hard, temperature, Exclusions())
            first = torch.logaddexp(first, more)
        return torch.cat([first, second]) if self._symmetric else first


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
        self.positive = (query * key).sum(1)
        self._query, self._bank = query, bank
        self._exclude = Exclusions((), groups, bank_groups)
        self.count = _count(len(query), len(bank), 0, groups, bank_groups, query)

    def logsumexp(self, temperature: Tensor) -> Tensor:
        """(N,)."""
        return margin.logsumexp(self._query, self._bank, temperature, self._exclude)


class Explicit(Pairs):
    """Algorithm 1: similarities given as `pos` (N,) and `neg` (N, K), in plain torch."""

    def __init__(self, pos: Tensor, neg: Tensor) -> None:
        self.positive, self._neg = pos, neg
        self.count = pos.new_full((len(pos),), float(neg.shape[1]))

    def logsumexp(self, temperature: Tensor) -> Tensor:
        """(N,)."""
        return torch.logsumexp(self._neg / temperature, dim=1)


def unit_rows(z: Tensor, name: str) -> Tensor:
    """Rows scaled to length 1, in float32 at least; right at any scale that the type can hold.

    A row of zeros stays zero and gets no gradient: it has no direction to turn in.
    """
    if z.dtype not in (torch.float32, torch.float64):
        z = z.float()
    # Dividing by the largest entry first keeps squares from overflowing. The result does not
    # depend on it, so no gradient needs to flow through it.
    largest = z.detach().abs().amax(1, keepdim=True)
    if not bool(largest.isfinite().all()):
        row = int((~largest.isfinite()).flatten().nonzero()[0])
        raise ValueError(
            f"{name} has NaN or infinite values (first in row {row}). The loss was not computed; "
            "lower the learning rate, clip gradients, or look at the encoder's output."
        )
    # Gradients grow as 1/length: below this (about 1e-34 in float32) they would overflow.
    tiny = torch.finfo(z.dtype).tiny ** 0.9
    z = z / largest.clamp(min=tiny)
    norm = torch.linalg.vector_norm(z, dim=1, keepdim=True)
    return z * torch.where(largest > tiny, 1 / norm.clamp(min=0.5), torch.zeros_like(norm))


def _twice(groups: Tensor | None) -> Tensor | None:
    return None if groups is None else torch.cat([groups, groups])


def _gathered_groups(groups: Tensor | None, sizes: list[int]) -> Tensor | None:
    if groups is None or len(sizes) == 1:
        return groups
    return distributed.gather(groups, sizes)


def _count(
    rows: int,
    columns: int,
    excluded: int,
    row_groups: Tensor | None,
    column_groups: Tensor | None,
    like: Tensor,
) -> Tensor:
    """(rows,) number of negatives; an anchor's own group includes itself and its positive."""
    if row_groups is None or column_groups is None:
        return like.new_full((rows,), float(columns - excluded))
    values, index = torch.unique(torch.cat([row_groups, column_groups]), return_inverse=True)
    in_columns = torch.bincount(index[rows:], minlength=len(values))
    return (columns - in_columns[index[:rows]]).to(like.dtype)
