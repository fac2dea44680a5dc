"""Image data of a recipe: what is stored where, and which images belong to which split."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from macl.core.errors import UserError, nearest
from macl.modalities.images import sources
from macl.modalities.images.sections import TEST_NAMES, VALIDATION_NAMES, ImageDataConfig
from macl.modalities.images.sources import CIFAR, ImageFiles, Pictures
from macl.modalities.protocols import Dataset
from macl.modalities.records import is_records, open_records
from macl.modalities.splits import hold_out_for_test, random_subset


def load_images(config: ImageDataConfig, split: str) -> Dataset:
    """The images of "train", "validation" or "test".

    Validation is the holdout from train if there is one, else a folder or file of its own (`val`
    where there is a `test` as well). It shares no image with train or test.
    """
    stored = _read(config, "train" if split == "validation" and config.holdout else split)
    images = _usable(stored, _members(len(stored), config, split), config)
    needed = 2 if split == "train" else 1  # contrast needs two
    if len(images) < needed:
        raise UserError(
            f"the {split} split of {config.path or 'digits'} has {len(images)} images and needs "
            f"{needed}: add images, or change data.holdout={config.holdout} or "
            f"data.limit={config.limit}."
        )
    return images


def load_for_evaluation(config: ImageDataConfig, split: str) -> tuple[Dataset, Dataset, str]:
    """Training images, images to evaluate on, and what those are: "test", "validation", "holdout".

    Where a test split is asked for and there is none, the images of `data.holdout`, which training
    did not see, take its place; without them a stratified part of the training images does.
    """
    train = load_images(config, "train")
    try:
        return train, load_images(config, split), split
    except _NoSplit as missing:
        if split != "test" or config.test_split is not None:
            raise
        if config.holdout:
            return train, load_images(config, "validation"), "validation"
        return *hold_out_for_test(train, missing), "holdout"


def open_images(config: ImageDataConfig, path: Path) -> Dataset:
    """The images in an image file, an `.npz` file, a folder or records; there are no splits."""
    path = path.expanduser()
    stored: Pictures | None
    records = open_records(path, download=config.download)
    if records is not None:
        stored = sources.read_records(records, None, config.on_error)
        if stored is None:
            raise UserError(f"{path} has no samples.")
    elif _existing(path).suffix == ".npz":
        stored = sources.read_npz(path, path.stem)
    elif path.is_dir():
        stored = sources.read_folder(path, path, sorted(sources.subfolders(path)))
    else:
        stored = ImageFiles(path.parent, [path.name])
    images = _usable(stored, random_subset(len(stored), config.limit, config.seed), config)
    if not len(images):
        raise UserError(f"no image in {path} can be read.")
    return images


def _usable(stored: Pictures, chosen: Tensor, config: ImageDataConfig) -> Pictures:
    """The chosen images, shrunk; without broken files, which are found now, not in training."""
    images = replace(stored.select(chosen), max_side=config.max_side)
    return images.readable(config.on_error) if isinstance(images, ImageFiles) else images


def _members(count: int, config: ImageDataConfig, split: str) -> Tensor:
    """Which of `count` stored images belong to `split`: ascending indices."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(config.seed))
    order = order[: config.limit]
    held = round(config.holdout * len(order))
    if split == "train":
        order = order[held:]
    elif split == "validation" and config.holdout:
        order = order[:held]
    return order.sort().values


def _read(config: ImageDataConfig, split: str) -> Pictures:
    """All that is stored for one split, files unchecked."""
    path = config.path
    source = "digits" if path is None else _source(config, path)
    if split == "validation" and source in ("digits", *CIFAR):
        raise _NoSplit(config, split)
    if path is None:
        return sources.read_digits(split)
    if source in CIFAR:
        return sources.read_cifar(path, source, split, config.download)
    if source == "records":
        return _read_records(config, path, split)
    stored = _stored_splits(config, path, source)
    if split not in stored:
        raise _NoSplit(config, split)
    place = stored[split]
    if place.is_file():
        return sources.read_npz(place, split)
    # One numbering for all splits: label 3 is the same class in train and in test.
    folders = [each for each in stored.values() if each.is_dir()]
    classes = sorted({name for folder in folders for name in sources.subfolders(folder)})
    if config.classes is not None:
        classes = _listed(config.classes, classes)
    root = path if path in place.parents else place
    return sources.read_folder(place, root, classes, only=config.classes is not None)


