"""The quantities the paper reasons with: how embeddings lie, and how the loss weighs them.

Two kinds of pure functions. Those on embeddings z take (N, D) rows of any length and compare
directions. Those on similarities take `pos` (N,), the similarity of each anchor to its positive,
and `neg` (N, K), its similarities to K negatives, at a `temperature` τ > 0.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def alignment(z1: Tensor, z2: Tensor) -> Tensor:
    """Alignment magnitude A = E[f(x)ᵀ g(x)], the mean cosine of positive pairs, in [-1, 1].

    Row i of `z1` (N, D) is a view of the same thing as row i of `z2` (N, D). Wang & Isola's (2020)
    loss E‖f(x) − g(x)‖² is 2 − 2A.
    """
    f, g = _pair(z1, z2)
    return (f * g).sum(dim=1).mean()


def uniformity(z: Tensor, t: float = 2.0, chunk: int = 2**24) -> Tensor:
    """log E exp(−t‖z_i − z_j‖²) over distinct pairs on the unit sphere (Wang & Isola 2020).

    A scalar in [−4t, 0] for `z` (N, D), N ≥ 2; lower is more uniform. On the sphere
    ‖z_i − z_j‖² = 2 − 2 z_iᵀz_j, so this is a logsumexp of similarities, `chunk` held at once.
    """
    z = _directions(z)
    n = len(z)
    if n < 2:
        raise ValueError(f"uniformity compares pairs and needs at least 2 rows, got {n}")
    rows = max(1, chunk // n)
    parts = []
    # Every unordered pair once: each row against the columns after it. The last row has none left,
    # hence n - 1.
    for start in range(0, n - 1, rows):
        similarities = z[start : start + rows] @ z[start:].T
        seen = torch.ones_like(similarities, dtype=torch.bool).tril()
        exponents = (2 * t * (similarities - 1)).masked_fill(seen, -torch.inf)
        parts.append(exponents.flatten().logsumexp(dim=0))
    return torch.stack(parts).logsumexp(dim=0) - math.log(n * (n - 1) / 2)


def tolerance(z: Tensor, labels: Tensor) -> Tensor:
    """Mean cosine of distinct items of equal label (Wang & Liu 2021).

    A scalar in [-1, 1] for `z` (N, D) and integer `labels` (N,), one class of which has two members
    at least; higher is more tolerant of what belongs together. Class sums are all it takes:
    Σ_{i≠j, same class} z_iᵀz_j = Σ_c ‖Σ_{i∈c} z_i‖² − Σ_i ‖z_i‖².
    """
    z = _directions(z)
    if labels.shape != z.shape[:1]:
        raise ValueError(f"labels must be ({len(z)},), one per row of z; got {tuple(labels.shape)}")
    _, members, counts = torch.unique(labels.to(z.device), return_inverse=True, return_counts=True)
    pairs = (counts * (counts - 1)).sum()
    if pairs == 0:
        raise ValueError("tolerance needs a class with two members; every label occurs once")
    sums = z.new_zeros(len(counts), z.shape[1]).index_add(0, members, z)
    return (sums.square().sum() - z.square().sum()) / pairs


def effective_rank(z: Tensor) -> Tensor:
    """exp H(p), p the singular values of z divided by their sum (Roy & Vetterli 2007).

    `z` (N, D) is used as it is, neither centered nor normalized. A scalar in [1, min(N, D)]: the
    number of dimensions the embedding really uses.
    """
    singular = torch.linalg.svdvals(_precise(z))
    total = singular.sum()
    if total == 0:
        raise ValueError("effective_rank of an all-zero matrix is undefined: the encoder collapsed")
    return torch.special.entr(singular / total).sum().exp()


def gradient_scale(pos: Tensor, neg: Tensor, temperature: float | Tensor) -> Tensor:
    """W_i = Σ_j P_ij = σ(logsumexp_j(s_ij/τ) − s_i/τ), the factor on the gradient of InfoNCE.

    Returns (N,) in (0, 1): near 0 for easy positives, whose gradient InfoNCE loses.
    """
    _check_temperature(temperature)
    if pos.ndim != 1 or neg.ndim != 2 or len(pos) != len(neg) or neg.shape[1] == 0:
        raise ValueError(
            f"pos must be (N,) and neg (N, K) with K ≥ 1; got {tuple(pos.shape)} and "
            f"{tuple(neg.shape)}"
        )
    pos, neg = _precise(pos), _precise(neg)
    return torch.sigmoid((neg / temperature).logsumexp(dim=1) - pos / temperature)


def negative_weights(neg: Tensor, temperature: float | Tensor) -> Tensor:
    """P̂_ij = softmax_j(s_ij/τ), the share of the penalty that each negative gets: (N, K)."""
    _check_temperature(temperature)
    return torch.softmax(_precise(neg) / temperature, dim=1)


def entropy(neg: Tensor, temperature: float | Tensor) -> Tensor:
    """H_i = −Σ_j P̂_ij log P̂_ij in nats: (N,), between 0 and log K.

    exp H_i is how many negatives an anchor is in effect pushed from.
    """
    return torch.special.entr(negative_weights(neg, temperature)).sum(dim=1)


def proposition1(
    k: Tensor, pos: float = 1.0, neg: float = -1.0, temperature: float | Tensor = 0.1
) -> Tensor:
    """W as a function of the number of negatives, all of similarity `neg`; tends to 1 as K → ∞.

    W = K E_neg / (E_pos + K E_neg) = σ(log K + (neg − pos)/τ). Shape as `k`; the similarities
    default to those of the paper's figure.
    """
    if (k < 1).any():
        raise ValueError("the propositions need at least one negative: k ≥ 1")
    _check_temperature(temperature)
    return torch.sigmoid(torch.log(k) + (neg - pos) / temperature)


def proposition2(temperature: Tensor, pos: float = 1.0, neg: float = -1.0, k: int = 256) -> Tensor:
    """W as a function of the temperature, for K equal negatives; tends to K/(K+1) as τ → ∞.

    The same W as `proposition1`; shape as `temperature`.
    """
    return proposition1(torch.tensor(float(k)).to(temperature), pos, neg, temperature)


def _precise(values: Tensor) -> Tensor:
    """At least float32: half precision overflows in exponents and lacks an SVD."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _rows(z: Tensor) -> Tensor:
    if z.ndim != 2:
        raise ValueError(f"embeddings must be (N, D), got {tuple(z.shape)}")
    return _precise(z)


def _directions(z: Tensor) -> Tensor:
    return F.normalize(_rows(z), dim=1)


def _pair(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    if z1.shape != z2.shape:
        raise ValueError(
            f"row i of z1 pairs with row i of z2, so their shapes must be equal; "
            f"got {tuple(z1.shape)} and {tuple(z2.shape)}"
        )
    return _directions(z1), _directions(z2)


def _check_temperature(temperature: float | Tensor) -> None:
    if not torch.as_tensor(temperature > 0).all():
        raise ValueError(f"temperature must be above 0, got {temperature}")
