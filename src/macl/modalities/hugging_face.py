"""Data sets that the library `datasets` wrote, by position."""

from __future__ import annotations

import json
from bisect import bisect_right
from itertools import accumulate
from pathlib import Path
from typing import Any

from macl.core.errors import UserError, nearest
from macl.core.inside import file_inside
from macl.core.installed import require
from macl.modalities.records import Records


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
        columns = {name: feature for _, rows in splits for name, feature in rows.features.items()}
        images = [name for name, kind in columns.items() if _holds_images(kind)]
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


def _require_own_files(folder: Path) -> None:
    """`UserError` if the lists of splits and files name something outside of the data set."""
    for listed in folder.rglob("dataset_dict.json"):
        for split in json.loads(listed.read_text(encoding="utf-8"))["splits"]:
            file_inside(listed.parent, f"{split}/state.json")
    for listed in folder.rglob("state.json"):
        for file in json.loads(listed.read_text(encoding="utf-8"))["_data_files"]:
            file_inside(listed.parent, file["filename"])


def _holds_images(feature: Any) -> bool:
    """A column of images, or of {bytes, path} as images are stored in parquet."""
    if type(feature).__name__ == "Image":
        return True
    return isinstance(feature, dict) and {"bytes", "path"} <= set(feature)


def has_pictures(path: Path) -> bool:
    """Whether a parquet file holds images, as the library `datasets` writes them."""
    import pyarrow
    from pyarrow import parquet

    try:
        schema = parquet.read_schema(path)
    except (OSError, pyarrow.ArrowException):
        return False
    structs = [field.type for field in schema if pyarrow.types.is_struct(field.type)]
    return any({"bytes", "path"} <= {field.name for field in kind} for kind in structs)
