"""Tables of images with captions: which file, which columns. Without torch."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from macl.core.errors import UserError
from macl.modalities.tables import TABLE_SUFFIXES, column_names, require_columns, table_kind

if TYPE_CHECKING:
    from macl.modalities.image_text.sections import PairDataConfig

USUAL = {
    "image": ("image", "file", "filename", "file_name", "filepath", "image_path", "path"),
    "caption": ("caption", "captions", "text", "title", "sentence", "description", "txt"),
    "group": ("concept",),
    "split": ("split",),
    "label": ("label", "class"),
}
"""Names by which the column of a role is found; the text of a record comes before its fields."""
TABLE_NAMES = ("captions", "metadata", "pairs", "train")
"""Which table of a folder is meant, where it has several."""


def find_table(path: Path) -> Path:
    """The table of pairs that a path stands for: itself, or the one in the folder."""
    if path.is_file():
        if table_kind(path) not in TABLE_SUFFIXES:
            raise UserError(
                f"{path}: pairs are given as a table ({', '.join(TABLE_SUFFIXES)}) or its folder."
            )
        return path
    if not path.is_dir():
        raise UserError(f"{path} does not exist: give a table of images and captions.")
    tables = sorted(file for file in path.iterdir() if table_kind(file) in TABLE_SUFFIXES)
    usual = [t for name in TABLE_NAMES for t in tables if t.name.partition(".")[0] == name]
    if usual or len(tables) == 1:
        return (usual or tables)[0]
    listed = f"it has {', '.join(t.name for t in tables)}: name one" if tables else "it has none"
    raise UserError(f"{path}: a folder of pairs has one table ({listed}).")


def columns_of(config: PairDataConfig, table: Path, role: str) -> list[str]:
    """The columns of a role: those that the section names, else the first with a usual name."""
    names = column_names(table, config.encoding)
    given = getattr(config, role) or ()
    columns = [given] if isinstance(given, str) else list(given)
    require_columns(columns, names, table)
    columns = columns or [name for name in USUAL[role] if name in names][:1]
    if not columns and role in ("image", "caption"):
        raise UserError(
            f"{table} has no column for the {role} with one of the usual names "
            f"({', '.join(USUAL[role])}): set data.{role} to one of {', '.join(names)}."
        )
    return columns
