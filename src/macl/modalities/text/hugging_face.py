"""Data sets on the Hugging Face hub, row by row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from macl.core.errors import UserError
from macl.modalities.tables import require_columns


def read_hugging_face(name: str, split: str, columns: Sequence[str]) -> Iterator[list[Any]]:
    """Yield rows of the Hugging Face data set `NAME` or `NAME:CONFIGURATION`, downloading it."""
    try:
        import datasets
    except ImportError as error:
        raise UserError(
            f"hf:{name} needs the package 'datasets': pip install datasets, or give a file."
        ) from error
    repository, _, configuration = name.partition(":")
    try:
        data = datasets.load_dataset(repository, configuration or None, split=split)
    except Exception as error:  # the library raises a different type for each thing it lacks
        raise UserError(f"hf:{name}, split {split!r}, could not be loaded: {error}") from error
    require_columns(columns, data.column_names, f"hf:{name}")
    for row in data:
        yield [row[column] for column in columns]
