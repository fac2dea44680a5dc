"""No command opens a network connection unless a download was asked for."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path

import pytest

from tiny import TINY, python

pytestmark = pytest.mark.slow

TRAINED = {
    "torch": ["digits", *TINY, "epochs=1"],
    "transformers": ["topics", "encoder.width=16", "encoder.layers=1", "encoder.vocabulary=300",
                     "views.max_length=8", "epochs=1", "batch_size=512"],
    "torch_geometric": ["atlas", "epochs=1", "encoder.hidden=4", "evaluation.protocols=[knn]"],
    "rdkit": ["chembl", "epochs=1", "encoder.hidden=8", "data.limit=200",
              "evaluation.protocols=[knn]"],
}  # fmt: skip
"""A recipe for each modality, by the library that it needs."""


def offline(commands: list[list[str | Path]]) -> tuple[list[int], str]:
    """The exit codes of commands without a network, and all that was told."""
    done = python("offline.py", input=json.dumps([[*map(str, c)] for c in commands]))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout), done.stderr


def test_nothing_is_fetched_unasked(tmp_path: Path) -> None:
    """Whatever the command; and what is elsewhere is asked for, not fetched."""
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    fine: list[list[str | Path]] = [["recipes"]]
    for library, recipe in TRAINED.items():
        if find_spec(library) is not None:
            run = tmp_path / recipe[0]
            fine += [
                ["train", *recipe, "--out", run],
                ["evaluate", run],
                ["export", run, tmp_path / f"{recipe[0]}-out", "--no-onnx"],
            ]
    if find_spec("transformers") is not None:
        vectors = tmp_path / "vectors.npy"
        fine.append(["embed", tmp_path / "topics", tmp_path / "lines.txt", "-o", vectors])
    digits, grid = tmp_path / "digits", tmp_path / "grid"
    fine += [
        ["diagnose", digits, "--items", "64"],
        ["report", digits, "--points", "20", "--projection", "pca"],
        ["compare", *TRAINED["torch"], "evaluation.protocols=[knn]", "--vary", "loss=nt-xent,macl",
         "--seeds", "1", "--out", grid],
        ["report", grid],
        ["reproduce"],
        ["reproduce", "loss-ablation", "--dry-run"],
        ["reproduce", "gradient-scale", "--out", tmp_path / "figure"],
    ]  # fmt: skip
    mistakes: list[list[str | Path]] = [
        ["train", "simclr-cifar10", "--data", tmp_path, "--out", tmp_path / "a"],
        ["train", "topics", "data.path=hf:imdb", "--out", tmp_path / "b"],
        ["train", "topics", "encoder.name=bert-base-uncased", "--out", tmp_path / "c"],
        ["train", "graphcl-mutag", f"data.cache={tmp_path}", "--out", tmp_path / "d"],
        ["train", "digits", "encoder.name=timm:hf-hub:x/y", "encoder.width=null",
         "--out", tmp_path / "e"],
    ]  # fmt: skip
    codes, told = offline([*fine, *mistakes])
    assert "NETWORK" not in told, told
    assert codes == [*[0] * len(fine), *[2] * len(mistakes)], told


def test_a_download_that_was_asked_for_is_seen_by_the_guard(tmp_path: Path) -> None:
    """Otherwise its silence above means nothing."""
    command: list[str | Path] = [
        "train", "simclr-cifar10", "data.download=true", "--data", tmp_path,
        "data.source=cifar10", "--out", tmp_path / "run",
    ]  # fmt: skip
    codes, told = offline([command])
    assert "NETWORK: socket." in told
    assert codes == [2], told
    assert "Is the network there?" in told
