"""Weights as safetensors."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from torch import nn

from macl.core.errors import UserError
from macl.core.weights import REPORTED, load_weights, read_metadata, save_weights


def net(width: int = 3) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width))


def test_there_and_back(tmp_path: Path) -> None:
    path, one, two = tmp_path / "deep" / "w.safetensors", net(), net()
    save_weights(one, path, {"recipe": "digits"})
    load_weights(two, path)
    for name, value in one.state_dict().items():
        assert torch.equal(value, two.state_dict()[name]), name
    assert read_metadata(path) == {"format": "pt", "recipe": "digits"}
    assert os.listdir(path.parent) == ["w.safetensors"]


def test_tied_and_strided_weights_are_written(tmp_path: Path) -> None:
    tied = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    tied[1].weight = tied[0].weight
    image = nn.Conv2d(3, 4, 3).to(memory_format=torch.channels_last)
    for module in (tied, image):
        save_weights(module, tmp_path / "w.safetensors", {})
        load_weights(module, tmp_path / "w.safetensors")


def test_double_weights_load_into_single(tmp_path: Path) -> None:
    save_weights(net().double(), tmp_path / "w.safetensors", {})
    load_weights(single := net(), tmp_path / "w.safetensors")
    assert single[0].weight.dtype == torch.float32


def test_weights_of_a_classifier_are_named(tmp_path: Path) -> None:
    whole = nn.ModuleDict({"body": nn.Linear(2, 2), "fc": nn.Linear(2, 9)})
    save_weights(whole, tmp_path / "w.safetensors", {})
    body = nn.ModuleDict({"body": nn.Linear(2, 2)})
    with pytest.raises(UserError, match=r"fc\.weight is not in the encoder"):
        load_weights(body, tmp_path / "w.safetensors")


def test_mismatches_are_named_with_the_settings_they_came_from(tmp_path: Path) -> None:
    save_weights(net(4), tmp_path / "w.safetensors", {"recipe": "digits"})
    target = net(3)
    before = target[0].weight.clone()
    with pytest.raises(UserError) as caught:
        load_weights(target, tmp_path / "w.safetensors")
    text = str(caught.value)
    assert "0.weight is (4, 2) in the file, (3, 2) in the encoder" in text
    assert "recipe=digits" in text
    assert torch.equal(target[0].weight, before)


def test_a_long_list_of_mismatches_is_cut(tmp_path: Path) -> None:
    save_weights(nn.Sequential(*(nn.Linear(1, 1) for _ in range(20))), tmp_path / "w", {})
    with pytest.raises(UserError, match="in 40 places") as caught:
        load_weights(nn.Sequential(), tmp_path / "w")
    assert str(caught.value).count("is not in the encoder") == REPORTED


@pytest.mark.parametrize("content", [b"", b"\x80\x02}q\x00.", None])
def test_what_is_not_safetensors_is_refused(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "w.pth"
    if content is not None:
        path.write_bytes(content)
    for read in (read_metadata, lambda p: load_weights(net(), p)):
        with pytest.raises(UserError, match=r"w\.pth cannot be read as safetensors"):
            read(path)
