"""Retrieval across towers: the rank of what belongs to a query among all candidates."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.core.similarity import product_blocks

RECALLS = (1, 5, 10)


def retrieval_ranks(queries: Tensor, keys: Tensor, matches: Tensor) -> Tensor:
    """The rank of the best matching key for every query, by cosine similarity.

        rank_i = 1 + |{ j ∉ P_i : s_ij ≥ max_{p ∈ P_i} s_ip }|

    P_i are the keys that match query i. A key that ties with the best match counts as better, and
    so does one whose similarity is not a number.

    For (M, D) queries and (N, D) keys, of any length; matches are (P, 2) int64, query i and key j
    that belong together. Returns (M,) int64 from 1; N + 1 for a query that no key matches.
    """
    matches = matches[matches[:, 0].argsort(stable=True)]
    rows = matches[:, 0].contiguous()
    ranks = []
    units = F.normalize(keys, dim=1)
    for start, similarities in product_blocks(F.normalize(queries, dim=1), units):
        first, last = torch.searchsorted(rows, torch.tensor([start, start + len(similarities)]))
        own = matches[int(first) : int(last)]
        is_match = torch.zeros_like(similarities, dtype=torch.bool)
        is_match[own[:, 0] - start, own[:, 1]] = True
        best = similarities.masked_fill(~is_match, -torch.inf).amax(dim=1, keepdim=True)
        # Written as "not below", so that NaN counts against the query.
        ahead = ~(similarities < best) & ~is_match
        rank = 1 + ahead.sum(dim=1)
        ranks.append(rank.where(is_match.any(dim=1), len(keys) + 1))
    return torch.cat(ranks)


def recall_metrics(ranks: Tensor, prefix: str) -> dict[str, float]:
    """Share of (M,) ranks up to K in percent for each K, and the median rank (the lower of two)."""
    shares = {f"{prefix} R@{k}": 100 * float((ranks <= k).double().mean()) for k in RECALLS}
    return {**shares, f"{prefix} median rank": float(ranks.double().median())}


def zero_shot_ranks(images: Tensor, classes: Tensor, labels: Tensor) -> Tensor:
    """The rank of the true class of every image, ties counted against it: (N,) int64 from 1.

    (N, D) images, (C, D) classes, a vector for each, and (N,) labels in 0 … C-1.
    """
    matches = torch.stack([torch.arange(len(labels)), labels], dim=1)
    return retrieval_ranks(images, classes, matches)


def class_vectors(prompts: Tensor) -> Tensor:
    """The mean of the unit vectors of a class' prompts, of unit length: (C, T, D) → (C, D)."""
    return F.normalize(F.normalize(prompts, dim=2).mean(dim=1), dim=1)


def modality_gap(images: Tensor, texts: Tensor) -> Tensor:
    """‖mean of the unit image vectors − mean of the unit text vectors‖, a scalar."""
    return (F.normalize(images, dim=1).mean(0) - F.normalize(texts, dim=1).mean(0)).norm()
