"""Products of many rows with many others, a block at a time, so that memory stays bounded."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

MOST_PRODUCTS = 2**24
"""Numbers held at once: 64 MB in single precision."""


def product_blocks(
    queries: Tensor, keys: Tensor, most: int = MOST_PRODUCTS
) -> Iterator[tuple[int, Tensor]]:
    """Yield (first row, queries[first : first + b] @ keysᵀ), (b, N) each, over all queries.

    Args:
        queries: (M, D).
        keys: (N, D).
        most: products held at once; a block has at least one row.
    """
    rows = max(1, most // len(keys))
    for start in range(0, len(queries), rows):
        yield start, queries[start : start + rows] @ keys.T


def nearest_rows(
    queries: Tensor, keys: Tensor, k: int, *, exclude_own: bool = False, most: int = MOST_PRODUCTS
) -> tuple[Tensor, Tensor]:
    """The k keys with the largest products for every query: (M, k) products, (M, k) positions.

    Args:
        queries: (M, D); of length 1, like the keys, for cosine similarity.
        keys: (N, D).
        k: as many as there are where there are fewer.
        exclude_own: queries are keys, and key i does not count for query i.
        most: products held at once.
    """
    count = min(k, len(keys) - exclude_own)
    values, positions = [], []
    for start, products in product_blocks(queries, keys, most):
        if exclude_own:
            own = torch.arange(len(products), device=products.device)
            products[own, own + start] = -torch.inf
        found = products.topk(count, dim=1)
        values.append(found.values)
        positions.append(found.indices)
    return torch.cat(values), torch.cat(positions)


def nearest_by_cosine(query: Tensor, keys: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k keys with the largest cosine similarity to one query: (k,) cosines, (k,) positions.

    One matrix-vector product and one pass for the lengths, without a copy of the keys. A key that
    is zero or not finite comes last.

    Args:
        query: (D,).
        keys: (N, D), of any length.
        k: as many as there are where there are fewer.
    """
    cosines = keys @ (query / query.norm()) / keys.norm(dim=1)
    found = cosines.nan_to_num(nan=-torch.inf).topk(min(k, len(keys)))
    return found.values, found.indices
