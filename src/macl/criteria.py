"""Criteria of embeddings that need no labels, as published for choosing settings without them.

RankMe (Garrido et al. 2023) is `geometry.effective_rank`; alignment and uniformity (Wang & Isola
2020) are in `geometry` too. docs/results/criteria.md measures that none is good enough to choose
by. All take embeddings as they are, neither centered nor normalized, unless they say so.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macl.geometry import _pair, _precise, _rows, effective_rank


def alpha_req(z: Tensor) -> Tensor:
    """The exponent α of the decay λ_j ∝ j^−α of the covariance's eigenvalues (Agrawal et al. 2022).

    By least squares of log λ_j on log j, weighted by 1/j so that each octave counts the same, over
    the eigenvalues above 1e-7 of the largest, two at least. `z` is (N, D). Values near 1 were
    reported to be the best.
    """
    singular = torch.linalg.svdvals(_rows(z) - _rows(z).mean(dim=0))
    values = singular.square()
    values = values[values > 1e-7 * values[0]]
    if len(values) < 2:
        raise ValueError("alpha_req needs two directions that vary: the encoder collapsed")
    place = torch.arange(1, len(values) + 1, dtype=values.dtype, device=values.device)
    weight, x, y = 1 / place, place.log(), values.log()
    x = x - (weight * x).sum() / weight.sum()
    return -(weight * x * y).sum() / (weight * x * x).sum()


def lidar(views: Tensor, delta: float = 1e-4) -> Tensor:
    """Effective rank of the discriminant between items, views being the classes (LiDAR).

    Σ_b is the covariance of the items' means, Σ_w that of the views around them plus δI. With λ the
    eigenvalues of Σ_w^−½ Σ_b Σ_w^−½, the result is exp H(λ/Σλ), in [1, D] (Thilak et al. 2024).
    `views` (N, Q, D) are Q ≥ 2 views of N ≥ 2 items; the published `delta` is the default.
    """
    if views.ndim != 3 or views.shape[0] < 2 or views.shape[1] < 2:
        raise ValueError(f"views must be (N, Q, D) with N, Q ≥ 2, got {tuple(views.shape)}")
    views = _precise(views)
    means = views.mean(dim=1)
    around = (views - means[:, None]).flatten(0, 1)
    within = around.T @ around / len(around)
    within.diagonal().add_(delta)
    centered = means - means.mean(dim=0)
    # The eigenvalues of Σ_w^−½ Σ_b Σ_w^−½ are those of L^−1 Σ_b L^−T with Σ_w = LLᵀ.
    lower = torch.linalg.cholesky(within)
    scaled = torch.linalg.solve_triangular(lower, centered.T, upper=False)
    values = torch.linalg.svdvals(scaled).square()
    return torch.special.entr(values / values.sum()).sum().exp()


def view_retrieval(z1: Tensor, z2: Tensor) -> Tensor:
    """Share of the items whose nearest row of the other view, by cosine, is their own.

    The mean of both directions; ties are failures. Args as `geometry.alignment`.
    """
    f, g = _pair(z1, z2)
    similarities = f @ g.T
    own = similarities.diagonal()
    others = similarities.clone().fill_diagonal_(-torch.inf)
    hits = (own > others.amax(dim=1)).double() + (own > others.amax(dim=0)).double()
    return hits.mean() / 2


def intrinsic_dimension(z: Tensor) -> Tensor:
    """Intrinsic dimension by the two nearest neighbors (TwoNN, Facco et al. 2017): N/Σ log(r₂/r₁).

    `z` is (N, D); rows that coincide with another are left out, and three must remain. CLID (Lu et
    al. 2023) adds it to `cluster_learnability`, both standardized over the models compared.
    """
    z = torch.unique(_rows(z), dim=0)
    if len(z) < 3:
        raise ValueError(f"intrinsic_dimension needs three distinct rows, got {len(z)}")
    near = torch.cdist(z, z, compute_mode="donot_use_mm_for_euclid_dist").sort(dim=1).values
    return len(z) / (near[:, 2] / near[:, 1]).log().sum()


def cluster_learnability(z: Tensor, clusters: int = 10, k: int = 10, seed: int = 0) -> Tensor:
    """Accuracy with which k nearest neighbors predict k-means clusters, item after item.

    Each row is predicted from those before it, in their order (prequential), by the most frequent
    cluster of the k nearest, the lowest of equally frequent ones. See `intrinsic_dimension`.

    Args:
        z: (N, D) in random order, N > k and N ≥ clusters.
        clusters: of k-means.
        k: neighbors; the first k rows are not predicted.
        seed: of k-means.
    """
    from sklearn.cluster import KMeans

    z = _rows(z)
    if len(z) <= max(k, clusters - 1):
        raise ValueError(f"cluster_learnability needs more than {max(k, clusters - 1)} rows")
    clustered = KMeans(clusters, n_init=1, random_state=seed).fit_predict(z.cpu().numpy())
    labels = torch.as_tensor(clustered, dtype=torch.long, device=z.device)
    later = torch.ones(len(z), len(z), dtype=torch.bool, device=z.device).triu()
    near = torch.cdist(z, z).masked_fill(later, torch.inf)[k:].topk(k, largest=False).indices
    votes = torch.nn.functional.one_hot(labels[near], clusters).sum(dim=1)
    return (votes.argmax(dim=1) == labels[k:]).double().mean()


def cheap_criteria(z: Tensor) -> dict[str, float]:
    """What training logs: effective rank and α of embeddings; empty where they collapsed."""
    try:
        return {"effective_rank": effective_rank(z).item(), "alpha_req": alpha_req(z).item()}
    except (ValueError, RuntimeError):  # one direction or none, or values that are not finite
        return {}
