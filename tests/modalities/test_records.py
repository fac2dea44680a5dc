"""Shards and Hugging Face data sets: pairs, pictures, texts, broken and hostile input."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tarfile
from pathlib import Path

import pytest
import torch

import recipe_texts
from macl.core.errors import SkippedInputWarning, UserError
from macl.core.sharding import ShardedBatches
from macl.modalities.image_text.data import load_pairs, open_side
from macl.modalities.image_text.sections import PairDataConfig
from macl.modalities.images.data import load_images, open_images
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.records import expand_braces, open_records
from macl.modalities.shards import TarRecords
from macl.modalities.text.data import load_text
from macl.modalities.text.sections import TextDataConfig
from macl.runs import Run
from macl.training.fit import train
from macl.training.loader import ResumableLoader
from small_pairs import COLORS, picture
from small_shards import add, color_shards
from tiny import HERE, Command, assert_same, run_commands, state_of


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def test_braces_stand_for_numbered_files() -> None:
    assert expand_braces(Path("a-{08..11}.tar")) == [
        Path(f"a-{n}.tar") for n in ("08", "09", "10", "11")
    ]
    assert len(expand_braces(Path("{0..2}/{0..3}.tar"))) == 12
    assert expand_braces(Path("plain.tar")) == [Path("plain.tar")]
    assert expand_braces(Path("{0..99999999999}.tar")) == [Path("{0..99999999999}.tar")]


@pytest.mark.parametrize("form", ["pattern", "folder", "file"])
def test_pairs_of_shards(tmp_path: Path, form: str) -> None:
    pattern = color_shards(tmp_path / "s", shards=1 if form == "file" else 3)
    path = {"pattern": pattern, "folder": pattern.parent, "file": tmp_path / "s/colors-0.tar"}[form]
    pairs = load_pairs(PairDataConfig(path=path), "train")
    test = load_pairs(PairDataConfig(path=path), "test")
    assert (len(pairs), len(test)) == (30, 10)
    assert sorted(pairs.classes) == sorted(COLORS)
    for place in (0, 17, 29):
        color = pairs.names[place].split("/")[1][:-1]
        assert pairs.captions[place] == (f"a {color} square",)
        mean = pairs[place][0].float().mean(dim=(1, 2))
        assert (mean - torch.tensor(COLORS[color]).float()).abs().max() < 12
    by_concept = {n.split("/")[1][:-1]: g for n, g in zip(pairs.names, pairs.groups, strict=True)}
    assert len({int(g) for g in by_concept.values()}) == len(COLORS)


def test_shards_without_a_split_are_divided_by_concept(tmp_path: Path) -> None:
    config = PairDataConfig(path=color_shards(tmp_path, split=False), holdout=0.3)
    one, two = load_pairs(config, "train"), load_pairs(config, "test")
    assert (len(one), len(two)) == (28, 12)
    assert not set(one.groups.tolist()) & set(two.groups.tolist())


@pytest.mark.parametrize(("world", "workers"), [(1, 0), (2, 0), (4, 0), (2, 2)])
def test_every_sample_is_seen_once_by_any_number_of_processes(
    tmp_path: Path, world: int, workers: int
) -> None:
    pairs = load_pairs(PairDataConfig(path=color_shards(tmp_path), holdout=0), "train")
    seen: list[int] = []
    for rank in range(world):
        batches = ShardedBatches(len(pairs), 4, 0, rank, world, drop_last=False)
        for batch in ResumableLoader(pairs, batches, workers):
            seen += batch.indices.tolist()
            for index, captions in zip(batch.indices, batch.inputs.captions, strict=True):
                assert captions == pairs.captions[int(index)]
    assert len(seen) == len(set(seen)) >= 28


def test_the_index_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pattern = color_shards(tmp_path / "s")
    first = open_records(pattern)
    monkeypatch.setattr("macl.modalities.shards.index_shards", None)
    again = open_records(pattern)
    assert isinstance(first, TarRecords)
    assert isinstance(again, TarRecords)
    assert again.image(7) == first.image(7)
    assert again.name(39) == first.name(39)
    copied = pickle.loads(pickle.dumps(again))
    assert copied.fields(3) == first.fields(3)
    # A changed archive is indexed anew.
    os.utime(tmp_path / "s/colors-1.tar", ns=(1, 1))
    with pytest.raises(TypeError):
        open_records(pattern)


def test_pictures_alone_and_texts_alone(tmp_path: Path) -> None:
    pattern = color_shards(tmp_path)
    images = load_images(ImageDataConfig(path=pattern), "train")
    assert (len(images), len(images.classes)) == (30, 10)
    assert len(load_images(ImageDataConfig(path=pattern), "test")) == 10
    assert len(open_images(ImageDataConfig(), tmp_path)) == 40
    texts = load_text(TextDataConfig(path=pattern, label="concept"), "train")
    assert len(texts) == 30
    assert texts.names[0] == "a red square"
    assert len(load_text(TextDataConfig(path=pattern), "test")) == 10
    assert len(load_text(TextDataConfig(path=pattern, column="concept"), "train")) == 30
    assert len(open_side(PairDataConfig(side="text"), tmp_path)) == 10


def test_broken_members_are_counted_and_listed(tmp_path: Path) -> None:
    color_shards(tmp_path, shards=1)
    path = tmp_path / "colors-0.tar"
    picture(tmp_path / "p.png", "red", 0)
    whole = (tmp_path / "p.png").read_bytes()
    with tarfile.open(path, "a") as archive:
        add(archive, "unreadable.png", whole[:60])
        add(archive, "unreadable.txt", b"a caption")
        add(archive, "silent.png", whole)
        add(archive, "latin.png", whole)
        add(archive, "latin.txt", "caf\u00e9".encode("latin-1"))
        add(archive, "odd.png", whole)
        add(archive, "odd.txt", b"a caption")
        add(archive, "odd.json", b"[1, 2]")
    with pytest.raises(UserError, match=r"3 of 34 pairs cannot be used") as caught:
        load_pairs(PairDataConfig(path=path), "train")
    for name in ("unreadable: its picture", "silent has no caption", "latin has no caption"):
        assert name in str(caught.value)
    with pytest.warns(SkippedInputWarning, match="3 of 34"):
        assert len(load_pairs(PairDataConfig(path=path, on_error="skip"), "train")) == 31


@pytest.mark.parametrize("keep", [0.3, 0.71, 0.97])
def test_a_truncated_archive_gives_what_is_whole(tmp_path: Path, keep: float) -> None:
    color_shards(tmp_path, shards=1, split=False)
    path = tmp_path / "colors-0.tar"
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    config = PairDataConfig(path=path, holdout=0, on_error="skip")
    if keep < 0.9:
        with pytest.warns(SkippedInputWarning, match="pairs cannot be used"):
            pairs = load_pairs(config, "train")
    else:
        pairs = load_pairs(config, "train")
    assert 40 * keep * 0.7 < len(pairs) <= 40
    for place in range(len(pairs)):
        assert pairs[place][0].shape == (3, 12, 12)
    path.write_bytes(b"not a tar at all" * 100)
    with (
        pytest.warns(SkippedInputWarning, match="invalid header"),
        pytest.raises(UserError, match="no pair"),
    ):
        load_pairs(config, "train")


def test_members_cannot_reach_outside(tmp_path: Path) -> None:
    secret = tmp_path / "secret.txt"
    secret.write_text("secret")
    picture(tmp_path / "p.png", "red", 0)
    whole = (tmp_path / "p.png").read_bytes()
    folder = tmp_path / "shards"
    folder.mkdir()
    with tarfile.open(folder / "a.tar", "w") as archive:
        add(archive, "../../outside.png", whole)
        add(archive, "../../outside.txt", b"one")
        add(archive, "/absolute.png", whole)
        add(archive, "/absolute.txt", b"two")
        add(archive, "link.png", whole)
        link = tarfile.TarInfo("link.txt")
        link.type, link.linkname = tarfile.SYMTYPE, str(secret)
        archive.addfile(link)
    before = sorted(tmp_path.rglob("*"))
    config = PairDataConfig(path=folder, holdout=0, on_error="skip")
    with pytest.warns(SkippedInputWarning, match="link has no caption"):
        pairs = load_pairs(config, "train")
    assert [pairs.captions[i] for i in range(2)] == [("one",), ("two",)]
    after = sorted(p for p in tmp_path.rglob("*") if "cache" not in p.parts)
    assert after == before


def test_samples_are_grouped_as_webdataset_does(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as archive:
        for name in (
            "d.1/a.txt",
            "d.1/a.x.json",
            "d.1/b.txt",
            "c.cls",
            "c.txt",
            "folder.txt/e.txt",
        ):
            add(archive, name, b"{}" if name.endswith("json") else b"7")
    records = TarRecords([tmp_path / "a.tar"], "a")
    assert [records.name(i) for i in range(len(records))] == [
        "a.tar/d.1/a", "a.tar/d.1/b", "a.tar/c", "a.tar/folder.txt/e",
    ]  # fmt: skip
    assert records.fields(2) == {"cls": "7", "txt": "7"}


def test_training_on_shards_resumes_to_the_bit(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pattern = color_shards(tmp_path / "s")
    small = [
        f"data.path={pattern}", "batch_size=10", "views.image.size=8", "encoder.image.width=8",
        "encoder.text.width=16", "encoder.text.layers=1", "encoder.text.heads=2",
        "encoder.text.vocabulary=100", "encoder.dim=16", "monitor_every=0",
        "schedule.name=constant", "schedule.warmup_epochs=0",
    ]  # fmt: skip
    whole, cut = (recipe_texts.load("clip-small", [*small, f"epochs={n}"]) for n in (2, 1))
    one = train(whole, tmp_path / "one", compute=HERE)
    train(cut, tmp_path / "two", compute=HERE)
    two = train(whole, tmp_path / "two", resume=True, compute=HERE)
    assert_same(state_of(one)["state_dict"], state_of(two)["state_dict"])


def hugging_face(folder: Path, kind: str) -> Path:
    """A data set of colors as the library writes it."""
    datasets = pytest.importorskip("datasets")
    rows: dict[str, list[dict[str, object]]] = {"train": [], "test": []}
    for number in range(4):
        for color in COLORS:
            picture(folder / "p.png", color, number)
            image = {"bytes": (folder / "p.png").read_bytes(), "path": None}
            fields = {"image": image, "caption": f"a {color} square", "concept": color}
            rows["test" if number == 3 else "train"].append(fields)
    (folder / "p.png").unlink()
    made = {
        name: datasets.Dataset.from_list(part).cast_column("image", datasets.Image(decode=False))
        for name, part in rows.items()
    }
    if kind == "parquet":
        made["train"].to_parquet(folder / "train.parquet")
        return folder / "train.parquet"
    target = folder / "stored"
    datasets.DatasetDict(made).save_to_disk(target)
    return target


def test_hugging_face_data_sets_on_disk(tmp_path: Path) -> None:
    path = hugging_face(tmp_path, "disk")
    pairs = load_pairs(PairDataConfig(path=path), "train")
    assert (len(pairs), len(load_pairs(PairDataConfig(path=path), "test"))) == (30, 10)
    assert pairs.captions[0] == ("a red square",)
    assert pairs[0][0].shape == (3, 12, 12)
    assert len(load_images(ImageDataConfig(path=path), "train")) == 30
    texts = load_text(TextDataConfig(path=path, column="caption"), "test")
    assert len(texts) == 10


def test_parquet_with_pictures(tmp_path: Path) -> None:
    path = hugging_face(tmp_path, "parquet")
    pairs = load_pairs(PairDataConfig(path=path, holdout=0), "train")
    assert len(pairs) == 30
    assert pairs[3][0].shape == (3, 12, 12)
    assert json.dumps(pairs.captions[3]) == '["a yellow square"]'


def test_missing_shards_are_named(tmp_path: Path) -> None:
    color_shards(tmp_path)
    with pytest.raises(UserError, match=r"colors-3\.tar does not exist"):
        load_pairs(PairDataConfig(path=tmp_path / "colors-{0..3}.tar"), "train")
    with tarfile.open(tmp_path / "only.tar", "w") as archive:
        add(archive, "a.txt", b"no picture")
    with pytest.raises(UserError, match=r"(?s)1 of 1 records.*has no picture"):
        load_images(ImageDataConfig(path=tmp_path / "only.tar"), "train")


@pytest.mark.slow
def test_killed_on_shards_and_resumed_to_the_bit(tmp_path: Path) -> None:
    """kill -9 in mid-epoch, with and without reading processes; the same as never killed."""
    pytest.importorskip("transformers")
    pattern = color_shards(tmp_path / "s")
    made = [
        f"data.path={pattern}", "batch_size=6", "views.image.size=8", "views.image.preset=clip",
        "encoder.image={name: fragile:resnet, allow_import: true}", "encoder.text.width=16",
        "encoder.text.layers=1", "encoder.text.heads=2", "encoder.text.vocabulary=100",
        "encoder.dim=16", "encoder.hidden=[]", "monitor_every=0", "epochs=3", "save_every=2",
    ]  # fmt: skip
    struck = {"FRAGILE_AT": "8", "FRAGILE_SIGNAL": str(int(signal.SIGKILL))}
    folders = [tmp_path / "killed", tmp_path / "workers"]
    done = run_commands(
        Command(["train", "clip-small", *made, "--out", folders[0]], struck),
        Command(["train", "clip-small", *made, "workers=2", "--out", folders[1]], struck),
    )
    whole = train(recipe_texts.load("clip-small", made), tmp_path / "whole", compute=HERE)
    expected = state_of(whole)
    assert expected["global_step"] == 15
    for folder, end in zip(folders, done, strict=True):
        assert end.code == -signal.SIGKILL, end.stderr
        run = Run(folder)
        assert 0 < state_of(run)["global_step"] < 8
        again = train(run.recipe, folder, resume=True, compute=HERE)
        assert_same(expected["state_dict"], state_of(again)["state_dict"])


def test_parquet_without_the_column_names_those_it_has(tmp_path: Path) -> None:
    path = hugging_face(tmp_path, "parquet")
    with pytest.raises(UserError, match=r"no field 'subtitle'.*caption, concept"):
        load_pairs(PairDataConfig(path=path, holdout=0, caption=("subtitle",)), "train")
    with pytest.raises(UserError, match="picture"):
        load_pairs(PairDataConfig(path=path, holdout=0, image="picture"), "train")
    pandas = pytest.importorskip("pandas")
    table = tmp_path / "texts.parquet"
    pandas.DataFrame({"file": ["a.png"], "words": ["a"]}).to_parquet(table)
    with pytest.raises(UserError, match=r"no column for the caption.*data\.caption.*file, words"):
        load_pairs(PairDataConfig(path=table), "train")
