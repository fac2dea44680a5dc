"""Readers of stored images, into data sets of tensors in memory, of files, or of records."""

from __future__ import annotations

import os
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100

from macl.core.errors import OnError, SkippedInputWarning, UserError, report_broken
from macl.core.limits import check_archive_arrays
from macl.core.progress import track
from macl.modalities.images.decode import ImageBatch, check, decode, extensions, is_image, shrink
from macl.modalities.protocols import Dataset
from macl.modalities.records import ReadOnDemand, Records
from macl.modalities.splits import number_classes, picked

BESIDE_IMAGES = frozenset(
    {"", ".csv", ".db", ".htm", ".html", ".ini", ".json", ".jsonl", ".md", ".parquet", ".txt"}
    | {".tsv", ".xml", ".yaml", ".yml"}
)
"""Extensions of files that are expected in a folder of images but are not images."""

PER_IMAGE = ("names", "labels", "pixels", "positions")
"""Fields of data sets with a value for each image."""

LABEL_FIELDS = ("label", "cls", "class")

CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}

Array = np.ndarray[Any, Any]


@dataclass(eq=False, kw_only=True)
class Pictures(Dataset):
    """What data sets of images share."""

    labels: Tensor | None = None
    classes: Sequence[str] = ()
    max_side: int | None = None
    """Images are shrunk until their shorter side is at most this."""

    def __len__(self) -> int:
        return len(self.names)

    def collate(self, samples: list[Tensor]) -> ImageBatch:
        """Join (C, h, w) images into one padded batch."""
        return ImageBatch.of(samples)

    def select(self, indices: Tensor) -> Self:
        """The images at `indices`, in that order."""
        own = [each.name for each in fields(self) if each.name in PER_IMAGE]
        return replace(self, **{name: picked(getattr(self, name), indices) for name in own})


@dataclass(eq=False)
class ImageTensors(Pictures):
    """Images of one size, held in memory."""

    pixels: Tensor
    """(N, C, H, W) uint8; C = 1 for gray."""
    names: Sequence[str]

    def __post_init__(self) -> None:
        self.pixels = shrink(self.pixels, self.max_side)

    def __getitem__(self, index: int) -> Tensor:
        """(C, H, W) uint8; of gray three equal channels."""
        pixels = self.pixels[index]
        return pixels.expand(3, -1, -1) if len(pixels) == 1 else pixels


@dataclass(eq=False)
class ImageFiles(Pictures):
    """Image files, decoded when asked for."""

    root: Path
    names: Sequence[str]
    """Paths relative to `root`."""

    def __getitem__(self, index: int) -> Tensor:
        """(3, h, w) uint8."""
        return decode(self.root / self.names[index], self.max_side)

    def readable(self, on_error: OnError) -> ImageFiles:
        """The files that can be read; `UserError` if `on_error` does not allow for the others."""
        whole, broken = [], []
        for index, name in enumerate(track(self.names, "Checking images", len(self))):
            try:
                check(self.root / name)
                whole.append(index)
            except UserError as error:
                broken.append(str(error))
        report_broken(broken, len(self), "image files", on_error)
        return self.select(torch.tensor(whole, dtype=torch.int64))


@dataclass(eq=False)
class RecordImages(Pictures):
    """Pictures of shards or of a Hugging Face data set, decoded when asked for."""

    records: Records
    positions: Tensor
    """(N,) int64, which of the records."""

    def __post_init__(self) -> None:
        self.names = ReadOnDemand(self.records.name, self.positions)

    def __getitem__(self, index: int) -> Tensor:
        """(3, h, w) uint8."""
        position = int(self.positions[index])
        data = self.records.image(position)
        return decode(Path(self.records.name(position)), self.max_side, data)


def read_folder(
    folder: Path, root: Path, classes: Sequence[str], *, only: bool = False
) -> ImageFiles:
    """All image files below `folder`, unchecked, named relative to `root`.

    Label c is the first-level folder `classes[c]`. There are no labels with fewer than two classes
    or with images outside the class folders: then folders mean something else. With `only`, files
    outside of them are left out.
    """
    files = _image_files(folder)
    if only:
        files = [file for file in files if file.relative_to(folder).parts[0] in classes]
    if not files:
        raise UserError(
            f"no image in {folder}: looked in it and below for {', '.join(sorted(extensions()))}."
            " To read an .npz file, name the file itself."
        )
    images = ImageFiles(root, [file.relative_to(root).as_posix() for file in files])
    inner = [file.relative_to(folder).parts for file in files]
    if len(classes) < 2 or any(len(parts) == 1 for parts in inner):
        return images
    number = {name: label for label, name in enumerate(classes)}
    labels = torch.tensor([number[parts[0]] for parts in inner])
    return replace(images, labels=labels, classes=classes)


