"""Image data: folders, splits, subsets, and opening anything to embed it."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from torch.utils.data import DataLoader

from macl.core import errors
from macl.core.errors import UserError
from macl.modalities.images.data import (
    ImageDataConfig,
    _members,
    load_for_evaluation,
    load_images,
    open_images,
)
from macl.modalities.images.sources import ImageFiles
from macl.modalities.protocols import Dataset


def save(path: Path, shade: int = 0, size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 10, 20)).save(path)
    return path


def class_folders(root: Path, *splits: str, each: int = 2) -> Path:
    for split in splits:
        for shade, name in enumerate(["cat", "dog"]):
            for i in range(each):
                save(root / split / name / f"{i}.png", 100 * shade + i)
    return root


def truncated(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.effect_noise((64, 64), 50).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


def config(path: Path | None = None, **options: object) -> ImageDataConfig:
    return ImageDataConfig.model_validate({"path": path, **options})


def test_plain_folder_is_the_train_split_without_labels(tmp_path: Path) -> None:
    save(tmp_path / "b.png", 2)
    save(tmp_path / "deep" / "er" / "a.PNG", 1)
    save(tmp_path / ".hidden.png")
    (tmp_path / "notes.txt").write_text("no image")
    images = load_images(config(tmp_path), "train")
    assert isinstance(images, Dataset)
    assert images.names == ["b.png", "deep/er/a.PNG"]
    assert images.labels is None
    assert [int(images[i][0, 0, 0]) for i in range(2)] == [2, 1]
    with pytest.raises(UserError, match=r"no test split.*data\.test_path"):
        load_images(config(tmp_path), "test")


def test_split_and_class_folders(tmp_path: Path) -> None:
    class_folders(tmp_path, "train", "val")
    train, test = (load_images(config(tmp_path), split) for split in ("train", "test"))
    assert train.names == [
        "train/cat/0.png",
        "train/cat/1.png",
        "train/dog/0.png",
        "train/dog/1.png",
    ]
    assert test.names[0] == "val/cat/0.png"
    assert train.labels is not None
    assert train.labels.tolist() == [0, 0, 1, 1]
    assert train.labels.dtype == torch.int64
    with pytest.raises(UserError, match=r"no validation split.*data\.holdout"):
        load_images(config(tmp_path), "validation")


def test_val_beside_test_is_validation(tmp_path: Path) -> None:
    class_folders(tmp_path, "train", "val", "test")
    assert load_images(config(tmp_path), "validation").names[0] == "val/cat/0.png"
    assert load_images(config(tmp_path), "test").names[0] == "test/cat/0.png"


def test_classes_have_one_number_in_all_splits(tmp_path: Path) -> None:
    class_folders(tmp_path, "train")
    save(tmp_path / "test" / "dog" / "0.png")
    save(tmp_path / "test" / "eel" / "0.png")
    labels = load_images(config(tmp_path), "test").labels
    assert labels is not None
    assert labels.tolist() == [1, 2]


def test_a_list_leaves_the_other_classes_out(tmp_path: Path) -> None:
    """As ImageNet-100 of ImageNet-1K; what follows the folder's name in a line is a remark."""
    root = class_folders(tmp_path / "data", "train", "val")
    save(root / "train" / "owl" / "0.png")
    listed = tmp_path / "list.txt"
    listed.write_text("dog a domestic animal\n\nowl\n")
    train = load_images(config(root, classes=listed), "train")
    assert train.names == ["train/dog/0.png", "train/dog/1.png", "train/owl/0.png"]
    assert list(train.classes) == ["dog", "owl"]
    assert load_images(config(root, classes=listed), "test").labels.tolist() == [0, 0]
    for text, words in (("bat\n", "names bat, which is not a class folder"), ("\n", "no class;")):
        listed.write_text(text)
        with pytest.raises(UserError, match=words):
            load_images(config(root, classes=listed), "train")


@pytest.mark.parametrize("stray", ["stray.png", None])
def test_folders_that_are_no_classes_give_no_labels(tmp_path: Path, stray: str | None) -> None:
    save(tmp_path / "photos" / "0.png")
    save(tmp_path / "photos" / "1.png")
    if stray:
        save(tmp_path / "more" / "0.png")
        save(tmp_path / stray)
    assert load_images(config(tmp_path), "train").labels is None


def test_named_splits_and_test_path(tmp_path: Path) -> None:
    class_folders(tmp_path / "a", "fit", "judge")
    class_folders(tmp_path / "b", each=1)
    class_folders(tmp_path, "b", each=1)
    named = config(tmp_path / "a", train_split="fit", test_split="judge")
    assert load_images(named, "train").names[0] == "fit/cat/0.png"
    assert load_images(named, "test").names[0] == "judge/cat/0.png"
    apart = config(tmp_path / "a", train_split="fit", test_path=tmp_path / "b")
    assert load_images(apart, "test").names == ["cat/0.png", "dog/0.png"]


