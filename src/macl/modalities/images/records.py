"""Pictures of shards and of Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import overload

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.broken import OnError, report_broken
from macl.modalities.images.batch import ImageBatch
from macl.modalities.images.decode import decode
from macl.modalities.protocols import Dataset
from macl.modalities.records import Records

LABEL_FIELDS = ("label", "cls", "class")


class RecordNames(Sequence[str]):
    """The names of some samples, read when asked for."""

    def __init__(self, records: Records, positions: Tensor) -> None:
        self.records, self.positions = records, positions

    def __len__(self) -> int:
        return len(self.positions)

    @overload
    def __getitem__(self, index: int) -> str: ...

    @overload
    def __getitem__(self, index: slice) -> list[str]: ...

    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self.records.name(int(self.positions[index]))


@dataclass(eq=False)
class RecordImages(Dataset):
    """Pictures of records, decoded when asked for."""

    records: Records
    positions: Tensor
    """(N,) int64, which of the records."""
    labels: Tensor | None = None
    classes: Sequence[str] = ()
    max_side: int | None = None

    def __post_init__(self) -> None:
        self.names = RecordNames(self.records, self.positions)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: int) -> Tensor:
        """(3, h, w) uint8."""
        position = int(self.positions[index])
        data = self.records.image(position)
        return decode(Path(self.records.name(position)), self.max_side, data)

    def collate(self, samples: list[Tensor]) -> ImageBatch:
        """Join (3, h, w) images into one padded batch."""
        return ImageBatch.of(samples)

    def select(self, indices: Tensor) -> RecordImages:
        """The pictures at `indices`, in that order."""
        labels = None if self.labels is None else self.labels[indices]
        return replace(self, positions=self.positions[indices], labels=labels)


def read_record_images(
    records: Records, names: Sequence[str] | None, max_side: int | None, on_error: OnError
) -> RecordImages | None:
    """The pictures whose field `split` is one of `names`; None where no record has that split.

    Without such a field, all pictures belong to "train". Classes are the field label, cls or class.
    """
    positions: list[int] = []
    values: list[str | None] = []
    broken: list[str] = []
    seen = 0
    for index in track(range(len(records)), "Reading records", len(records)):
        fields = records.fields(index)
        if names is not None and str(fields.get("split", "train")) not in names:
            continue
        seen += 1
        problem = records.image_problem(index)
        if problem is not None:
            broken.append(problem)
            continue
        positions.append(index)
        label = next((fields[key] for key in LABEL_FIELDS if fields.get(key) is not None), None)
        values.append(None if label is None else str(label))
    if not seen:
        return None
    report_broken(broken, seen, "records", on_error)
    if not positions:
        raise UserError(f"{records.title} has no picture that can be read.")
    labels, classes = number_classes(values)
    return RecordImages(records, torch.tensor(positions), labels, classes, max_side)


def number_classes(values: Sequence[str | None]) -> tuple[Tensor | None, list[str]]:
    """(N,) classes and their names, in order; None where a value is missing."""
    if any(value is None for value in values):
        return None, []
    found = {str(value) for value in values}
    # Numbers in the order of numbers: 2 before 10.
    numeric = all(value.isdecimal() for value in found)
    classes = sorted(found, key=lambda v: (int(v) if numeric else 0, v))
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[str(value)] for value in values]), classes
