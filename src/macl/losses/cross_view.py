"""InfoNCE's pairs: the rows of one view against those of the other."""

from __future__ import annotations

import torch
from torch import Tensor

from macl import distributed
from macl.losses import ring
from macl.losses.groups import count_others, gathered_groups
from macl.losses.kernels import operator
from macl.losses.kernels.interface import Exclusions
from macl.losses.lazy import lazy
from macl.losses.logits import Logits, part
from macl.losses.pairs import Block, Pairs
from macl.losses.ring import Ring


class CrossView(Pairs):
    """InfoNCE: anchors of one view against the rows of the other, N−1 negatives each.

    `symmetric` adds the other direction, (2N,) in all. `hard` (H, D) are further negatives for
    every anchor of the first view that is not of their group in `hard_groups` (H,).
    """

    def __init__(
        self,
        z1: Tensor,
        z2: Tensor,
        groups: Tensor | None,
        gather: bool | str,
        symmetric: bool,
        hard: Tensor | None = None,
        hard_groups: Tensor | None = None,
    ) -> None:
        n, self._total, self._alone = len(z1), len(z1), not gather
        self._z1, self._z2, self._symmetric = z1, z2, symmetric
        self._all1, self._all2, self._hard = z1, z2, hard
        self._groups = self._column_groups = groups
        self._hard_groups, self._hard_total = hard_groups, 0 if hard is None else len(hard)
        self._ring: Ring | None = None
        self._hard_ring: Ring | None = None
        start = 0
        if gather:
            sizes = distributed.batch_sizes(n)
            hard_sizes = [] if hard is None else distributed.batch_sizes(len(hard))
            self._total, self._hard_total = sum(sizes), sum(hard_sizes)
            if gather == "ring":
                self._ring, self._hard_ring = Ring(sizes), Ring(hard_sizes)
            else:
                start = sum(sizes[: distributed.rank()])
                self._column_groups = gathered_groups(groups, sizes)
                self._all2 = distributed.gather(z2, sizes)
                if symmetric:
                    self._all1 = distributed.gather(z1, sizes)
                if hard is not None:
                    self._hard = distributed.gather(hard, hard_sizes)
                    self._hard_groups = gathered_groups(hard_groups, hard_sizes)
        self.complete = groups is None and self._total > 1
        self._exclude = Exclusions((start,), groups, self._column_groups)

    @lazy
    def positive(self) -> Tensor:
        """(N,), or (2N,) when symmetric."""
        positive = (self._z1 * self._z2).sum(1)
        return positive.repeat(2) if self._symmetric else positive

    @property
    def number(self) -> int | None:
        """N − 1 over all ranks, without groups and hard negatives."""
        return self._total - 1 if self._groups is None and self._hard is None else None

    @lazy
    def count(self) -> Tensor:
        """(N,), or (2N,) when symmetric."""
        rows = self.positive[: len(self._z1)]
        count = count_others(rows, self._total, 1, self._groups, self._column_groups, self._ring)
        first = count
        if self._hard is not None:
            groups = (self._groups, self._hard_groups)
            first = count + count_others(rows, self._hard_total, 0, *groups, self._hard_ring)
        return torch.cat([first, count]) if self._symmetric else first

    def logsumexp(self, logits: Logits) -> Tensor:
        """(N,), or (2N,) when symmetric."""
        n, exclude, kernel = len(self._z1), self._exclude, self.kernel
        one, two = part(logits, 0, n), part(logits, n, 2 * n)
        if self._symmetric and self._alone and one is two:
            first, second = operator.logsumexp_both_ways(
                self._z1, self._z2, logits, exclude, kernel
            )
        else:
            first = ring.logsumexp(self._z1, self._all2, one, exclude, self._ring, kernel)
            if self._symmetric:
                second = ring.logsumexp(self._z2, self._all1, two, exclude, self._ring, kernel)
        if self._hard is not None:
            others = Exclusions((), self._groups, self._hard_groups)
            more = ring.logsumexp(self._z1, self._hard, one, others, self._hard_ring, kernel)
            first = _logaddexp(first, more)
        return torch.cat([first, second]) if self._symmetric else first

    def sides(self) -> list[list[Block]]:
        """The first view, with its hard negatives, then the second."""
        first = [Block(self._z1, self._all2, self._exclude, self._ring)]
        if self._hard is not None:
            others = Exclusions((), self._groups, self._hard_groups)
            first.append(Block(self._z1, self._hard, others, self._hard_ring))
        second = [Block(self._z2, self._all1, self._exclude, self._ring)]
        return [first, second] if self._symmetric else [first]

    def margin(self, logits: Logits) -> Tensor:
        """(N,) or (2N,) x; alone, the positives lie in the kernel's matrix and cost nothing."""
        found = None
        if self._alone and self._hard is None:
            found = operator.margin(
                self._z1, self._z2, logits, self._exclude, (0,),
                "both" if self._symmetric else "rows", self.kernel,
            )  # fmt: skip
        if found is None:
            return super().margin(logits)
        by_row, by_column = found
        return by_row if by_column is None else torch.cat([by_row, by_column])


def _logaddexp(one: Tensor, two: Tensor) -> Tensor:
    """torch.logaddexp, whose gradient is NaN where both are −inf; here it is 0 there."""
    finite = two.clamp(min=torch.finfo(two.dtype).min)
    return torch.where(two.isneginf(), one, torch.logaddexp(one, finite))
