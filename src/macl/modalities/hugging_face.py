"""Data sets of the library `datasets` on disk, by position; nothing is downloaded."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from macl.core.errors import UserError, nearest
from macl.modalities.images.decode import check
from macl.modalities.records import Records


class HuggingFaceRecords(Records):
    """The rows of one or several splits; the name of a split is the field "split"."""

    def __init__(self, title: str, splits: Sequence[tuple[str, Any]], image: str | None) -> None:
        self.title, self.parts, self.column = title, list(splits), image
        self.ends = list(accumulate(len(rows) for _, rows in self.parts))

    @classmethod
    def open(cls, path: Path, image: str | None = None) -> HuggingFaceRecords:
        """A folder of `save_to_disk`, or a parquet file, whose rows the library keeps as Arrow."""
        try:
            import datasets
        except ImportError as error:
            raise UserError(
                f"{path} needs the package 'datasets': pip install 'macl[shards]'."
            ) from error
        try:
            if path.suffix.lower() == ".parquet":
                found: Any = datasets.Dataset.from_parquet(str(path))
            else:
                found = datasets.load_from_disk(str(path))
        except Exception as error:  # the library raises a different type for each thing it lacks
            raise UserError(f"{path} cannot be read as a data set: {error}") from error
        splits = found.items() if isinstance(found, dict) else [("", found)]
        columns = {name: feature for _, rows in splits for name, feature in rows.features.items()}
        pictures = [name for name, kind in columns.items() if _holds_pictures(kind)]
        if image is not None and image not in pictures:
            raise UserError(
                f"{path} has no column {image!r} of pictures.{nearest(image, pictures)}"
            )
        column = image or next(iter(pictures), None)
        raw = datasets.Image(decode=False)
        prepared = [
            (name, rows if column is None else rows.cast_column(column, raw))
            for name, rows in splits
        ]
        return cls(str(path), prepared, column)

    def __len__(self) -> int:
        return self.ends[-1] if self.ends else 0

    def name(self, index: int) -> str:
        """The split and the number of the row, from 1."""
        split, _, row = self._place(index)
        return f"{split or 'row'}/{row + 1:06d}"

    def image(self, index: int) -> bytes:
        """The bytes of the picture, which may be in a file of its own."""
        _, rows, row = self._place(index)
        value = None if self.column is None else rows[row][self.column]
        if value is None:
            raise UserError(f"{self.title}: {self.name(index)} has no picture.")
        if value["bytes"] is not None:
            data: bytes = value["bytes"]
            return data
        try:
            return Path(value["path"]).read_bytes()
        except OSError as error:
            raise UserError(f"{self.title}: {self.name(index)}: {error}") from error

    def fields(self, index: int) -> dict[str, Any]:
        """The other columns."""
        split, rows, row = self._place(index)
        found = {name: value for name, value in rows[row].items() if name != self.column}
        return {"split": split, **found} if split else found

    def splits(self) -> set[str]:
        """The names of the splits, or the values of a column "split"."""
        named = {split for split, _ in self.parts if split}
        return named or super().splits()

    def image_problem(self, index: int) -> str | None:
        """Reads the picture."""
        try:
            check(Path(self.name(index)), self.image(index))
        except UserError as error:
            return str(error)
        return None

    def _place(self, index: int) -> tuple[str, Any, int]:
        part = bisect_right(self.ends, index)
        split, rows = self.parts[part]
        return split, rows, index - (self.ends[part] - len(rows))


def _holds_pictures(feature: Any) -> bool:
    """A column of pictures, or of {bytes, path} as pictures are stored in parquet."""
    if type(feature).__name__ == "Image":
        return True
    return isinstance(feature, dict) and {"bytes", "path"} <= set(feature)


def has_pictures(path: Path) -> bool:
    """Whether a parquet file holds pictures, as the library `datasets` writes them."""
    import pyarrow
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException):
        return False
    structs = [field.type for field in schema if pyarrow.types.is_struct(field.type)]
    return any({"bytes", "path"} <= {field.name for field in kind} for kind in structs)
