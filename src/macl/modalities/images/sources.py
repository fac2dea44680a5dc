"""Readers of stored images, each into one of two data sets: tensors in memory or files on disk."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torchvision.datasets import CIFAR10, CIFAR100

from macl.core.archives import refuse_bomb
from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.broken import OnError, report_broken
from macl.modalities.images.batch import ImageBatch
from macl.modalities.images.decode import check, decode, extensions, shrink
from macl.modalities.protocols import Dataset

CIFAR = {"cifar10": CIFAR10, "cifar100": CIFAR100}


@dataclass(eq=False)
class ImageTensors(Dataset):
    """Images of one size, held in memory."""

    pixels: Tensor
    """(N, C, H, W) uint8 with C = 3, or C = 1 for grey."""
    names: Sequence[str]
    labels: Tensor | None = None
    classes: Sequence[str] = ()

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Tensor:
        """(3, H, W) uint8."""
        return self.pixels[index].expand(3, -1, -1)

    def collate(self, samples: list[Tensor]) -> ImageBatch:
        """Join (3, h, w) images into one padded batch."""
        return ImageBatch.of(samples)

    def select(self, indices: Tensor) -> ImageTensors:
        """The images at `indices`, in that order."""
        return replace(self, pixels=self.pixels[indices], **_picked(self, indices))


@dataclass(eq=False)
class ImageFiles(Dataset):
    """Image files, decoded when asked for."""

    root: Path
    names: Sequence[str]
    """Paths relative to `root`."""
    labels: Tensor | None = None
    classes: Sequence[str] = ()
    max_side: int | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> Tensor:
        """(3, h, w) uint8."""
        return decode(self.root / self.names[index], self.max_side)

    def collate(self, samples: list[Tensor]) -> ImageBatch:
        """Join (3, h, w) images into one padded batch."""
        return ImageBatch.of(samples)

    def select(self, indices: Tensor) -> ImageFiles:
        """The images at `indices`, in that order."""
        return replace(self, **_picked(self, indices))

    def readable(self, on_error: OnError) -> ImageFiles:
        """The files that can be read, all checked now so that none fails hours into training."""
        whole = self.find_readable(on_error)
        return self if len(whole) == len(self) else self.select(whole)

    def find_readable(self, on_error: OnError) -> Tensor:
        """Ascending positions of the files that can be read.

        Raises:
            UserError: more are unreadable than `on_error` allows: none (fail), 1% (skip-few).
        """
        whole, broken = [], []
        for index, name in enumerate(track(self.names, "Checking images", len(self))):
            try:
                check(self.root / name)
                whole.append(index)
            except UserError as error:
                broken.append(str(error))
        report_broken(broken, len(self), "image files", on_error)
        return torch.tensor(whole, dtype=torch.int64)


def _picked(images: ImageTensors | ImageFiles, indices: Tensor) -> dict[str, Any]:
    return {
        "names": [images.names[index] for index in indices.tolist()],
        "labels": None if images.labels is None else images.labels[indices],
    }


def read_folder(
    folder: Path, root: Path, classes: Sequence[str], max_side: int | None
) -> ImageFiles:
    """All image files below `folder`, unchecked, named relative to `root`.

    Label c is the first-level folder `classes[c]`. There are no labels with fewer than two classes
    or with images outside the class folders: then folders mean something else.
    """
    files = _image_files(folder)
    if not files:
        raise UserError(
            f"no image in {folder}: looked in it and below for {', '.join(sorted(extensions()))}."
            " To read an .npz file, name the file itself."
        )
    inner = [file.relative_to(folder).parts for file in files]
    labelled = len(classes) > 1 and all(len(parts) > 1 for parts in inner)
    number = {name: label for label, name in enumerate(classes)}
    return ImageFiles(
        root,
        [file.relative_to(root).as_posix() for file in files],
        torch.tensor([number[parts[0]] for parts in inner]) if labelled else None,
        classes if labelled else (),
        max_side,
    )


def subfolders(folder: Path) -> list[str]:
    """The names of the folders directly inside, hidden ones left out."""
    return [p.name for p in folder.iterdir() if p.is_dir() and not p.name.startswith(".")]


def _image_files(folder: Path) -> list[Path]:
    files: list[Path] = []
    seen: set[str] = set()
    # Class folders are often links, so links are followed, but never back into a folder being read.
    for place, folders, names in os.walk(folder, followlinks=True):
        seen.add(os.path.realpath(place))
        folders[:] = [
            name
            for name in folders
            if not name.startswith(".") and os.path.realpath(os.path.join(place, name)) not in seen
        ]
        files += (
            Path(place, name)
            for name in names
            if not name.startswith(".") and Path(name).suffix.lower() in extensions()
        )
    return sorted(files)


def read_npz(path: Path, prefix: str, max_side: int | None) -> ImageTensors:
    """Arrays `images` and, where present, `labels` and `classes`; never anything pickled."""
    try:
        refuse_bomb(path)
        with np.load(path, allow_pickle=False) as file:
            keys = list(file.keys())
            arrays = {key: file[key] for key in ("images", "labels", "classes") if key in keys}
    except UserError:
        raise
    # A file that is no .npz can fail in zipfile, zlib, numpy or the context manager.
    except Exception as error:
        raise UserError(
            f"{path} cannot be read as .npz: {error} Write it with numpy.savez and plain arrays."
        ) from error
    if "images" not in arrays:
        raise UserError(f"{path} needs an array called images; it holds: {', '.join(keys)}.")
    images, labels, classes = arrays["images"], arrays.get("labels"), arrays.get("classes")
    shape = images.shape
    if images.dtype != np.uint8 or 0 in shape or not (len(shape) == 3 or shape[3:] in ((1,), (3,))):
        raise UserError(
            f"images in {path} are {images.dtype} {shape}; they must be uint8 of shape (N, H, W),"
            " (N, H, W, 1) or (N, H, W, 3)."
        )
    if labels is not None:
        _check_labels(path, len(images), labels, classes)
    pixels = torch.from_numpy(images.reshape(*shape[:3], -1)).permute(0, 3, 1, 2).contiguous()
    return ImageTensors(
        shrink(pixels, max_side),
        _numbered(prefix, len(images)),
        None if labels is None else torch.from_numpy(labels.astype(np.int64)),
        () if classes is None else [str(name) for name in classes],
    )


def _check_labels(
    path: Path, count: int, labels: np.ndarray[Any, Any], classes: np.ndarray[Any, Any] | None
) -> None:
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
    pixels = torch.from_numpy(stored.data).permute(0, 3, 1, 2).contiguous()
    labels = torch.tensor(stored.targets)
    return ImageTensors(pixels, _numbered(part, len(pixels)), labels, stored.classes)


def read_digits(part: str) -> ImageTensors:
    """The 1,797 handwritten digits (8×8) inside scikit-learn: a fixed, stratified 80/20 split."""
    from sklearn.datasets import load_digits
    from sklearn.model_selection import train_test_split

    grey, labels = load_digits(return_X_y=True)
    train, test = train_test_split(
        np.arange(len(labels)), test_size=0.2, stratify=labels, random_state=0
    )
    chosen = torch.from_numpy(np.sort(train if part == "train" else test))
    # 16 is the white of this set.
    pixels = torch.from_numpy(grey * (255 / 16)).round().to(torch.uint8).reshape(-1, 1, 8, 8)
    return ImageTensors(
        pixels[chosen],
        _numbered(part, len(chosen)),
        torch.from_numpy(labels)[chosen],
        [str(digit) for digit in range(10)],
    )


def _numbered(prefix: str, count: int) -> list[str]:
    return [f"{prefix}/{index:06d}" for index in range(count)]
