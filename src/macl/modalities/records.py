"""Samples of large data sets by position: WebDataset shards, Hugging Face data sets.

So they are ordinary data sets: order, sharding and resuming are those of any other data.
"""

from __future__ import annotations

import abc
import json
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from macl.core.errors import UserError, nearest
from macl.core.inside import file_inside
from macl.core.installed import require
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


class HuggingFaceRecords(Records):
    """The rows of a folder of `save_to_disk`, or of a parquet file, which are kept as Arrow.

    The name of a split is the field "split".
    """

    def __init__(self, path: Path, image: str | None = None) -> None:
        require("datasets", "shards", str(path))
        import datasets

        try:
            if path.suffix.lower() == ".parquet":
                data: Any = datasets.Dataset.from_parquet(str(path))
            else:
                _require_own_files(path)
                data = datasets.load_from_disk(str(path))
        except Exception as error:  # the library raises a different type for each thing it lacks
            raise UserError(f"{path} cannot be read as a data set: {error}") from error
        splits = data.items() if isinstance(data, dict) else [("", data)]
        images = [name for _, rows in splits for name in _image_columns(rows.features.arrow_schema)]
        if image is not None and image not in images:
            raise UserError(f"{path} has no column {image!r} of images.{nearest(image, images)}")
        self.column = image or next(iter(images), None)
        if self.column is not None:
            raw = datasets.Image(decode=False)
            splits = [(name, rows.cast_column(self.column, raw)) for name, rows in splits]
        self.title, self.parts = str(path), list(splits)
        self.root = path if path.is_dir() else path.parent
        self.ends = list(accumulate(len(rows) for _, rows in self.parts))

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        """The split and the number of the row, from 1."""
        split, _, row = self._place(index)
        return f"{split or 'row'}/{row + 1:06d}"

    def image(self, index: int) -> bytes:
        """The bytes of the image, which may be in a file of its own, inside the data set."""
        _, rows, row = self._place(index)
        value = None if self.column is None else rows[row][self.column]
        if value is None:
            raise UserError(f"{self.title}: {self.name(index)} has no image.")
        if value["bytes"] is not None:
            return bytes(value["bytes"])
        try:
            return file_inside(self.root, str(value["path"])).read_bytes()
        except (OSError, UserError) as error:
            raise UserError(f"{self.title}: {self.name(index)}: {error}") from error

    def fields(self, index: int) -> dict[str, Any]:
        """The other columns."""
        split, rows, row = self._place(index)
        others = {name: value for name, value in rows[row].items() if name != self.column}
        return {"split": split, **others} if split else others

    def splits(self) -> set[str]:
        """The names of the splits, or the values of a column "split"."""
        named = {split for split, _ in self.parts if split}
        return named or super().splits()

    def _place(self, index: int) -> tuple[str, Any, int]:
        part = bisect_right(self.ends, index)
        split, rows = self.parts[part]
        return split, rows, index - (self.ends[part] - len(rows))


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


def _require_own_files(folder: Path) -> None:
    """`UserError` if the lists of splits and files name something outside of the data set."""
    for listed in folder.rglob("dataset_dict.json"):
        for split in json.loads(listed.read_text(encoding="utf-8"))["splits"]:
            file_inside(listed.parent, f"{split}/state.json")
    for listed in folder.rglob("state.json"):
        for file in json.loads(listed.read_text(encoding="utf-8"))["_data_files"]:
            file_inside(listed.parent, file["filename"])


def has_pictures(path: Path) -> bool:
    """Whether this is a parquet file of images, as the library `datasets` writes them."""
    if path.suffix.lower() != ".parquet":
        return False
    import pyarrow
    from pyarrow import parquet

    try:
        return bool(_image_columns(parquet.read_schema(path)))
    except (OSError, pyarrow.ArrowException):
        return False


def _image_columns(schema: Any) -> list[str]:
    """The columns of {bytes, path}, which is how images are stored."""
    from pyarrow.types import is_struct

    structs = (field for field in schema if is_struct(field.type))
    return [each.name for each in structs if {"bytes", "path"} <= {part.name for part in each.type}]
