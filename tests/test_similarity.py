"""The nearest rows by product, in blocks, against a loop over pairs."""

from __future__ import annotations

import pytest
import torch

from macl.core.similarity import nearest_rows, product_blocks


@pytest.mark.parametrize("most", [1, 7, 50, 10_000])
@pytest.mark.parametrize("exclude_own", [False, True])
def test_nearest_rows_equal_a_loop_over_pairs(most: int, exclude_own: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    keys = torch.randn(11, 3, generator=generator, dtype=torch.float64)
    queries = keys if exclude_own else torch.randn(6, 3, generator=generator, dtype=torch.float64)
    values, positions = nearest_rows(queries, keys, 4, exclude_own=exclude_own, most=most)
    for i, query in enumerate(queries):
        products = [
            (sum(a * b for a, b in zip(query.tolist(), key.tolist(), strict=True)), j)
            for j, key in enumerate(keys)
            if not (exclude_own and i == j)
        ]
        expected = sorted(products, reverse=True)[:4]
        assert positions[i].tolist() == [j for _, j in expected]
        assert values[i].tolist() == pytest.approx([value for value, _ in expected])


def test_few_keys_give_fewer_neighbors() -> None:
    rows = torch.eye(3)
    assert nearest_rows(rows, rows, 5)[1].shape == (3, 3)
    assert nearest_rows(rows, rows, 5, exclude_own=True)[1].shape == (3, 2)


def test_no_block_exceeds_the_bound() -> None:
    blocks = [block.numel() for _, block in product_blocks(torch.ones(9, 2), torch.ones(4, 2), 10)]
    assert blocks == [8, 8, 8, 8, 4]
