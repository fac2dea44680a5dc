"""What answers before torch is imported, and what torch suffices for."""

from __future__ import annotations

import json
from typing import Any

import pytest

import macl
from shared import trained
from tiny import python, recipe

HEAVY = {
    "torchvision", "lightning", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib", "PIL",
    "transformers", "sentence_transformers", "torch_geometric", "rdkit", "timm", "kornia",
    "lightly", "faiss", "lancedb", "ray", "optuna", "submitit",
}  # fmt: skip
LIGHT_STAGES = {
    "package": {"torch", "numpy", "pydantic", "typer", "rich", "yaml"},
    "help_text": {"torch", "numpy", "pydantic"},
    "recipes": {"torch", "numpy"},
    "mistakes": {"torch", "numpy"},
    "losses": {"pydantic", "typer", "rich", "yaml", "safetensors"},
}
"""What each stage must do without, in addition to `HEAVY`."""
MISTAKES = [
    ("train", "digits", "epoch=3"),
    ("train", "digits", "loss.temprature=0.1"),
    ("train", "topics", "encoder.witdh=8"),
    ("train", "atlas", "views.droop_ratio=0.1"),
    ("train", "chembl", "data.colum=x"),
    ("compare", "digits", "--vary", "los=a,b"),
    ("compare", "digits", "--vary", "loss=macl", "epoch=1"),
    ("reproduce", "cifar10-reweighting", "epoch=1"),
    ("evaluate", "RUN", "kk=3"),
    ("embed", "RUN", "RUN", "-o", "v.npy", "data.limits=3"),
]


@pytest.fixture(scope="module")
def stages() -> dict[str, Any]:
    folder = trained(recipe("epochs=0")).folder
    given = [[str(folder) if part == "RUN" else part for part in each] for each in MISTAKES]
    done = python("import_stages.py", input=json.dumps(given))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("stage", LIGHT_STAGES)
def test_nothing_heavy_is_imported(stage: str, stages: dict[str, Any]) -> None:
    assert "macl" in stages["package"]["imported"]
    imported = set(stages[stage]["imported"])
    assert not imported & (HEAVY | LIGHT_STAGES[stage])


def test_the_help_names_the_commands(stages: dict[str, Any]) -> None:
    code, text = stages["help_text"]["result"]
    assert code == 0
    assert "train" in text


@pytest.mark.parametrize("number", range(len(MISTAKES)), ids=lambda n: " ".join(MISTAKES[n]))
def test_a_mistake_in_a_key_is_an_error(number: int, stages: dict[str, Any]) -> None:
    code, text = stages["mistakes"]["result"][number]
    assert code == 2
    assert "unknown key" in text


def test_the_public_names_are_there() -> None:
    for name in macl.__all__:
        assert hasattr(macl, name)
    for name in ("MACL", "NTXent", "InfoNCE", "DCL", "DCLW", "FlatNCE", "DualTemperature", "HCL"):
        assert issubclass(getattr(macl, name), macl.ContrastiveLoss)


@pytest.mark.parametrize("name", ["criteria", "integrations", "losses", "testing"])
def test_submodules_need_no_import_of_their_own(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(macl, name, raising=False)  # another test may have imported it
    assert getattr(macl, name).__name__ == f"macl.{name}"
