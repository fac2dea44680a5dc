"""No command opens a network connection unless a download was asked for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tiny import TINY, python

pytestmark = pytest.mark.slow

TRAINED = {
    "images": ["digits", *TINY, "epochs=1"],
    "text": ["topics", "encoder.width=16", "encoder.layers=1", "encoder.vocabulary=300",
             "views.max_length=8", "epochs=1", "batch_size=512"],
    "graphs": ["atlas", "epochs=1", "encoder.hidden=4", "evaluation.protocols=[knn]"],
    "molecules": ["chembl", "epochs=1", "encoder.hidden=8", "data.limit=200",
                  "evaluation.protocols=[knn]"],
}  # fmt: skip
NEEDS = {"text": "transformers", "graphs": "torch_geometric", "molecules": "rdkit"}


def offline(commands: list[list[str | Path]]) -> tuple[list[dict[str, str | int]], str]:
    """How commands end without a network, and all that was tried to reach it."""
    given = [{"arguments": [*map(str, c)], "environment": {}} for c in commands]
    here = Path(__file__).parent
    done = python("offline.py", here / "macl_forks.py", input=json.dumps(given))
    assert done.returncode == 0, done.stderr
    results = json.loads(done.stdout)
    return results, done.stderr + "".join(result["stderr"] for result in results)


@pytest.mark.parametrize("modality", TRAINED)
def test_nothing_is_fetched_unasked(modality: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(modality, "torch"))
    folder = tmp_path / "run"
    commands: list[list[str | Path]] = [
        ["recipes"],
        ["train", *TRAINED[modality], "--out", folder],
        ["evaluate", folder],
        ["export", folder, tmp_path / "out", "--no-onnx"],
    ]
    if modality == "text":
        (tmp_path / "lines.txt").write_text("one\ntwo\n")
        commands.append(["embed", folder, tmp_path / "lines.txt", "-o", tmp_path / "v.npy"])
        commands.append(["evaluate", tmp_path / "out", "--data", tmp_path])
    results, told = offline(commands)
    assert "NETWORK" not in told, told
    codes = [result["code"] for result in results]
    assert codes[:4] == [0, 0, 0, 0], told


def test_what_would_be_fetched_says_so_instead(tmp_path: Path) -> None:
    """Names of things that are elsewhere, without leave to fetch them."""
    commands: list[list[str | Path]] = [
        ["train", "simclr-cifar10", "--data", tmp_path, "--out", tmp_path / "a"],
        ["train", "topics", "data.path=hf:imdb", "--out", tmp_path / "b"],
        ["train", "topics", "encoder.name=bert-base-uncased", "--out", tmp_path / "c"],
        ["train", "graphcl-mutag", f"data.cache={tmp_path}", "--out", tmp_path / "d"],
        ["train", "digits", "encoder.name=timm:hf-hub:x/y", "encoder.width=null",
         "--out", tmp_path / "e"],
    ]  # fmt: skip
    results, told = offline(commands)
    assert "NETWORK" not in told, told
    assert "Traceback" not in told, told
    assert [result["code"] for result in results] == [2] * len(commands), told


def test_a_download_that_was_asked_for_is_seen_by_the_guard(tmp_path: Path) -> None:
    """Otherwise its silence above means nothing."""
    pytest.importorskip("torch_geometric")
    command: list[str | Path] = [
        "train", "graphcl-mutag", "data.download=true", f"data.cache={tmp_path}",
        "--out", tmp_path / "run",
    ]  # fmt: skip
    results, told = offline([command])
    assert "NETWORK: socket." in told
    assert results[0]["code"] == 2
    assert "could not be downloaded" in told
