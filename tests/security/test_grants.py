"""A recipe in a file permits itself nothing: neither imports, nor downloads, nor writing."""

from __future__ import annotations

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

import tiny
from macl import recipes
from macl.core.errors import SkippedInputWarning
from macl.runs import Run
from macl.training.fit import train
from tiny import TINY, python

GRANTS: list[tuple[str, str, Any]] = [
    ("images", "data.download", True),
    ("images", "evaluation.detection.figures", "/elsewhere"),
    ("images", "evaluation.detection.folder", "/elsewhere"),
    ("text", "data.download", True),
    ("text", "encoder.download", True),
    ("graphs", "data.download", True),
    ("graphs", "data.cache", "/elsewhere"),
    ("molecules", "data.cache", "/elsewhere"),
    ("image-text", "data.download", True),
    ("image-text", "encoder.text.download", True),
]
NAMES = {"images": "digits", "text": "topics", "graphs": "atlas", "molecules": "chembl",
         "image-text": "digits-captions"}  # fmt: skip


def nested(key: str, value: Any) -> dict[str, Any]:
    for part in reversed(key.split(".")):
        value = {part: value}
    return dict(value)


@pytest.mark.parametrize(("modality", "key", "value"), GRANTS)
def test_a_file_cannot_set_what_only_the_user_may(
    modality: str, key: str, value: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MACL_ALLOW_IMPORTS", "0")
    base = recipes.load(NAMES[modality])
    granted = recipes.override(base, {key: value})
    assert granted != base
    file = tmp_path / "recipe.yaml"
    file.write_text(recipes.dump(granted))
    assert Run.open(tmp_path).recipe == base
    assert recipes.load(str(file), {key: value}) == granted
    named = file.rename(tmp_path / "mine.yaml")
    with pytest.warns(SkippedInputWarning, match=rf"mine\.yaml: {key} is ignored"):
        assert recipes.load(str(named)) == base
    monkeypatch.setenv("MACL_ALLOW_IMPORTS", "1")
    assert recipes.load(str(named)) == granted


def test_a_run_that_the_user_let_download_is_resumed_without(tmp_path: Path) -> None:
    """The permission is part of no recipe: it neither stays nor counts as another training."""
    granted = tiny.recipe("epochs=1", "data.limit=70", "monitor_every=0", "data.download=true")
    folder = train(granted, tmp_path / "run", compute=tiny.HERE).folder
    stored = Run.open(folder).recipe
    assert stored.data.download is False
    assert train(stored, folder, resume=True, compute=tiny.HERE).is_finished


def hostile_runs(folder: Path, outside: Path) -> list[Path]:
    """Finished runs with other recipes; their encoders are real, so commands go far."""
    changes: list[tuple[str, dict[str, Any]]] = [
        ("digits", {"data.source": "cifar10", "data.path": str(outside), "data.download": True}),
        ("digits", {"data.source": "cifar100", "data.path": str(outside), "data.download": True}),
        ("digits", {"data.source": "auto", "data.path": "http://192.0.2.1/a-{0..2}.tar",
                    "data.download": True}),
        ("digits", {"encoder.name": "timm:hf-hub:x/y", "encoder.width": None}),
        ("digits", {"evaluation.detection.figures": str(outside), "loggers": ["mlflow"],
                    "evaluation.protocols": ["knn", "voc-detection"]}),
        ("topics", {"data.path": "hf:imdb", "data.download": True}),
        ("topics", {"encoder.name": "x/bert", "encoder.download": True}),
        ("atlas", {"data.name": "MUTAG", "data.download": True}),
        ("atlas", {"data.name": "MUTAG", "data.download": True, "data.cache": str(outside)}),
        ("chembl", {"data.cache": str(outside), "data.path": str(folder / "molecules.csv")}),
        ("chembl", {"data.cache": str(outside), "evaluation.protocols": ["finetune"]}),
    ]  # fmt: skip
    (folder / "molecules.csv").write_text("smiles\nCCO\nCCN\nCCC\nCCCl\n" * 20)
    runs = []
    for number, (base, values) in enumerate(changes):
        run = folder / f"hostile-{number}"
        shutil.copytree(folder / base, run)
        recipe = yaml.safe_load((run / "recipe.yaml").read_text())
        for key, value in values.items():
            *parents, last = key.split(".")
            section = recipe
            for parent in parents:
                section = section[parent]
            section[last] = value
        (run / "recipe.yaml").write_text(yaml.safe_dump(recipe))
        runs.append(run)
    shutil.rmtree(runs[6] / "checkpoints")
    (runs[6] / "encoder.safetensors").unlink()  # its encoder would be built anew
    return runs


@pytest.mark.slow
@pytest.mark.skipif(
    not all(map(find_spec, ("transformers", "torch_geometric", "rdkit"))), reason="needs all extras"
)
def test_no_command_on_a_strange_run_reaches_the_network_or_writes_elsewhere(
    tmp_path: Path,
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    small = {
        "digits": [*TINY, "epochs=1", "data.limit=70", "monitor_every=0"],
        "topics": ["encoder.width=16", "encoder.layers=1", "encoder.vocabulary=300",
                   "views.max_length=8", "epochs=1", "batch_size=512", "data.limit=600"],
        "atlas": ["epochs=1", "encoder.hidden=4", "data.limit=200"],
        "chembl": ["epochs=1", "encoder.hidden=8", "data.limit=100", "batch_size=32"],
    }  # fmt: skip
    knn = "evaluation.protocols=[knn]"
    made = [["train", name, *keys, knn, "--out", tmp_path / name] for name, keys in small.items()]
    done = python("offline.py", input=json.dumps([[*map(str, c)] for c in made]))
    assert json.loads(done.stdout) == [0] * len(made), done.stderr
    commands: list[list[str | Path]] = []
    for number, run in enumerate(hostile_runs(tmp_path, outside)):
        into = tmp_path / f"out-{number}"
        commands += [
            ["report", run, "--points", "20"],
            ["evaluate", run],
            ["diagnose", run, "--items", "32"],
            ["embed", run, tmp_path / "molecules.csv", "-o", tmp_path / f"{number}.npy"],
            ["search", run, "CCO", "--in", tmp_path / "none.npy"],
            ["export", run, into, "--no-onnx"],
            ["train", run, "--resume", "epochs=2"],
            ["adapt", run, "--data", tmp_path / "molecules.csv", "--out", f"{into}-adapted"],
            ["compare", run / "recipe.yaml", "epochs=1", "--seeds", "1", "--out", f"{into}-many"],
        ]
    done = python("offline.py", input=json.dumps([[*map(str, c)] for c in commands]))
    assert "NETWORK" not in done.stderr, done.stderr
    codes = json.loads(done.stdout)
    crashed = [c for c, code in zip(commands, codes, strict=True) if code not in (0, 2)]
    assert not crashed, done.stderr
    assert os.listdir(outside) == []
