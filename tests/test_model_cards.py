"""An export of every modality has a model card that says what it is and how it was made."""

from __future__ import annotations

import ast
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
    assert set(EXPORTS) == set(plugins.MODALITIES)


def undefined(text: str) -> set[str]:
    """Names that the code of a card uses without an import or an assignment."""
    tree = ast.parse(text.partition("```python\n")[2].partition("```")[0])
    names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    known = {alias.name for node in imports for alias in node.names}
    known |= {name.id for name in names if isinstance(name.ctx, ast.Store)}
    return {name.id for name in names} - known


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
    assert f"An encoder of {modality}: " in text
    assert "dimensions, trained without labels by simclr" in text
    assert f"(macl {macl.__version__})" in text
    for line in lines[:-1]:
        assert f"- {line}" in text
        assert (tmp_path / "out" / line.partition(":")[0]).exists()
    assert "Not evaluated yet" in text
    assert undefined(text) <= {"items", "sentences", "images", "image"}
    assert str(tmp_path) not in card


def test_a_card_of_a_timm_network_loads_and_prepares_as_timm_does(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    small = ("encoder.name=timm:resnet18", "encoder.stem=imagenet", "views.size=48")
    run = untrained("digits", tmp_path / "run", *small)
    export_run(run, tmp_path / "out", onnx=False)
    card = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert "library_name: timm" in card
    assert undefined(card) <= {"image"}
    assert "An encoder of images: timm:resnet18, " in card
    assert "48" in card.partition("Preprocessing:")[2].partition("\n")[0]
    assert (tmp_path / "out" / "config.json").is_file()
    model = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True)
    assert list(timm.data.resolve_model_data_config(model)["input_size"]) == [3, 48, 48]


def test_a_card_of_a_loss_with_labels_says_so(tmp_path: Path) -> None:
    run = untrained("digits", tmp_path / "run", "encoder.width=16", "loss=supcon")
    export_run(run, tmp_path / "out", onnx=False)
    assert "trained with labels by simclr" in (tmp_path / "out" / "README.md").read_text()
