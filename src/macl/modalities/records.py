"""Samples of large data sets by position: WebDataset shards, Hugging Face data sets.

Both are read at random positions without being unpacked, so they are ordinary data sets of known
length: shuffling, sharding over processes and workers, and resuming are those of any other data.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from macl.core.errors import UserError
from macl.modalities.braces import expand_braces

TEXT_FIELD = "txt"
"""The field with the text of a sample that has one beside its fields."""


class Records(abc.ABC):
    """Samples with a picture, a text and named fields, each where the data has it."""

    title: str
    """What a message calls the data."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """What a person calls the sample."""

    @abc.abstractmethod
    def image(self, index: int) -> bytes:
        """The encoded picture; `UserError` where there is none."""

    @abc.abstractmethod
    def fields(self, index: int) -> Mapping[str, Any]:
        """The named values; its text is the field "txt". Unreadable ones are not there."""

    def splits(self) -> set[str]:
        """The values of the field "split"."""
        found = (self.fields(index).get("split") for index in range(len(self)))
        return {str(split) for split in found if split is not None}

    @abc.abstractmethod
    def image_problem(self, index: int) -> str | None:
        """Why the picture cannot be used; None: it can."""


def is_shards(path: Path) -> bool:
    """Whether a path stands for .tar files: one, a pattern in braces, or a folder of them."""
    return bool(shard_files(path))


def shard_files(path: Path) -> list[Path]:
    """The .tar files that a path stands for, in order; empty where it stands for something else."""
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    return expand_braces(path) if path.suffix.lower() == ".tar" else []


def is_records(path: Path) -> bool:
    """Whether `open_records` opens what is here; a parquet file may be a table of texts instead."""
    return is_shards(path) or is_hugging_face(path)


def is_hugging_face(path: Path) -> bool:
    """Whether this is a folder that `save_to_disk` of the library `datasets` wrote."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def open_records(path: Path, image: str | None = None) -> Records | None:
    """The samples at `path`; None where it is neither of shards nor of a Hugging Face data set.

    Args:
        path: shards, a folder of `save_to_disk`, or a parquet file that holds pictures.
        image: the column of the picture in a Hugging Face data set; None: the first with pictures.
    """
    if path.suffix.lower() == ".parquet" or is_hugging_face(path):
        from macl.modalities.hugging_face import HuggingFaceRecords

        return HuggingFaceRecords.open(path, image)
    files = shard_files(path)
    if not files:
        return None
    missing = [file for file in files if not file.is_file()]
    if missing:
        raise UserError(f"{missing[0]} does not exist; {path} names {len(files)} shards.")
    from macl.modalities.shards import TarRecords

    return TarRecords.open(files, str(path))
