"""Samples of large data sets by position: WebDataset shards, Hugging Face data sets.

So they are ordinary data sets: order, sharding and resuming are those of any other data.
"""

from __future__ import annotations

import abc
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from macl.core.errors import UserError
from macl.core.remote import on_network, url_of

if TYPE_CHECKING:
    from torch import Tensor

T = TypeVar("T")

TEXT_FIELD = "txt"
"""The field with the text of a sample that has one beside its fields."""

MOST_SHARDS = 1_000_000
"""Files that {first..last} may stand for."""


class ReadOnDemand(Sequence[T]):
    """Items that are read when asked for: item i is `read(keys[i])`, of (N, …) int64 keys."""

    def __init__(self, read: Callable[[Any], T], keys: Tensor) -> None:
        self.read, self.keys = read, keys

    def __len__(self) -> int:
        return len(self.keys)

    def __getitem__(self, index: Any) -> Any:
        keys = self.keys[index].tolist()
        return [self.read(key) for key in keys] if isinstance(index, slice) else self.read(keys)

    def select(self, indices: Tensor) -> ReadOnDemand[T]:
        """The items at `indices`, in that order."""
        return ReadOnDemand(self.read, self.keys[indices])


class Records(abc.ABC):
    """Samples with an image, a text and named fields, each where the data has it."""

    title: str
    """What a message calls the data."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def name(self, index: int) -> str:
        """What a person calls the sample."""

    @abc.abstractmethod
    def image(self, index: int) -> bytes:
        """The encoded image; `UserError` where there is none."""

    @abc.abstractmethod
    def fields(self, index: int) -> Mapping[str, Any]:
        """The named values; its text is the field "txt". Unreadable ones are not there."""

    def splits(self) -> set[str]:
        """The values of the field "split"."""
        splits = (self.fields(index).get("split") for index in range(len(self)))
        return {str(split) for split in splits if split is not None}

    def check_image(self, index: int) -> None:
        """`UserError` where the image cannot be used."""
        from macl.modalities.images.decode import check

        check(Path(self.name(index)), self.image(index))

    def image_problem(self, index: int) -> str | None:
        """Why the image cannot be used; None: it can."""
        try:
            self.check_image(index)
        except UserError as error:
            return str(error)
        return None


def shard_files(path: Path) -> list[Path]:
    """The .tar files that a path stands for, in order; empty where it stands for something else."""
    if path.is_dir():
        return sorted(path.glob("*.tar"))
    return expand_braces(path) if path.suffix.lower() == ".tar" else []


def expand_braces(path: Path) -> list[Path]:
    """The paths that {first..last} stands for, in order; the path itself without braces.

    Numbers have as many digits as the first one is written with: shards-{000..012}.tar.
    """
    numbers = re.search(r"\{(\d+)\.\.(\d+)\}", str(path))
    if numbers is None or int(numbers[2]) - int(numbers[1]) >= MOST_SHARDS:
        return [path]
    before, after = str(path)[: numbers.start()], str(path)[numbers.end() :]
    return [
        expanded
        for number in range(int(numbers[1]), int(numbers[2]) + 1)
        for expanded in expand_braces(Path(f"{before}{number:0{len(numbers[1])}}{after}"))
    ]


def path_exists(path: Path) -> bool:
    """Whether a path, or every file that its braces stand for, is there; a URL is not asked."""
    return (
        url_of(path) is not None
        or path.exists()
        or all(each.exists() for each in expand_braces(path))
    )


def is_records(path: Path) -> bool:
    """Whether `open_records` opens what is here; a parquet file may be a table of texts instead."""
    return bool(shard_files(path)) or is_hugging_face(path)


def is_hugging_face(path: Path) -> bool:
    """Whether this is a folder that `save_to_disk` of the library `datasets` wrote."""
    return any((path / name).is_file() for name in ("dataset_dict.json", "state.json"))


def open_records(path: Path, image: str | None = None, *, download: bool = False) -> Records | None:
    """The samples of shards, of a folder of `save_to_disk`, or of a parquet file with images.

    `image` is the column of the image in a Hugging Face data set; None: the first with images.
    Shards on the network need `download`. Returns None where `path` is none of these.
    """
    if path.suffix.lower() == ".parquet" or is_hugging_face(path):
        from macl.modalities.hugging_face import HuggingFaceRecords, has_pictures

        if is_hugging_face(path) or has_pictures(path):
            return HuggingFaceRecords(path, image)
    files = shard_files(path)
    if not files:
        return None
    if on_network(path) and not download:
        raise UserError(
            f"{path} is on the network. Give it as `data=`, or set data.download=true, to allow it."
        )
    missing = [file for file in files if url_of(file) is None and not file.is_file()]
    if missing:
        raise UserError(f"{missing[0]} does not exist; {path} names {len(files)} shards.")
    from macl.modalities.shards import TarRecords

    return TarRecords(files, str(path))
