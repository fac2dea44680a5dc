"""Image data of a recipe: what is stored where, and which images belong to which split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from macl.core.errors import UserError, nearest
from macl.core.section import Section
from macl.modalities.images.decode import shrink
from macl.modalities.images.sources import (
    CIFAR,
    ImageFiles,
    ImageTensors,
    read_cifar,
    read_digits,
    read_folder,
    read_npz,
    subfolders,
)
from macl.modalities.protocols import Dataset

SPLITS = ("train", "validation", "test")
VALIDATION_NAMES = ("val", "validation")
TEST_NAMES = ("test", *VALIDATION_NAMES)


class ImageDataConfig(Section):
    """Where the images come from and which of them belong to which split."""

    source: Literal["auto", "digits", "npz", "folder", "cifar10", "cifar100"] = Field(
        "auto", description="What path holds; auto looks, and without a path means digits."
    )
    path: Path | None = Field(
        None,
        description="A folder of images, with or without split and class folders; an .npz file or a"
        " folder with train.npz and test.npz; the folder that holds CIFAR's own folder.",
    )
    test_path: Path | None = Field(
        None, description="Test images, a folder or an .npz file, when they are not beside path."
    )
    train_split: str | None = Field(
        None,
        description="Sub-folder (or .npz file) of path to train on. By default train, or the whole"
        " folder if it is not divided into splits.",
    )
    test_split: str | None = Field(
        None, description=f"The same for test; by default the first of {', '.join(TEST_NAMES)}."
    )
    holdout: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Fraction of train set apart as validation, to choose settings.",
    )
    limit: int | None = Field(
        None, ge=1, description="A random subset of each split; train and validation count as one."
    )
    seed: int = Field(0, description="Draws holdout and subset, whatever the seed of the run.")
    max_side: int | None = Field(
        None, ge=1, description="Shrink on reading until the shorter side is at most this."
    )
    on_error: Literal["fail", "skip"] = Field("fail", description="What to do about broken files.")
    download: bool = Field(False, description="Let torchvision download CIFAR into path.")

    @model_validator(mode="after")
    def _path_suits_source(self) -> ImageDataConfig:
        if self.source == "digits" and self.path is not None:
            raise ValueError(f"source=digits has no path; use source=auto to read {self.path}")
        if self.source not in ("auto", "digits") and self.path is None:
            raise ValueError(f"source={self.source} needs path, the file or folder to read")
        return self


def load_images(config: ImageDataConfig, split: str) -> Dataset:
    """The images of "train", "validation" or "test".

    Validation is the holdout from train if there is one, else a folder or file of its own (`val`
    where there is a `test` as well). It shares no image with train or test.

    Raises:
        UserError: the split is not there, or its files cannot be used.
    """
    if split not in SPLITS:
        raise UserError(f"no split is called {split!r}.{nearest(split, SPLITS)}")
    images = _read(config, "train" if split == "validation" and config.holdout else split)
    images = images.select(_portion(len(images), config, split))
    if isinstance(images, ImageFiles):
        images = images.readable(config.on_error)
    # Contrast needs two.
    needed = 2 if split == "train" else 1
    if len(images) < needed:
        raise UserError(
            f"the {split} split of {_title(config)} has {len(images)} images and needs {needed}:"
            f" add images, or change data.holdout={config.holdout} or data.limit={config.limit}."
        )
    return images


def open_images(config: ImageDataConfig, path: Path) -> Dataset:
    """Everything in an image file, an `.npz` file or a folder, to be embedded.

    Of `config` only `max_side` and `on_error` count: splits and subsets are for training.
    """
    path = _existing(path)
    if path.suffix == ".npz":
        return read_npz(path, path.stem, config.max_side)
    if path.is_dir():
        files = read_folder(path, path, sorted(subfolders(path)), config.max_side)
    else:
        files = ImageFiles(path.parent, [path.name], max_side=config.max_side)
    files = files.readable(config.on_error)
    if not len(files):
        raise UserError(f"no image in {path} can be read.")
    return files


def _portion(count: int, config: ImageDataConfig, split: str) -> Tensor:
    """Which of `count` stored images belong to `split`: ascending indices."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(config.seed))
    order = order[: config.limit]
    held = round(config.holdout * len(order))
    if split == "train":
        order = order[held:]
    elif split == "validation" and config.holdout:
        order = order[:held]
    return order.sort().values


