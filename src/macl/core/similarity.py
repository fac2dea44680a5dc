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

    `queries` are (M, D), `keys` (N, D); at most `most` products are held at once, or one row.
    """
    rows = max(1, most // len(keys))
    for start in range(0, len(queries), rows):
        yield start, queries[start : start + rows] @ keys.T


def nearest_rows(
    queries: Tensor, keys: Tensor, k: int, *, exclude_own: bool = False, most: int = MOST_PRODUCTS
) -> tuple[Tensor, Tensor]:
    """The k keys with the largest products for every query: (M, k) products, (M, k) positions.

    `queries` are (M, D), `keys` (N, D), all of length 1 for cosine similarity. With fewer than k
    keys, all of them. `exclude_own`: queries are keys, and key i does not count for query i.
    """
    count = min(k, len(keys) - exclude_own)
    tops = []
    for start, products in product_blocks(queries, keys, most):
        if exclude_own:
            own = torch.arange(len(products), device=products.device)
            products[own, own + start] = -torch.inf
        tops.append(products.topk(count, dim=1))
    values, positions = zip(*tops, strict=True)
    return torch.cat(values), torch.cat(positions)


def nearest_by_cosine(
    queries: Tensor, keys: Tensor, k: int, lengths: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """The k keys with the largest cosine similarity to each query: (M, k) cosines and positions.

    `queries` is (M, D), `keys` (N, D) of any length, which is computed unless `lengths` (N,) has
    it. There is no copy of the keys. A key that is zero or not finite comes last.
    """
    cosines = (queries / queries.norm(dim=1, keepdim=True)) @ keys.T
    cosines /= keys.norm(dim=1) if lengths is None else lengths
    top = cosines.nan_to_num_(nan=-torch.inf).topk(min(k, len(keys)), dim=1)
    return top.values, top.indices
