"""Average precision as VOC 2007 defines it, and as COCO does."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.ops import box_iou

from macl.modalities.images.detection.data import Objects

THRESHOLDS = tuple(percent / 100 for percent in range(50, 100, 5))
"""COCO's overlaps: 0.5, 0.55, …, 0.95."""


Found = dict[str, Tensor]
"""What a detector saw in an image: (M, 4) boxes as in `Objects`, (M,) labels, (M,) scores."""


def voc_class_precisions(
    detections: Sequence[Found],
    objects: Sequence[Objects],
    thresholds: Sequence[float] = THRESHOLDS,
) -> dict[int, list[float]]:
    """VOC 2007's AP of every class that has objects to be found, in percent, at each threshold.

    A detection belongs to the object of its class and image that it overlaps most. It is right if
    that overlap (IoU) reaches the threshold and no better-scored one was right about the object;
    it does not count if the object is difficult; else it is wrong. With the precision p and recall
    r after each detection:

        AP = 1/11 Σ_{t ∈ {0, 0.1, …, 1}} max_{r ≥ t} p
    """
    rows, numbered = [], 0
    for seen, there in zip(detections, objects, strict=True):
        same_class = seen["labels"][:, None] == there.labels
        overlaps = box_iou(seen["boxes"], there.boxes).where(same_class, 0.0)
        # One more object that nothing overlaps, as there may be none.
        overlap, nearest = F.pad(overlaps, (0, 1)).max(dim=1)
        difficult = F.pad(there.difficult, (0, 1))[nearest]
        rows.append((seen["scores"], seen["labels"], overlap, nearest + numbered, difficult))
        numbered += len(there.boxes) + 1
    scores, labels, *parts = (torch.cat(column) for column in zip(*rows, strict=True))
    ranked = scores.argsort(descending=True, stable=True)
    to_find = torch.cat([each.labels[~each.difficult] for each in objects])
    classes, counts = to_find.unique(return_counts=True)
    precisions = {}
    for label, count in zip(classes.tolist(), counts.tolist(), strict=True):
        mine = ranked[labels[ranked] == label]
        overlap, target, difficult = (part[mine] for part in parts)
        precisions[label] = [
            _eleven_points(overlap, target, difficult, count, each) for each in thresholds
        ]
    return precisions


def voc_means(detections: Sequence[Found], objects: Sequence[Objects]) -> dict[str, float]:
    """VOC 2007's AP, averaged over classes, as detectron2 and MoCo report it, in percent."""
    columns = zip(*voc_class_precisions(detections, objects).values(), strict=True)
    means = [fmean(column) for column in columns]
    at = dict(zip(THRESHOLDS, means, strict=True))
    return {"VOC07-AP": fmean(means), "VOC07-AP50": at[0.5], "VOC07-AP75": at[0.75]}


def coco_means(detections: Sequence[Found], objects: Sequence[Objects]) -> dict[str, float]:
    """COCO's AP (101 points) over its thresholds, at 0.5 and at 0.75, in percent.

    Difficult objects are COCO's crowds: they need not be found, and boxes on them do not count.
    """
    from torchmetrics.detection import MeanAveragePrecision

    metric = MeanAveragePrecision(backend="faster_coco_eval")
    there = [{**each._asdict(), "iscrowd": each.difficult.long()} for each in objects]
    metric.update(list(detections), there)
    values = metric.compute()
    names = {"AP": "map", "AP50": "map_50", "AP75": "map_75"}
    return {name: 100 * values[key].item() for name, key in names.items()}


def _eleven_points(
    overlap: Tensor, target: Tensor, difficult: Tensor, count: int, threshold: float
) -> float:
    """AP of (M,) detections of a class, best first, with `count` objects to be found."""
    matched = overlap >= threshold
    counted = ~(matched & difficult)
    candidates = (matched & counted).nonzero().squeeze(1)
    _, firsts = np.unique(target[candidates].numpy(), return_index=True)
    right = torch.zeros(len(target), dtype=torch.float64)
    right[candidates[firsts]] = 1
    right = right[counted].cumsum(0)
    recall, precision = right / count, right / torch.arange(1, len(right) + 1)
    # A tenth has no exact binary form: recall 3/10 must reach the point 0.3.
    points = [precision[recall >= step / 10 - 1e-9] for step in range(11)]
    return 100 * sum(float(p.max()) if len(p) else 0.0 for p in points) / 11
