"""Pictures of shards and of Hugging Face data sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.images.decode import decode
from macl.modalities.images.sources import Pictures
from macl.modalities.input_errors import OnError, report_broken
from macl.modalities.records import ReadOnDemand, Records
from macl.modalities.splits import number_classes

LABEL_FIELDS = ("label", "cls", "class")


@dataclass(eq=False)
class RecordImages(Pictures):
    """Pictures of records, decoded when asked for."""

    per_image = ("positions", "labels")

    records: Records
    positions: Tensor
    """(N,) int64, which of the records."""
    labels: Tensor | None = None
    classes: Sequence[str] = ()
    max_side: int | None = None

    def __post_init__(self) -> None:
        self.names = ReadOnDemand(self.records.name, self.positions)

    def __getitem__(self, index: int) -> Tensor:
        """(3, h, w) uint8."""
        position = int(self.positions[index])
        data = self.records.image(position)
        return decode(Path(self.records.name(position)), self.max_side, data)


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
