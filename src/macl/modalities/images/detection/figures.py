"""Pictures of what a detector sees, and of how its losses fell."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from torchvision.io import write_png
from torchvision.utils import draw_bounding_boxes

from macl.modalities.images.detection.average_precision import Found
from macl.modalities.images.detection.data import CLASSES, VocImages

SHOWN = 0.5
"""Detections with at least this score are drawn."""


def draw_detections(
    folder: Path, images: VocImages, detections: list[Found], pictures: int
) -> None:
    """The first images with their objects in white and the detections in red: YEAR_ID.png."""
    folder.mkdir(parents=True, exist_ok=True)
    for index in range(min(pictures, len(images))):
        pixels, objects = images[index]
        seen = detections[index]
        sure = seen.scores >= SHOWN
        pairs = zip(seen.labels[sure].tolist(), seen.scores[sure].tolist(), strict=True)
        words = [f"{CLASSES[label - 1]} {score:.0%}" for label, score in pairs]
        # Without boxes torchvision warns and draws nothing, so it is not asked.
        if len(objects.boxes):
            pixels = draw_bounding_boxes(pixels, objects.boxes, colors="white", width=3)
        if words:
            pixels = draw_bounding_boxes(
                pixels, seen.boxes[sure], labels=words, colors="red", width=2
            )
        name = images.names[index].replace("/", "_")
        write_png(pixels, str(folder / f"{name}.png"))


def draw_losses(folder: Path, losses: pd.DataFrame, window: int = 20) -> None:
    """losses.png: each loss and their sum over the iterations, as means of `window` of them."""
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    means = losses.assign(sum=losses.sum(axis=1)).rolling(min(window, len(losses))).mean()
    figure = Figure(figsize=(7, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(means, label=means.columns.str.removeprefix("loss_"))
    axes.set(xlabel="iteration", ylabel="loss", ylim=(0, None))
    axes.legend()
    figure.savefig(folder / "losses.png", dpi=120)