def subfolders(folder: Path) -> list[str]:
    """The names of the folders directly inside, hidden ones left out."""
    return [p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _image_files(folder: Path) -> list[Path]:
    files, special, other, seen = list[Path](), 0, Counter[str](), set[str]()
    # Class folders are often links, so links are followed, but never back into a folder being read.
    for place, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(place))
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) not in seen
        ]
        for file in (Path(place, name) for name in names if not name.startswith(".")):
            if not is_image(file):
                other.update({file.suffix.lower()} - BESIDE_IMAGES)
            elif file.exists() and not file.is_file():
                special += 1
            else:
                files.append(file)
    skipped = []
    if other:
        kinds = ", ".join(f"{count:,} {kind}" for kind, count in other.most_common())
        skipped.append(
            f"{other.total():,} files in {folder} are not images that can be read here and are "
            f"left out: {kinds}."
        )
    if special:
        skipped.append(
            f"{special} of {special + len(files)} files in {folder} are pipes, sockets or devices "
            "and are skipped."
        )
    for message in skipped:
        warnings.warn(message, SkippedInputWarning, stacklevel=3)
    return sorted(files)


def read_npz(path: Path, prefix: str) -> ImageTensors:
    """Arrays `images` and, where present, `labels` and `classes`; never anything pickled."""
    try:
        check_archive_arrays(path)
        with np.load(path, allow_pickle=False) as file:
            keys = list(file.keys())
            arrays = {key: file[key] for key in ("images", "labels", "classes") if key in keys}
    except UserError:
        raise
    # A file that is not an .npz can fail in zipfile, zlib, numpy or the context manager.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as .npz: {error} Write it with numpy.savez and plain arrays."
        ) from error
    if "images" not in arrays:
        raise UserError(f"{path} needs an array called images; it holds: {', '.join(keys)}.")
    images, labels, classes = arrays["images"], arrays.get("labels"), arrays.get("classes")
    shape = images.shape
    if images.dtype != np.uint8 or 0 in shape or len(shape) not in (3, 4):
        raise UserError(
            f"images in {path} are {images.dtype} {shape}; they must be uint8 of shape (N, H, W)"
            " or (N, H, W, channels)."
        )
    if labels is not None:
        _check_labels(path, len(images), labels, classes)
    names = () if classes is None else classes
    return _tensors(prefix, images.reshape(*shape[:3], -1), labels, names)


def _check_labels(path: Path, count: int, labels: Array, classes: Array | None) -> None:
    if labels.dtype.kind not in "iu" or labels.shape != (count,) or labels.min() < 0:
        raise UserError(
            f"labels in {path} are {labels.dtype} {labels.shape}; they must be class numbers from"
            f" 0, one for each of the {count} images. Leave the array out if there are none."
        )
    if classes is not None and (classes.ndim != 1 or labels.max() >= len(classes)):
        raise UserError(
            f"labels in {path} go up to {labels.max()}, but classes has shape {classes.shape}; it"
            " must be a list with the name of every class."
        )


def read_cifar(root: Path, name: str, part: str, download: bool) -> ImageTensors:
    """CIFAR-10 or CIFAR-100 through torchvision, which checks a file's hash before reading it."""
    kind = CIFAR[name]
    try:
        stored = kind(root, train=part == "train", download=download)
    except (RuntimeError, OSError) as error:
        remedy = "Is the network there?" if download else "Set data.download=true to download it."
        raise UserError(f"{kind.base_folder} in {root}: {error}. {remedy}") from error
    return _tensors(part, stored.data, np.array(stored.targets), stored.classes)


def read_digits(part: str) -> ImageTensors:
    """The 1,797 handwritten digits (8×8) inside scikit-learn: a fixed, stratified 80/20 split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    gray, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    chosen = np.sort(train if part == "train" else test)
    # 16 is the white of this set.
    pixels = np.rint(gray * (255 / 16)).astype(np.uint8).reshape(-1, 8, 8, 1)
    return _tensors(part, pixels[chosen], labels[chosen], range(10))


def _tensors(
    prefix: str, pixels: Array, labels: Array | None, classes: Iterable[Any]
) -> ImageTensors:
    """Images of (N, H, W, C), with numbers for names."""
    return ImageTensors(
        torch.from_numpy(pixels).permute(0, 3, 1, 2).contiguous(),
        [f"{prefix}/{index:06d}" for index in range(len(pixels))],
        labels=None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        classes=[str(name) for name in classes],
    )


def read_records(
    records: Records, splits: Sequence[str] | None, on_error: OnError
) -> RecordImages | None:
    """The pictures whose field `split` is one of `splits`; None where no record has that split.

    Without such a field, all pictures belong to "train". Classes are the field label, cls or class.
    """
    positions, values, broken = list[int](), list[str | None](), list[str]()
    for index in track(range(len(records)), "Reading records", len(records)):
        fields = records.fields(index)
        if splits is not None and str(fields.get("split", "train")) not in splits:
            continue
        problem = records.image_problem(index)
        if problem is not None:
            broken.append(problem)
            continue
        positions.append(index)
        label = next((fields[key] for key in LABEL_FIELDS if fields.get(key) is not None), None)
        values.append(None if label is None else str(label))
    if not positions and not broken:
        return None
    report_broken(broken, len(positions) + len(broken), "records", on_error)
    labels, classes = number_classes(values)
    return RecordImages(
        records, torch.tensor(positions, dtype=torch.int64), labels=labels, classes=classes
    )
