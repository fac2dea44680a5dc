"""The part of a page about pairs: retrieval both ways, both clouds, a small batch."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipe_texts
from macl.reporting.build import write_report
from macl.reporting.map import embedding_map
from macl.reporting.neighbors import BATCH, cross
from macl.runs import Run
from macl.training.fit import train
from small_pairs import color_pairs
from tiny import HERE, recipe

pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("crossing")
    made = recipe_texts.load(
        "clip-small",
        [
            f"data.path={color_pairs(folder)}", "batch_size=10", "epochs=1", "monitor_every=0",
            "views.image.size=8", "encoder.image.width=8", "encoder.text.width=16",
            "encoder.text.layers=1", "encoder.text.heads=2", "encoder.text.vocabulary=100",
            "encoder.dim=16",
        ],
    )  # fmt: skip
    return train(made, folder / "run", compute=HERE)


def test_examples_are_the_nearest_of_the_other_side(run: Run) -> None:
    shown = embedding_map(run, 100)
    found = cross(run, shown)
    assert found is not None
    data = run.modality.load(run.recipe.data, "test")
    texts = torch.nn.functional.normalize(run.embed(data.texts()), dim=1)
    assert found["texts"] == data.texts().names
    for query, near in found["to_texts"]:
        cosines = shown.vectors[query] @ texts.T
        assert near[0].number == int(cosines.argmax())
        assert near[0].cosine == pytest.approx(float(cosines.max()), abs=1e-5)
        for each in near:
            assert each.same == (found["texts"][each.number] in data.captions[query])
    for query, near in found["to_items"]:
        assert near[0].number == int((shown.vectors @ texts[query]).argmax())
    assert found["gap"] == pytest.approx(float((shown.vectors.mean(0) - texts.mean(0)).norm()))
    assert len(found["batch"]) == min(BATCH, 10)
    assert found["matrix"].count("<rect") == len(found["batch"]) ** 2
    assert found["clouds"].count("<circle") == len(shown)


def test_the_page_has_the_part_and_escapes_captions(run: Run, tmp_path: Path) -> None:
    (page,) = write_report(run.folder, tmp_path / "page.html")
    text = page.read_text()
    assert 'id="crossing"' in text
    assert text.count('<div class="crossed') >= 10
    assert "a red square" in text


def test_other_modalities_have_no_other_side(tmp_path: Path) -> None:
    run = train(recipe("epochs=0"), tmp_path / "run", compute=HERE)
    assert cross(run, embedding_map(run, 20)) is None
    (page,) = write_report(run.folder, tmp_path / "page.html", points=20)
    assert 'id="crossing"' not in page.read_text()
