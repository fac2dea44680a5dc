"""An export of every modality has a model card that says what it is and how it was made."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

import macl
from macl.core import plugins
from macl.runs.export import export_run
from test_export_others import untrained

EXPORTS = {
    "images": ("digits", "torch", ("encoder.width=16",)),
    "text": ("topics", "transformers", ("encoder.width=16", "encoder.vocabulary=200")),
    "graphs": ("atlas", "torch_geometric", ("encoder.hidden=8",)),
    "molecules": ("chembl", "rdkit", ("encoder.hidden=8", "data.limit=50")),
    "image-text": ("digits-captions", "transformers", ("data.limit=100",)),
}
"""A recipe of each modality, the library that it needs, and overrides that make it small."""


def test_every_modality_is_here() -> None:
    assert set(EXPORTS) == set(plugins.BUILT_IN["macl.modalities"])


@pytest.mark.parametrize("modality", EXPORTS)
def test_an_export_has_a_card(modality: str, tmp_path: Path) -> None:
    recipe, library, small = EXPORTS[modality]
    pytest.importorskip(library)
    run = untrained(recipe, tmp_path / "run", *small)
    lines = export_run(run, tmp_path / "out", onnx=False, licence="mit")
    assert lines[-1] == "README.md: the model card"
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    _, header, text = card.split("---\n", 2)
    values = yaml.safe_load(header)
    assert values["license"] == "mit"
    assert values["library_name"] == run.modality.library
    assert run.recipe.loss.name in values["tags"]
    assert f"An encoder of {modality}, trained without labels by simclr" in text
    assert f"(macl {macl.__version__})" in text
    for line in lines[:-1]:
        assert f"- {line}" in text
        assert (tmp_path / "out" / line.partition(":")[0]).exists()
    assert "Not evaluated yet" in text
    assert str(tmp_path) not in card


def test_a_card_of_a_loss_with_labels_says_so(tmp_path: Path) -> None:
    run = untrained("digits", tmp_path / "run", "encoder.width=16", "loss=supcon")
    export_run(run, tmp_path / "out", onnx=False)
    assert "trained with labels by simclr" in (tmp_path / "out" / "README.md").read_text()