def _read(config: ImageDataConfig, split: str) -> ImageTensors | ImageFiles:
    """All that is stored for one split, files unchecked."""
    source = _source(config)
    if source in ("npz", "folder"):
        return _read_stored(_stored_splits(config, source), config, split)
    if split == "validation":
        raise _no_split(config, split)
    if source == "digits":
        images = read_digits(split)
    else:
        images = read_cifar(_given(config), source, split, config.download)
    return replace(images, pixels=shrink(images.pixels, config.max_side))


def _read_stored(
    stored: dict[str, Path], config: ImageDataConfig, split: str
) -> ImageTensors | ImageFiles:
    if split not in stored:
        raise _no_split(config, split)
    path, root = stored[split], _given(config)
    if path.is_file():
        return read_npz(path, split, config.max_side)
    # One numbering for all splits: label 3 is the same class in train and in test.
    folders = [place for place in stored.values() if place.is_dir()]
    classes = sorted({name for folder in folders for name in subfolders(folder)})
    return read_folder(path, root if root in path.parents else path, classes, config.max_side)


def _source(config: ImageDataConfig) -> str:
    if config.source != "auto":
        return config.source
    if config.path is None:
        return "digits"
    path = _existing(config.path)
    if path.is_file():
        return "npz"
    for name, kind in CIFAR.items():
        if (path / kind.base_folder).is_dir():
            return name
    return "npz" if (path / f"{config.train_split or 'train'}.npz").is_file() else "folder"


def _stored_splits(config: ImageDataConfig, source: str) -> dict[str, Path]:
    """The folder or `.npz` file of every split that has one."""
    path = _existing(_given(config))
    if path.is_file() and source == "folder":
        raise UserError(f"{path} is a file; data.source=folder needs a folder.")
    root = path.parent if path.is_file() else path
    ending = ".npz" if source == "npz" else ""

    def first(names: Sequence[str], *taken: Path | None) -> Path | None:
        places = [root / f"{name}{ending}" for name in names]
        return next((p for p in places if p.exists() and p not in taken), None)

    if path.is_file():
        train: Path | None = path
    else:
        train = first([config.train_split or "train"])
        undivided = config.train_split is None and not first(TEST_NAMES)
        if train is None and undivided and source == "folder":
            train = path
    if config.test_path is not None:
        test: Path | None = _existing(config.test_path)
    else:
        test = first([config.test_split] if config.test_split else TEST_NAMES)
    if train is not None and train == test:
        raise UserError(
            f"{test} would be both train and test: set data.path to the training images."
        )
    splits = {"train": train, "test": test, "validation": first(VALIDATION_NAMES, train, test)}
    return {split: place for split, place in splits.items() if place is not None}


def _no_split(config: ImageDataConfig, split: str) -> UserError:
    remedy = {
        "train": "name the sub-folder or .npz file to train on in data.train_split",
        "validation": "set data.holdout=0.1 to take it from the training images",
        "test": "add a folder or .npz file called test, or set data.test_split or data.test_path",
    }[split]
    wanted = {"train": config.train_split, "test": config.test_split}.get(split)
    called, inside = "", ""
    if wanted and config.path:
        root = _given(config) if config.path.is_dir() else _given(config).parent
        there = [p.stem for p in root.iterdir() if p.is_dir() or p.suffix == ".npz"]
        called, inside = f" called {wanted!r}", nearest(wanted, there)
    return UserError(f"{_title(config)} has no {split} split{called}: {remedy}.{inside}")


def _title(config: ImageDataConfig) -> str:
    return str(config.path or _source(config))


def _given(config: ImageDataConfig) -> Path:
    """The path that the configuration's own check guarantees."""
    assert config.path is not None
    return config.path.expanduser()


def _existing(path: Path) -> Path:
    path = path.expanduser()
    if not path.exists():
        raise UserError(f"{path} does not exist: give the path of an image folder or .npz file.")
    return path