def _read_records(config: ImageDataConfig, path: Path, split: str) -> Pictures:
    """The pictures of shards or of a Hugging Face data set; their field `split` divides them."""
    records = open_records(path, download=config.download)
    if records is None:
        raise UserError(f"{path} is neither .tar files nor a Hugging Face data set on disk.")
    names: dict[str, list[Sequence[str]]] = {
        "train": [[config.train_split or "train"]],
        "validation": [VALIDATION_NAMES],
        "test": [[config.test_split]] if config.test_split else [["test"], VALIDATION_NAMES],
    }
    for wanted in names[split]:
        images = sources.read_records(records, wanted, config.on_error)
        if images is not None:
            return images
    raise _NoSplit(config, split)


def _listed(file: Path, classes: Sequence[str]) -> list[str]:
    """The class folders that a file names, the first word of each line."""
    texts = _existing(file).read_text(encoding="utf-8").splitlines()
    wanted = sorted({text.split()[0] for text in texts if text.strip()})
    missing = [name for name in wanted if name not in classes]
    if missing or not wanted:
        what = f"names {missing[0]}, which is not a class folder" if missing else "names no class"
        raise UserError(f"data.classes: {file} {what}; there are {len(classes)} class folders.")
    return wanted


def _source(config: ImageDataConfig, path: Path) -> str:
    if config.source != "auto":
        return config.source
    if is_records(path):
        return "records"
    for name, kind in CIFAR.items():
        if (_existing(path) / kind.base_folder).is_dir():
            return name
    file = path if path.is_file() else path / f"{config.train_split or 'train'}.npz"
    return "npz" if file.is_file() else "folder"


def _stored_splits(config: ImageDataConfig, path: Path, source: str) -> dict[str, Path]:
    """The folder or `.npz` file of every split that has one."""
    if _existing(path).is_file() and source == "folder":
        raise UserError(f"{path} is a file; data.source=folder needs a folder.")
    root = path.parent if path.is_file() else path
    ending = ".npz" if source == "npz" else ""

    def first(names: Sequence[str], *taken: Path | None) -> Path | None:
        places = [root / f"{name}{ending}" for name in names]
        return next((p for p in places if p.exists() and p not in taken), None)

    train = path if path.is_file() else first([config.train_split or "train"])
    divided = config.train_split is not None or first(TEST_NAMES) is not None
    if train is None and source == "folder" and not divided:
        train = path
    test = first([config.test_split] if config.test_split else TEST_NAMES)
    if config.test_path is not None:
        test = _existing(config.test_path)
    if train is not None and train == test:
        raise UserError(
            f"{test} would be both train and test: set data.path to the training images."
        )
    splits = {"train": train, "test": test, "validation": first(VALIDATION_NAMES, train, test)}
    return {split: place for split, place in splits.items() if place is not None}


class _NoSplit(UserError):
    """The data has no such split."""

    def __init__(self, config: ImageDataConfig, split: str) -> None:
        remedy = {
            "train": "name the sub-folder or .npz file to train on in data.train_split",
            "validation": "set data.holdout=0.1 to take it from the training images",
            "test": "add a folder or .npz file called test, set data.test_split or data.test_path, "
            "or train with data.holdout=0.2 and evaluate with evaluation.split=validation",
        }[split]
        wanted = {"train": config.train_split, "test": config.test_split}.get(split)
        called = inside = ""
        if wanted and config.path:
            root = config.path if config.path.is_dir() else config.path.parent
            there = [p.stem for p in root.iterdir() if p.is_dir() or p.suffix == ".npz"]
            called, inside = f" called {wanted!r}", nearest(wanted, there)
        title = config.path or "digits"
        super().__init__(f"{title} has no {split} split{called}: {remedy}.{inside}")


def _existing(path: Path) -> Path:
    if not path.exists():
        raise UserError(f"{path} does not exist: give the path of an image folder or .npz file.")
    return path
