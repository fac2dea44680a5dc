"""Sums over each anchor's negatives, streamed, for any form of pairs that has `sides`."""

from __future__ import annotations

import torch
from torch import Tensor

from macl.losses import ring
from macl.losses.kernels import kept, operator
from macl.losses.kernels.functions import FUNCTIONS
from macl.losses.kernels.kept_cross import logsumexp_and_mean_both_ways
from macl.losses.logits import joined, part
from macl.losses.pairs import Block, Explicit, Pairs


def pair_sum(pairs: Pairs, scale: Tensor, offset: Tensor, function: str = "softplus") -> Tensor:
    """(n,) Σ_j f(scale·s_ij + offset) over the negatives of each anchor; see `operator.pair_sum`.

    Args:
        pairs: who is contrasted with whom.
        scale: scalar.
        offset: scalar.
        function: the name of f.
    """
    if isinstance(pairs, Explicit):
        return FUNCTIONS[function].value(scale * pairs.negatives + offset).sum(1)
    sums = []
    for side in pairs.sides():
        parts = [
            ring.pair_sum(
                block.rows,
                block.columns,
                scale,
                offset,
                block.exclude,
                block.ring,
                function,
                pairs.kernel,
            )
            for block in side
        ]
        sums.append(torch.stack(parts).sum(0) if len(parts) > 1 else parts[0])
    return joined(sums)


def margin(pairs: Pairs, temperature: Tensor) -> Tensor:
    """(n,) `pairs.margin`, of scalar τ or (n,); from one matrix for both directions if kept."""
    both_ways = None
    if temperature.ndim:
        both_ways = _both_ways(pairs.sides(), temperature, pairs.kernel)
    if both_ways is None:
        return pairs.margin(temperature)
    return both_ways[0] - pairs.positive / temperature


def parts(pairs: Pairs, temperature: Tensor, mean: bool) -> tuple[Tensor, Tensor, Tensor | None]:
    """(n,) logsumexp over the negatives, (n,) logit of the positive and, if asked, mean logits.

    Args:
        pairs: who is contrasted with whom.
        temperature: scalar τ, or (n,).
        mean: whether (n,) Σ_j P̂_ij·s_ij/τ_i is wanted, see `logsumexp_and_mean`.
    """
    if (found := pairs.parts(temperature, mean)) is not None:
        return found
    means = None
    if mean:
        lse, means = logsumexp_and_mean(pairs, temperature)
    else:
        lse = pairs.logsumexp(temperature)
    return lse, pairs.positive / temperature, means


def logsumexp_and_mean(pairs: Pairs, temperature: Tensor) -> tuple[Tensor, Tensor]:
    """(n,) logsumexp and (n,) Σ_j P̂_ij·s_ij/τ_i over the negatives of each anchor.

    The second is detached. With Triton, hard negatives or a ring it takes one more pass over the
    similarities.

    Args:
        pairs: who is contrasted with whom.
        temperature: scalar τ, or (n,).
    """
    sides = pairs.sides()
    if any(len(side) > 1 or side[0].ring is not None for side in sides):
        lse = pairs.logsumexp(temperature)
        return lse, _mean_logit(pairs, temperature, lse.detach())
    if both_ways := _both_ways(sides, temperature, pairs.kernel):
        return both_ways
    found, start = [], 0
    for ((rows, columns, exclude, _),) in sides:
        own = part(temperature, start, start + len(rows))
        assert isinstance(own, Tensor)
        found.append(operator.logsumexp_and_mean(rows, columns, own, exclude, pairs.kernel))
        start += len(rows)
    by_row, means = zip(*found, strict=True)
    return joined(by_row), joined(means)


def _both_ways(
    sides: list[list[Block]], temperature: Tensor, kernel: str | None
) -> tuple[Tensor, Tensor] | None:
    """Both directions of two views from one matrix, where that is kept; None elsewhere."""
    if [*map(len, sides)] != [1, 1] or temperature.ndim == 0 or torch.compiler.is_compiling():
        return None
    ((one,), (two,)) = sides
    # With a ring, the columns are those of this rank alone.
    same = one.ring is None and one.rows is two.columns and two.rows is one.columns
    if not (same and kept.keeps(one.rows, one.columns, kernel)):
        return None
    first, second = temperature.split([len(one.rows), len(two.rows)])
    return logsumexp_and_mean_both_ways(one.rows, one.columns, first, second, one.exclude)


def _mean_logit(pairs: Pairs, temperature: Tensor, lse: Tensor) -> Tensor:
    means, start = [], 0
    for side in pairs.sides():
        stop = start + len(side[0].rows)
        own = part(temperature, start, stop)
        assert isinstance(own, Tensor)
        # Shifted by the logsumexp over all blocks of this side, the parts of the mean add up.
        parts = [
            ring.mean_logit(
                block.rows,
                block.columns,
                own,
                lse[start:stop],
                block.exclude,
                block.ring,
                pairs.kernel,
            )
            for block in side
        ]
        means.append(torch.stack(parts).sum(0))
        start = stop
    return joined(means)
