"""Input that is left out, read in another way or judged in another way is announced."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, features

import macl
import recipe_texts
from macl import recipes
from macl.core.errors import SkippedInputWarning, UserError
from macl.modalities.images.data import open_images
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.tables import read_table
from macl.training.fit import train
from tiny import HERE, recipe


def make_images(folder: Path, classes: int, each: int) -> Path:
    """Class folders of images with some noise."""
    generator = np.random.default_rng(0)
    for label in range(classes):
        (folder / f"class{label}").mkdir(parents=True)
        for number in range(each):
            pixels = generator.integers(0, 255, (16, 16, 3), dtype=np.uint8)
            pixels[..., 0] = 60 * label
            Image.fromarray(pixels).save(folder / f"class{label}" / f"{number}.png")
    return folder


def test_a_dropped_remainder_is_announced(tmp_path: Path) -> None:
    wanted = r"50 samples at batch_size=32 make 1 step an epoch and leave out 18 .*batch_size=25"
    with pytest.warns(SkippedInputWarning, match=wanted):
        train(recipe("epochs=1", "data.limit=50"), tmp_path / "a", compute=HERE)
    with warnings.catch_warnings():
        warnings.simplefilter("error", SkippedInputWarning)
        train(recipe("epochs=0", "data.limit=50", "batch_size=25"), tmp_path / "b", compute=HERE)
        train(recipe("epochs=0", "data.limit=50", "drop_last=false"), tmp_path / "c", compute=HERE)


def test_a_shortened_warm_up_is_announced() -> None:
    with pytest.warns(SkippedInputWarning, match=r"warmup_epochs=1 does not fit into 1 epoch of"):
        shortened = recipes.load("digits", {"epochs": 1})
    assert shortened.schedule.warmup_epochs == pytest.approx(0.1)


def test_files_that_are_no_images_are_counted(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", 1, 3)
    for number in range(2):
        (folder / f"{number}.heic").write_bytes(b"\0\0\0\x18ftypheic" + bytes(40))
    (folder / "notes.txt").write_text("not counted")
    with pytest.warns(SkippedInputWarning, match=r"2 files in .* are left out: 2 \.heic\."):
        images = open_images(ImageDataConfig(), folder)
    assert len(images) == 3


def test_images_are_known_by_their_content(tmp_path: Path) -> None:
    Image.new("RGB", (9, 7), "red").save(tmp_path / "red.png")
    (tmp_path / "red.png").rename(tmp_path / "red.download")
    if features.check("avif"):
        Image.new("RGB", (9, 7), "red").save(tmp_path / "blue.avif")
    images = open_images(ImageDataConfig(), tmp_path)
    assert len(images) == 1 + features.check("avif")
    assert all(images[number].shape == (3, 7, 9) for number in range(len(images)))


def test_the_only_column_of_a_table_is_read(tmp_path: Path) -> None:
    for name, text in (("a.csv", "sentence\none\ntwo\n"), ("a.jsonl", '{"sentence": "one"}\n')):
        (tmp_path / name).write_text(text)
        assert next(iter(read_table(tmp_path / name, ["text"]))) == ["one"]
        with pytest.raises(UserError, match="no column 'other'"):
            list(read_table(tmp_path / name, ["other"]))


def test_scores_say_what_made_them(tmp_path: Path) -> None:
    folder = make_images(tmp_path / "images", 2, 15)
    settings = [
        "epochs=0",
        "batch_size=15",
        "encoder.width=8",
        "views.size=16",
        f"data.path={folder}",
    ]
    run = train(recipe_texts.load("imagenette-small", settings), tmp_path / "run", compute=HERE)
    with pytest.warns(SkippedInputWarning, match="An encoder that was trained on these data"):
        scores = macl.evaluate(run, protocols=["knn"])
    before = macl.evaluate(
        encoder="resnet8", data=folder, protocols=["knn"], overrides={"views.size": 32}
    )
    for score, size in ((scores[0], 16), (before[0], 32)):
        assert score.details["input"]["size"] == size
        assert len(score.details["input"]["mean"]) == 3
        assert (score.details["device"], score.details["precision"]) == ("cpu", "float32")
        assert score.details["n_train"] + score.details["n_test"] == 30
    assert run.results()["scores"][0]["details"]["input"]["size"] == 16
