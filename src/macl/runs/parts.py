"""Embeddings as a folder of parts: made one at a time, continued after a stop, divided."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from macl.core.errors import UserError
from macl.core.files import remove_partial, write_text
from macl.core.outputs import check_dtype
from macl.core.progress import silence, track
from macl.modalities.protocols import DataMark, Dataset, Embed, SkippedRow
from macl.modalities.splits import Subset
from macl.runs.vectors import table_of, write_parquet, write_skipped

MANIFEST = "vectors.json"
"""Says what the parts of a folder are parts of."""


@dataclass(frozen=True)
class Plan:
    """What a folder holds when it is complete: part k has the items from k·`part_items` on."""

    encoder: str
    """The fingerprint of the encoder."""
    items: int
    names: str
    """A hash of some of the names: with `items`, the `DataMark` of the data."""
    part_items: int
    dtype: str
    dims: int | None = None
    """How many coordinates are kept; None: all."""

    @classmethod
    def of(
        cls, dataset: Dataset, encoder: str, dtype: str, part_items: int, dims: int | None = None
    ) -> Plan:
        """The plan for a data set."""
        check_dtype(dtype)
        if part_items < 1:
            raise UserError(f"`part_items=` {part_items}: a part has one item at least.")
        mark = DataMark.of(dataset)
        return cls(encoder, mark.samples, mark.names, part_items, dtype, dims)

    @classmethod
    def read(cls, folder: Path) -> Plan | None:
        """The plan of a folder; None where there is none."""
        file = folder / MANIFEST
        if not file.is_file():
            return None
        try:
            return cls(**json.loads(file.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError) as error:
            raise UserError(f"{file} cannot be read ({error}): remove the folder.") from error

    def claim(self, folder: Path) -> None:
        """Write the plan into `folder`; `UserError` unless it is new or has the same one."""
        # Listed first: another process may be writing the plan at this moment.
        others = [path.name for path in folder.iterdir()] if folder.is_dir() else []
        before = self.read(folder)
        if before is None:
            if folder.is_file() or any(not name.startswith(".") for name in others):
                raise UserError(f"{folder} holds something else: choose a folder that is new.")
            write_text(folder / MANIFEST, json.dumps(asdict(self), indent=2))
        elif before != self:
            now = asdict(self)
            changed = [key for key, value in asdict(before).items() if value != now[key]]
            raise UserError(
                f"{folder} has parts of something else: {', '.join(changed)} differs. Give the "
                "same encoder, input and settings to continue, or choose another folder."
            )
        remove_partial(folder)

    @property
    def parts(self) -> int:
        """How many parts there are."""
        return -(-self.items // self.part_items)

    def missing(self, folder: Path) -> list[int]:
        """The parts that are still to be made."""
        return [k for k in range(self.parts) if not (folder / part_name(k)).is_file()]


def part_name(number: int) -> str:
    """The file of a part: part-00017.parquet."""
    return f"part-{number:05d}.parquet"


def share_of(numbers: Sequence[int], number: int, count: int) -> list[int]:
    """Part `number` of `count`, from 1, of the parts to be made: every `count`-th."""
    if not 1 <= number <= count:
        raise UserError(f"`parts=` {number}/{count}: the parts are 1/{count} to {count}/{count}.")
    return [k for k in numbers if k % count == number - 1]


def write_parts(
    embed: Embed, dataset: Dataset, folder: Path, plan: Plan, numbers: Sequence[int]
) -> None:
    """Make the parts `numbers`, one after the other, each as a whole; those that are there stay."""
    for number in track(numbers, "parts", len(numbers)):
        file = folder / part_name(number)
        if not file.is_file():
            with silence():
                write_part(embed, dataset, file, plan, number)


def write_part(embed: Embed, dataset: Dataset, file: Path, plan: Plan, number: int) -> None:
    """Embed the items of a part and write them; those that fail are listed beside it."""
    start = number * plan.part_items
    wanted = list(range(start, min(start + plan.part_items, plan.items)))
    failed: dict[int, str] = {}
    try:
        vectors = embed(Subset(dataset, torch.tensor(wanted)))
    except UserError:
        failed = dict(_unreadable(dataset, wanted))
        if len(failed) in (0, len(wanted)):
            raise
        wanted = [index for index in wanted if index not in failed]
        vectors = embed(Subset(dataset, torch.tensor(wanted)))
    finite = vectors.isfinite().all(dim=1)
    failed |= {wanted[i]: "its vector is not finite" for i in (~finite).nonzero().flatten()}
    kept = [index for index in wanted if index not in failed]
    columns: dict[str, list[Any]] = {
        "name": [dataset.names[index] for index in kept],
        "row": [_row(dataset, index) for index in kept],
    }
    if dataset.labels is not None and dataset.classes:
        columns["label"] = [dataset.classes[int(dataset.labels[index])] for index in kept]
    skipped = [SkippedRow(_row(dataset, i), dataset.names[i], why) for i, why in failed.items()]
    write_skipped(file, sorted(skipped))  # first: a part that is there is complete
    array = vectors[finite].cpu().numpy()
    write_parquet(file, table_of(array, columns, plan.encoder, plan.dtype))


def _unreadable(dataset: Dataset, indices: Sequence[int]) -> Iterator[tuple[int, str]]:
    """The items that cannot be read, each with the reason."""
    for index in indices:
        try:
            dataset.collate([dataset[index]])
        except (UserError, OSError, ValueError) as error:
            yield index, str(error)


def _row(dataset: Dataset, index: int) -> int:
    return index + 1 if dataset.rows is None else dataset.rows[index]