def test_a_class_called_train_can_be_kept(tmp_path: Path) -> None:
    for name in ("plane", "train"):
        save(tmp_path / name / "0.png")
    images = load_images(config(tmp_path, train_split="."), "train")
    assert images.names == ["plane/0.png", "train/0.png"]
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1]


def test_wrong_split_names(tmp_path: Path) -> None:
    class_folders(tmp_path, "train", "val")
    with pytest.raises(UserError, match=r"'trian'.*Did you mean 'train'"):
        load_images(config(tmp_path, train_split="trian"), "train")
    with pytest.raises(UserError, match=r"'vall'.*Did you mean 'val'"):
        load_images(config(tmp_path, test_split="vall"), "test")
    class_folders(tmp_path / "only", "val")
    with pytest.raises(UserError, match="no train split"):
        load_images(config(tmp_path / "only"), "train")


def test_missing_empty_and_single(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="nowhere does not exist"):
        load_images(config(tmp_path / "nowhere"), "train")
    with pytest.raises(UserError, match="no image in"):
        load_images(config(tmp_path), "train")
    save(tmp_path / "0.png")
    with pytest.raises(UserError, match="has 1 images and needs 2"):
        load_images(config(tmp_path), "train")
    with pytest.raises(UserError, match="is a file"):
        load_images(config(tmp_path / "0.png", source="folder"), "train")


def test_linked_folders_are_followed_once(tmp_path: Path) -> None:
    store = class_folders(tmp_path / "store", ".")
    (tmp_path / "subset").mkdir()
    for name in ("cat", "dog"):
        (tmp_path / "subset" / name).symlink_to(store / name, target_is_directory=True)
    (store / "dog" / "loop").symlink_to(tmp_path / "subset", target_is_directory=True)
    images = load_images(config(tmp_path / "subset"), "train")
    assert images.names == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]


def test_broken_files_fail_or_are_skipped(tmp_path: Path) -> None:
    class_folders(tmp_path, ".")
    truncated(tmp_path / "cat" / "bad.jpg")
    (tmp_path / "dog" / "text.png").write_text("hello")
    with pytest.raises(UserError, match=r"(?s)2 of 6 .*bad\.jpg.*text\.png.*on_error=skip"):
        load_images(config(tmp_path), "train")
    with pytest.warns(UserWarning, match=r"(?s)bad\.jpg.*text\.png"):
        images = load_images(config(tmp_path, on_error="skip"), "train")
    assert images.names == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert images.labels is not None
    assert images.labels.tolist() == [0, 0, 1, 1]


def test_many_broken_files_are_counted(tmp_path: Path) -> None:
    for i in range(errors.REPORTED + 3):
        (tmp_path / f"{i}.png").write_text("hello")
    with pytest.raises(UserError, match="and 3 more"):
        load_images(config(tmp_path), "train")
    with (
        pytest.warns(UserWarning, match="skipped"),
        pytest.raises(UserError, match="has 0 images"),
    ):
        load_images(config(tmp_path, on_error="skip"), "train")


def test_batches_from_worker_processes(tmp_path: Path) -> None:
    save(tmp_path / "a.png", 1, size=(6, 4))
    save(tmp_path / "b.png", 2, size=(3, 8))
    images = load_images(config(tmp_path), "train")
    (batch,) = DataLoader(images, batch_size=2, collate_fn=images.collate, num_workers=1)  # type: ignore[arg-type,var-annotated]
    assert batch.pixels.shape == (2, 3, 8, 6)
    assert batch.sizes.tolist() == [[4, 6], [8, 3]]
    assert batch.pixels[0, 0, :4].eq(1).all()
    assert batch.pixels[0, :, 4:].eq(0).all()


@given(
    count=st.integers(2, 300),
    holdout=st.floats(0, 0.9),
    limit=st.none() | st.integers(1, 400),
    seed=st.integers(0, 5),
)
@settings(max_examples=60, deadline=None)
def test_memberss_divide_the_pool(count: int, holdout: float, limit: int | None, seed: int) -> None:
    options = config(holdout=holdout, limit=limit, seed=seed)
    train, held = (
        _members(count, options, split).tolist() if split == "train" or holdout else []
        for split in ("train", "validation")
    )
    pool = min(count, limit or count)
    assert not set(train) & set(held)
    assert len({*train, *held}) == len(train) + len(held) == pool
    assert len(held) == round(holdout * pool)
    assert train == sorted(train)
    assert set(train) <= set(range(count))
    assert train == _members(count, options, "train").tolist()


