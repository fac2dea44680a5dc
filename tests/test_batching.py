"""Views as methods handle them."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch

from macl.core import batching
from macl.core.errors import UserError


def mapping(n: int = 3, width: int = 2) -> dict[str, torch.Tensor]:
    return {"ids": torch.arange(n * width).view(n, width), "mask": torch.rand(n, width)}


def test_tensors() -> None:
    x = torch.arange(6.0).view(3, 2)
    assert batching.size(x) == 3
    assert batching.take(x, torch.tensor([2, 0])).tolist() == [[4, 5], [0, 1]]
    assert batching.concat(x, x).shape == (6, 2)
    assert batching.concat(x, x[:, :1]) is None


def test_mappings() -> None:
    x, y = mapping(), mapping(4)
    assert batching.size(x) == 3
    taken = batching.take(x, torch.tensor([1]))
    assert taken["ids"].tolist() == [[2, 3]]
    joined = batching.concat(x, y)
    assert {key: len(value) for key, value in joined.items()} == {"ids": 7, "mask": 7}
    assert torch.equal(joined["mask"][3:], y["mask"])
    assert batching.concat(x, mapping(width=3)) is None


def test_double_leaves_whole_numbers_alone() -> None:
    made = batching.double(mapping())
    assert (made["ids"].dtype, made["mask"].dtype) == (torch.int64, torch.float64)
    assert batching.double(torch.ones(1, dtype=torch.uint8)).dtype == torch.uint8


def test_views_of_ones_own_are_registered() -> None:
    class Mine:
        rows = (7, 8)

    assert batching.concat(Mine(), Mine()) is None
    with pytest.raises(TypeError, match=r"Mine is not a known kind of view: register it.*size"):
        batching.size(Mine())
    with pytest.raises(TypeError, match=r"register it.*take"):
        batching.take(Mine(), torch.tensor([0]))
    with pytest.raises(UserError, match="precision=64 is not available for Mine"):
        batching.double(Mine())
    batching.size.register(Mine)(lambda view: len(view.rows))
    assert batching.size(Mine()) == 2


class Named(NamedTuple):
    pixels: torch.Tensor
    names: list[str]


def test_move_keeps_types_and_leaves_other_values_alone() -> None:
    x = torch.ones(2)
    batch = {"pair": (x, [x, 3]), "named": Named(x, ["a"])}
    moved = batching.move(batch, torch.device("meta"))
    assert moved["pair"][0].device.type == moved["pair"][1][0].device.type == "meta"
    assert moved["pair"][1][1] == 3
    assert isinstance(moved["named"], Named)
    assert moved["named"].pixels.is_meta
    assert moved["named"].names == ["a"]
