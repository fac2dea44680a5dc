"""PASCAL VOC as it is distributed: VOCdevkit/VOC2007, VOCdevkit/VOC2012."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from xml.etree import ElementTree

import torch
from torch import Tensor

from macl.core.errors import UserError, nearest
from macl.core.progress import track
from macl.modalities.images.decode import decode

CLASSES = (
    "aeroplane", "bicycle", "bird", "boat", "bottle", "bus", "car", "cat", "chair", "cow",
    "diningtable", "dog", "horse", "motorbike", "person", "pottedplant", "sheep", "sofa", "train",
    "tvmonitor",
)  # fmt: skip
"""Class c has label c + 1; 0 is the background."""

CORNERS = ("xmin", "ymin", "xmax", "ymax")


class Objects(NamedTuple):
    """What is to be seen in an image: (N, 4) float32 boxes, (N,) int64 labels, which are difficult.

    Boxes are (left, top, right, bottom) in pixels of an image that is [0, width] × [0, height]; VOC
    counts pixels from 1 and includes the last, so 1 is taken off its left and top. Labels are from
    1. Evaluation neither asks for difficult objects, (N,) bool, nor punishes finding them.
    """

    boxes: Tensor
    labels: Tensor
    difficult: Tensor


@dataclass(frozen=True)
class VocImages:
    """Images with their objects; an image is decoded when asked for."""

    files: Sequence[Path]
    objects: Sequence[Objects]
    names: Sequence[str]
    """YEAR/ID."""

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: int) -> tuple[Tensor, Objects]:
        """((3, h, w) uint8, its objects)."""
        return decode(self.files[index]), self.objects[index]


def read_voc(path: Path, sets: Sequence[str]) -> VocImages:
    """The images of sets such as "2007/trainval", one after the other, with all annotations."""
    devkit = find_devkit(path)
    if devkit is None:
        raise UserError(
            f"{path} holds no VOC: give the folder VOCdevkit, with VOC2007/Annotations and the "
            "like inside, or the folder around it."
        )
    places = [place for name in sets for place in _listed(devkit, name)]
    files = [folder / "JPEGImages" / f"{image}.jpg" for folder, image in places]
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UserError(
            f"{len(missing)} of {len(files)} images of {', '.join(sets)} are not there, such as "
            f"{missing[0]}: unpack all of the VOC archives into one folder."
        )
    annotations = [folder / "Annotations" / f"{image}.xml" for folder, image in places]
    objects = [read_objects(file) for file in track(annotations, "reading annotations")]
    names = [f"{folder.name.removeprefix('VOC')}/{image}" for folder, image in places]
    return VocImages(files, objects, names)


def find_devkit(path: Path) -> Path | None:
    """VOCdevkit, where `path` is it, the folder around it, or one of its years."""
    path = path.expanduser()
    inside = path in _years(path.parent)
    places = [path, path / "VOCdevkit", *([path.parent] if inside else [])]
    return next((place for place in places if _years(place)), None)


def read_objects(file: Path) -> Objects:
    """One annotation file. Objects count whether truncated or not; parts of bodies do not."""
    try:
        elements = ElementTree.parse(file).getroot().findall("object")
        rows = [_read_object(element) for element in elements]
    except FileNotFoundError as error:
        raise UserError(f"{file} is not there: every VOC image needs its annotation.") from error
    except (ElementTree.ParseError, ValueError) as error:
        raise UserError(f"{file} is not a VOC annotation: {error}") from error
    return Objects(
        torch.tensor([box for box, _, _ in rows], dtype=torch.float32).view(-1, 4),
        torch.tensor([label for _, label, _ in rows], dtype=torch.int64),
        torch.tensor([difficult for _, _, difficult in rows], dtype=torch.bool),
    )


def _read_object(element: ElementTree.Element) -> tuple[list[float], int, bool]:
    name = (element.findtext("name") or "").strip()
    if name not in CLASSES:
        raise ValueError(f"an object is called {name!r}.{nearest(name, CLASSES)}")
    texts = [element.findtext(f"bndbox/{corner}") for corner in CORNERS]
    if None in texts:
        raise ValueError(f"a {name} has no bndbox with {', '.join(CORNERS)}")
    left, top, right, bottom = (float(text) for text in texts if text is not None)
    box = [left - 1, top - 1, right, bottom]
    if not (box[0] < right and box[1] < bottom):
        raise ValueError(f"the box of a {name} is empty: {dict(zip(CORNERS, texts, strict=True))}")
    return box, 1 + CLASSES.index(name), int(element.findtext("difficult") or 0) != 0


def _listed(devkit: Path, name: str) -> list[tuple[Path, str]]:
    year, split = name.split("/")
    folder = devkit / f"VOC{year}"
    lists = folder / "ImageSets" / "Main"
    if not folder.is_dir():
        there = [each.name.removeprefix("VOC") for each in _years(devkit)]
        raise UserError(
            f"{devkit} has no VOC{year}, only {', '.join(there)}: add it, or choose other sets in "
            "evaluation.detection.train and evaluation.detection.test, such as [2012/train]."
        )
    if not (lists / f"{split}.txt").is_file():
        there = [each.stem for each in lists.glob("*.txt")]
        raise UserError(f"{folder} has no set {split!r}.{nearest(split, there)}")
    images = (lists / f"{split}.txt").read_text(encoding="utf-8").split()
    if not images:
        raise UserError(f"{lists / f'{split}.txt'} is empty.")
    return [(folder, image) for image in images]


def _years(folder: Path) -> list[Path]:
    return sorted(each for each in folder.glob("VOC????") if (each / "Annotations").is_dir())
