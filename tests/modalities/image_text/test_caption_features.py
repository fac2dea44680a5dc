"""Captions through a frozen text tower once: the same training, less work."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipe_texts
from macl import modalities, recipes
from macl.modalities.image_text.towers import FEATURES, TwoTowers
from macl.runs import Run
from macl.training.fit import train
from small_pairs import color_pairs
from tiny import HERE, assert_same, state_of

pytest.importorskip("transformers")

SMALL = (
    "epochs=2",
    "batch_size=10",
    "views.image.size=8",
    "encoder.image.width=8",
    "encoder.text.width=16",
    "encoder.text.layers=1",
    "encoder.text.heads=2",
    "encoder.text.vocabulary=100",
    "encoder.dim=16",
    "encoder.frozen=[text]",
    "monitor_every=0",
    "save_every=2",
)


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return color_pairs(tmp_path_factory.mktemp("colors"))


def small(path: Path, *overrides: str) -> recipes.Recipe:
    return recipe_texts.load("clip-small", [f"data.path={path}", *SMALL, *overrides])


def calls_of_text_tower(run: recipes.Recipe, folder: Path) -> tuple[Run, int]:
    """The trained run, and how many captions its text tower encoded."""
    modality = modalities.get("image-text")
    torch.manual_seed(0)
    towers = modality.build_encoder(run.encoder, modality.load(run.data, "train"))
    assert isinstance(towers, TwoTowers)
    encoded: list[int] = []
    towers.text.register_forward_hook(lambda module, args, output: encoded.append(len(output)))
    return train(run, folder, compute=HERE, encoder=towers), sum(encoded)


def test_features_of_captions_are_those_of_the_tower(colors: Path, tmp_path: Path) -> None:
    kept, once = calls_of_text_tower(small(colors, "precision=64"), tmp_path / "kept")
    fresh, every = calls_of_text_tower(
        small(colors, "precision=64", "encoder.cache=0"), tmp_path / "fresh"
    )
    assert once == 10  # the distinct captions
    assert every == 2 * 30  # a caption for each picture in each of two epochs
    ours, theirs = kept.encoder.state_dict(), fresh.encoder.state_dict()
    for name, value in ours.items():
        torch.testing.assert_close(value, theirs[name], atol=1e-6, rtol=1e-6, msg=name)
    assert kept.metrics()[-1]["loss"] == pytest.approx(fresh.metrics()[-1]["loss"], abs=1e-6)


def test_a_resumed_run_with_features_is_the_same_to_the_bit(colors: Path, tmp_path: Path) -> None:
    constant = ("schedule.name=constant", "schedule.warmup_epochs=0")
    whole = train(small(colors, *constant), tmp_path / "whole", compute=HERE)
    train(small(colors, *constant, "epochs=1"), tmp_path / "parts", compute=HERE)
    parts = train(small(colors, *constant), tmp_path / "parts", resume=True, compute=HERE)
    assert_same(state_of(whole)["state_dict"], state_of(parts)["state_dict"])


def test_tokens_are_used_where_the_tower_is_trained_or_captions_are_many(colors: Path) -> None:
    modality = modalities.get("image-text")
    for overrides, key in (
        ((), FEATURES),
        (("encoder.frozen=[image]",), "input_ids"),
        (("encoder.cache=29",), "input_ids"),
        (("encoder.cache=30",), FEATURES),
    ):
        recipe = small(colors, *overrides)
        data = modality.load(recipe.data, "train")
        views = modality.build_views(recipe.views, modality.build_encoder(recipe.encoder, data))
        _, text = views(data.collate([data[0], data[1]]))
        assert key in text


def test_columns_join_to_one_caption(colors: Path) -> None:
    recipe = small(colors, "data.caption=[caption,concept]", "data.join=, ")
    data = modalities.get("image-text").load(recipe.data, "train")
    assert data.captions[0] == ("a red square, red",)
