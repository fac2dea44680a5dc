"""A VOCdevkit of a few drawn images: red cars, green dogs, blue boats on gray."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from PIL import Image

from macl.modalities.images.detection.config import DetectionConfig

COLORS = {"car": (220, 30, 30), "dog": (30, 200, 40), "boat": (40, 60, 220)}

QUICK = {
    "train": ["2007/trainval"],
    "iterations": 4,
    "batch_size": 2,
    "warmup": 1,
    "short_sides": [48, 64],
    "max_side": 96,
    "anchor_sizes": [8, 16, 32],
    "candidates": [100, 100],
    "proposals": [40, 40],
    "rois": 16,
    "roi_size": 4,
    "precise_bn": 2,
    "save_every": 2,
}
"""The protocol in a second or two."""


def quick(voc: Path, folder: Path, **more: object) -> DetectionConfig:
    return DetectionConfig.model_validate({**QUICK, "data": voc, "folder": folder, **more})


def quick_overrides(**more: object) -> list[str]:
    settings = {**QUICK, **more}
    return [f"detection.{key}={value}".replace("'", "") for key, value in settings.items()]


def make_voc(root: Path, sets: Mapping[str, int], seed: int = 0) -> Path:
    """Sets such as {"2007/trainval": 6}; every image has one or two objects. Returns VOCdevkit."""
    generator = np.random.default_rng(seed)
    number = 0
    for name, count in sets.items():
        year, split = name.split("/")
        folder = root / "VOCdevkit" / f"VOC{year}"
        for part in ("JPEGImages", "Annotations", "ImageSets/Main"):
            (folder / part).mkdir(parents=True, exist_ok=True)
        names = []
        for _ in range(count):
            number += 1
            names.append(f"{number:06}")
            _draw(folder, names[-1], generator)
        (folder / "ImageSets" / "Main" / f"{split}.txt").write_text("\n".join(names) + "\n")
    return root / "VOCdevkit"


def object_xml(name: str, box: tuple[float, ...], more: str = "") -> str:
    corners = zip(("xmin", "ymin", "xmax", "ymax"), box, strict=True)
    inside = "".join(f"<{key}>{value}</{key}>" for key, value in corners)
    return f"<object><name>{name}</name>{more}<bndbox>{inside}</bndbox></object>"


def _draw(folder: Path, name: str, generator: np.random.Generator) -> None:
    width, height = 96, 72
    pixels = generator.integers(100, 140, (height, width, 3)).astype(np.uint8)
    objects = ""
    for half in range(int(generator.integers(1, 3))):
        kind = list(COLORS)[int(generator.integers(len(COLORS)))]
        left = half * 48 + int(generator.integers(1, 16))
        top = int(generator.integers(1, 30))
        right, bottom = (
            left + int(generator.integers(20, 30)),
            top + int(generator.integers(20, 40)),
        )
        pixels[top - 1 : bottom, left - 1 : right] = COLORS[kind]
        objects += object_xml(kind, (left, top, right, bottom), "<difficult>0</difficult>")
    Image.fromarray(pixels).save(folder / "JPEGImages" / f"{name}.jpg", quality=95)
    (folder / "Annotations" / f"{name}.xml").write_text(f"<annotation>{objects}</annotation>")
