"""`import macl` costs torch and no more."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

import macl

HEAVY = {
    "torchvision", "lightning", "pydantic", "sklearn", "scipy", "pandas", "pyarrow", "matplotlib",
    "transformers", "sentence_transformers", "torch_geometric", "rdkit", "typer", "rich", "yaml",
    "safetensors", "timm", "kornia", "lightly",
}  # fmt: skip


def modules_after(statement: str) -> set[str]:
    code = f"import sys, json; {statement}; print(json.dumps(sorted(sys.modules)))"
    source = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; sys.path.insert(0, {source!r}); {code}"],
        capture_output=True,
        text=True,
        check=True,
    )
    return {name.partition(".")[0] for name in json.loads(done.stdout)}


def test_importing_macl_brings_torch_and_nothing_heavier() -> None:
    more = modules_after("import macl") - modules_after("import torch")
    assert "macl" in more
    assert more & HEAVY == set()


@pytest.mark.parametrize("names", ["MACL", "diagnose", "MACL, UserError, diagnose"])
def test_importing_a_loss_or_the_diagnosis_brings_torch_and_nothing_heavier(names: str) -> None:
    statement = f"from macl import {names}; import torch; z = torch.eye(8)"
    if "diagnose" in names:
        statement += "; diagnose(z, z, temperature=0.5)"
    more = modules_after(statement) - modules_after("import torch")
    assert more & HEAVY == set()


def test_the_functions_are_there_before_torch_is() -> None:
    assert "torch" not in modules_after("import macl; macl.train, macl.compare, macl.UserError")


def test_the_public_names_are_there() -> None:
    for name in macl.__all__:
        assert hasattr(macl, name)
    for name in ("MACL", "NTXent", "InfoNCE", "DCL", "DCLW", "FlatNCE", "DualTemperature", "HCL"):
        assert issubclass(getattr(macl, name), macl.ContrastiveLoss)
