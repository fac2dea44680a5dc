"""Average precision on boxes made by hand, and against a plain loop."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torchvision.ops import box_iou

from macl.modalities.images.detection.average_precision import (
    Found,
    coco_means,
    voc_class_precisions,
    voc_means,
)
from macl.modalities.images.detection.data import Objects

A, B, C = [0, 0, 10, 10], [20, 0, 30, 10], [40, 40, 60, 60]


def objects(*boxes: list[float], labels: list[int] | None = None, difficult: str = "") -> Objects:
    """`difficult` has a letter per box, d for difficult."""
    return Objects(
        torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
        torch.tensor([c == "d" for c in difficult.ljust(len(boxes), ".")], dtype=torch.bool),
    )


def found(*boxes: list[float], scores: list[float], labels: list[int] | None = None) -> Found:
    return {
        "boxes": torch.tensor(boxes, dtype=torch.float32).view(-1, 4),
        "labels": torch.tensor(labels or [1] * len(boxes), dtype=torch.int64),
        "scores": torch.tensor(scores),
    }


def voc_average_precision(
    seen: list[Found], there: list[Objects], threshold: float = 0.5
) -> dict[int, float]:
    values = voc_class_precisions(seen, there, [threshold])
    return {label: value for label, (value,) in values.items()}


def test_one_wrong_among_two_right() -> None:
    """Precision 1 up to recall 1/2 (6 of 11 points, 51 of 101), then 2/3."""
    seen = [found(A, C, B, scores=[0.9, 0.8, 0.7])]
    there = [objects(A, B)]
    assert voc_average_precision(seen, there)[1] == pytest.approx(100 * (6 + 5 * 2 / 3) / 11)
    assert coco_means(seen, there)["AP50"] == pytest.approx(100 * (51 + 50 * 2 / 3) / 101)


def test_a_second_detection_of_an_object_is_wrong() -> None:
    seen = [found(A, A, B, scores=[0.9, 0.8, 0.7])]
    assert voc_average_precision(seen, [objects(A, B)])[1] == pytest.approx(100 * (6 + 10 / 3) / 11)


def test_difficult_objects_are_neither_asked_for_nor_punished() -> None:
    there = [objects(A, B, difficult=".d")]
    for seen in (
        found(A, scores=[0.5]),
        found(B, A, scores=[0.9, 0.5]),
        found(B, B, A, scores=[0.9, 0.8, 0.5]),
    ):
        assert voc_average_precision([seen], there) == {1: 100.0}
        assert coco_means([seen], there)["AP"] == pytest.approx(100)
    assert voc_average_precision([found(C, A, scores=[0.9, 0.5])], there) == {1: 50.0}


def test_images_and_classes_are_kept_apart() -> None:
    there = [objects(A, B, labels=[1, 2]), objects(C, labels=[2]), objects()]
    right = [
        found(A, B, scores=[0.3, 0.4], labels=[1, 2]),
        found(C, scores=[0.5], labels=[2]),
        found(scores=[]),
    ]
    assert voc_average_precision(right, there) == {1: 100.0, 2: 100.0}
    swapped = [right[0] | {"labels": torch.tensor([2, 1])}, *right[1:]]
    assert voc_average_precision(swapped, there) == {1: 0.0, 2: pytest.approx(100 * 6 / 11)}
    elsewhere = [right[0], right[2], right[1]]
    assert voc_average_precision(elsewhere, there)[2] == pytest.approx(100 * 6 / 11 / 2)


def test_overlap_of_exactly_the_threshold_counts() -> None:
    there, seen = [objects(A)], [found([0, 0, 10, 5], scores=[1.0])]
    assert voc_average_precision(seen, there, 0.5) == {1: 100.0}
    assert voc_average_precision(seen, there, 0.51) == {1: 0.0}


def test_three_tenths_reach_the_point_three_tenths() -> None:
    boxes = [[20 * i, 0, 20 * i + 10, 10] for i in range(10)]
    seen = [found(*boxes[:3], scores=[0.9, 0.8, 0.7])]
    assert voc_average_precision(seen, [objects(*boxes)])[1] == pytest.approx(100 * 4 / 11)


def test_means() -> None:
    """An overlap of 0.82 counts at 7 of the 10 thresholds, 0.5 to 0.8."""
    seen = [found([0, 0, 10, 8.2], scores=[1.0]), found(C, scores=[1.0], labels=[2])]
    there = [objects(A), objects(C, labels=[2])]
    assert voc_means(seen, there) == pytest.approx(
        {"VOC07-AP": 100 * (7 / 10 + 1) / 2, "VOC07-AP50": 100, "VOC07-AP75": 100}
    )
    assert coco_means(seen, there) == pytest.approx(
        {"AP": 100 * (7 / 10 + 1) / 2, "AP50": 100, "AP75": 100}, abs=1e-3
    )


def test_nothing_found() -> None:
    seen, there = [found(scores=[]), found(scores=[])], [objects(A), objects()]
    assert voc_means(seen, there) == {"VOC07-AP": 0.0, "VOC07-AP50": 0.0, "VOC07-AP75": 0.0}
    assert coco_means(seen, there) == {"AP": 0.0, "AP50": 0.0, "AP75": 0.0}


def loop(seen: list[Found], there: list[Objects], label: int, threshold: float) -> float:
    """As the development kit goes about it, detection by detection."""
    queue = [
        (float(score), image, i)
        for image, each in enumerate(seen)
        for i, score in enumerate(each["scores"])
        if each["labels"][i] == label
    ]
    taken: set[tuple[int, int]] = set()
    right = wrong = 0
    curve = []
    positives = sum(int(((t.labels == label) & ~t.difficult).sum()) for t in there)
    for _, image, i in sorted(queue, key=lambda entry: -entry[0]):
        best, which = 0.0, -1
        for j, other in enumerate(there[image].labels):
            overlap = float(
                box_iou(seen[image]["boxes"][i : i + 1], there[image].boxes[j : j + 1])[0, 0]
            )
            if other == label and overlap > best:
                best, which = overlap, j
        if which >= 0 and best >= threshold:
            if there[image].difficult[which]:
                continue
            if (image, which) in taken:
                wrong += 1
            else:
                taken.add((image, which))
                right += 1
        else:
            wrong += 1
        curve.append((right / positives, right / (right + wrong)))
    points = [max((p for r, p in curve if r >= t / 10 - 1e-9), default=0.0) for t in range(11)]
    return 100 * sum(points) / 11


@given(st.integers(0, 10**6))
def test_equals_the_loop(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)

    def boxes(count: int) -> torch.Tensor:
        corner = torch.randint(0, 6, (count, 2), generator=generator)
        size = torch.randint(1, 6, (count, 2), generator=generator)
        return torch.cat([corner, corner + size], dim=1).float()

    def number(limit: int) -> int:
        return int(torch.randint(0, limit, (1,), generator=generator))

    seen, there = [], []
    for _ in range(3):
        m, n = number(8), 1 + number(3)
        seen.append(
            {
                "boxes": boxes(m),
                "labels": torch.randint(1, 3, (m,), generator=generator),
                "scores": torch.rand(m, generator=generator),
            }
        )
        there.append(
            Objects(
                boxes(n),
                torch.randint(1, 3, (n,), generator=generator),
                torch.rand(n, generator=generator) < 0.3,
            )
        )
    for threshold in (0.3, 0.5, 0.75):
        values = voc_average_precision(seen, there, threshold)
        for label, value in values.items():
            assert value == pytest.approx(loop(seen, there, label, threshold))
