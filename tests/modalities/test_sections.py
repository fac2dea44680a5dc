"""Recipe sections: typed without torch, old keys, other encoders, absolute paths."""

from __future__ import annotations

from pathlib import Path

import pytest

import recipe_texts
from macl import modalities, recipes
from macl.core import plugins
from macl.core.errors import UserError


@pytest.mark.parametrize("name", ["images", "text", "graphs", "molecules", "image-text"])
def test_a_modality_has_the_sections_that_recipes_are_typed_by(name: str) -> None:
    try:
        modality = modalities.get(name)
    except UserError as error:
        pytest.skip(str(error))
    assert modality.sections == plugins.sections(name)
    for key, section in modality.sections.items():
        fields = section.model_fields
        assert {"data": "limit", "evaluation": "protocols"}.get(key, next(iter(fields))) in fields


def test_an_old_key_is_rejected_with_the_new_one() -> None:
    with pytest.raises(UserError, match=r"evaluation\.tasks is now called evaluation\.protocols"):
        recipes.load("topics", {"evaluation.tasks": ["knn"]})
    with pytest.raises(UserError, match=r"evaluation\.tasks is now called evaluation\.protocols"):
        recipes.resolve(recipes.read("topics") | {"evaluation": {"tasks": ["knn"]}})


def test_another_encoder_drops_what_belonged_to_the_old_one() -> None:
    encoder = recipe_texts.load("digits", ["encoder.name=timm:resnet10t"]).encoder
    assert (encoder.name, encoder.width) == ("timm:resnet10t", None)
    kept = recipe_texts.load("digits", ["encoder.name=resnet14"]).encoder
    assert (kept.width, kept.stem) == (16, "cifar")
    both = ["encoder.stem=imagenet", "encoder.weights=w.pth", "encoder.name=resnet18"]
    named = recipe_texts.load("digits", both).encoder
    assert (named.stem, named.weights) == ("imagenet", Path("w.pth").absolute())
    text = recipe_texts.load("topics", ["encoder.width=64", "encoder.name=some/folder"]).encoder
    assert (text.width, text.pooling) == (64, "mean")


def test_timm_s_encoder_of_an_image_recipe_is_built() -> None:
    pytest.importorskip("timm")
    recipe = recipe_texts.load("digits", ["encoder.name=timm:resnet10t"])
    modality = modalities.get("images")
    assert modality.build_encoder(recipe.encoder, modality.load(recipe.data, "test")).out_dim == 512


@pytest.mark.parametrize("name", ["my #1 set", "a: b", "[x]", "~", "null", "ünï cödé"])
@pytest.mark.parametrize("recipe", ["cifar10-small", "topics", "atlas", "chembl"])
def test_relative_paths_are_stored_absolute_and_unchanged(
    recipe: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert str(recipe_texts.load(recipe, [f"data.path={name}"]).data.path) == str(tmp_path / name)


def test_a_path_below_the_home_folder_is_expanded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/someone")
    recipe = recipe_texts.load("atlas", ["data.path=~/graphs"])
    assert recipe.data.path == Path("/home/someone/graphs")