def test_holdout_and_limit() -> None:
    options = ImageDataConfig(holdout=0.25, limit=100)
    train, held, test = (load_images(options, split) for split in ("train", "validation", "test"))
    assert (len(train), len(held), len(test)) == (75, 25, 100)
    assert not set(train.names) & set(held.names)
    assert held.names[0].startswith("train/")
    assert load_images(options.model_copy(update={"seed": 1}), "train").names != train.names
    whole = load_images(ImageDataConfig(), "train")
    index = list(whole.names).index(train.names[7])
    assert torch.equal(train[7], whole[index])
    assert train.labels is not None
    assert whole.labels is not None
    assert train.labels[7] == whole.labels[index]
    with pytest.raises(UserError, match=r"data\.holdout"):
        load_images(ImageDataConfig(), "validation")
    with pytest.raises(UserError, match="has 0 images"):
        load_images(ImageDataConfig(holdout=0.01, limit=10), "validation")


def test_the_global_generator_is_left_alone(tmp_path: Path) -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    load_images(ImageDataConfig(holdout=0.1, limit=50), "train")
    assert torch.equal(before, torch.get_rng_state())


def test_open_image_folder_and_npz(tmp_path: Path) -> None:
    class_folders(tmp_path, ".")
    small = ImageDataConfig(holdout=0.5, max_side=2)
    assert open_images(small, tmp_path / "cat" / "1.png").names == ["1.png"]
    folder = open_images(small, tmp_path)
    assert isinstance(folder, ImageFiles)
    assert folder.names == ["cat/0.png", "cat/1.png", "dog/0.png", "dog/1.png"]
    assert folder.labels is not None
    assert folder[0].shape == (3, 2, 3)
    np.savez(tmp_path / "mine.npz", images=np.zeros((5, 4, 6), dtype=np.uint8))
    arrays = open_images(small, tmp_path / "mine.npz")
    assert arrays.names[4] == "mine/000004"
    assert arrays[0].shape == (3, 2, 3)


def test_open_honors_the_limit(tmp_path: Path) -> None:
    class_folders(tmp_path, ".")
    np.savez(tmp_path / "mine.npz", images=np.zeros((5, 4, 6), dtype=np.uint8))
    for path in (tmp_path, tmp_path / "mine.npz"):
        assert len(open_images(ImageDataConfig(limit=2), path)) == 2


def test_few_broken_files_are_skipped_and_many_are_not(tmp_path: Path) -> None:
    for i in range(200):
        save(tmp_path / f"{i}.png", i)
    for i in range(2):
        (tmp_path / f"{i}.png").write_text("hello")
    with pytest.warns(UserWarning, match=r"(?s)2 of 200 .*skipped"):
        assert len(load_images(config(tmp_path), "train")) == 198
    (tmp_path / "2.png").write_text("hello")
    with pytest.raises(UserError, match=r"(?s)3 of 200 .*At most 1% may be skipped"):
        load_images(config(tmp_path), "train")


def test_class_folders_without_a_test_split_are_divided(tmp_path: Path) -> None:
    for name in ("cat", "dog"):
        (tmp_path / name).mkdir()
        for i in range(10):
            save(tmp_path / name / f"{i}.png", i)
    with pytest.warns(UserWarning, match=r"4 of the 20 .*without their labels.*data\.holdout"):
        train, test, split = load_for_evaluation(config(tmp_path), "test")
    assert (len(train), len(test), split) == (16, 4, "holdout")
    assert not {*train.names} & {*test.names}
    assert torch.equal(torch.bincount(test.labels), torch.tensor([2, 2]))
    apart = config(tmp_path, holdout=0.2)
    train, test, split = load_for_evaluation(apart, "test")
    assert split == "validation"
    assert {*train.names} == {*load_images(apart, "train").names}
    assert not {*train.names} & {*test.names}
    with pytest.raises(UserError, match=r"no test split called 'exam'"):
        load_for_evaluation(config(tmp_path, test_split="exam"), "test")


def test_a_missing_test_split_without_classes_names_the_remedies(tmp_path: Path) -> None:
    for i in range(4):
        save(tmp_path / f"{i}.png", i)
    with pytest.raises(UserError, match=r"data\.holdout=0\.2 .*evaluation\.split=validation"):
        load_for_evaluation(config(tmp_path), "test")


def test_open_what_cannot_be_opened(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    with pytest.raises(UserError, match=r"notes\.txt cannot be read"):
        open_images(ImageDataConfig(), tmp_path / "notes.txt")
    with pytest.raises(UserError, match="does not exist"):
        open_images(ImageDataConfig(), tmp_path / "nowhere")
    with pytest.raises(UserError, match="no image in"):
        open_images(ImageDataConfig(), tmp_path)
    (tmp_path / "bad.png").write_text("hello")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(UserError, match=r"no image in .* can be read"):
            open_images(ImageDataConfig(on_error="skip"), tmp_path)
