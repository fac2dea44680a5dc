"""Image–text data of a recipe: which table, which columns, which pairs of which split."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch

from macl.core.errors import UserError, nearest
from macl.modalities.hugging_face import has_pictures
from macl.modalities.image_text.pairs import PairDataset, digit_pairs
from macl.modalities.image_text.records import captions_of, has_split, load_record_pairs
from macl.modalities.image_text.sections import SPLITS, PairDataConfig
from macl.modalities.images.data import open_images
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.images.sources import ImageFiles
from macl.modalities.input_errors import report_broken
from macl.modalities.protocols import Dataset
from macl.modalities.records import Records, is_records, open_records
from macl.modalities.splits import number_classes, random_subset
from macl.modalities.tables import (
    TABLE_SUFFIXES,
    column_names,
    read_table,
    require_columns,
    table_kind,
)
from macl.modalities.text.data import STANDARD_INPUT, open_text
from macl.modalities.text.sections import TextDataConfig

USUAL = {
    "image": ("image", "file", "filename", "file_name", "filepath", "image_path", "path"),
    "caption": ("caption", "captions", "text", "title", "sentence", "description", "txt"),
    "group": ("concept",),
    "split": ("split",),
    "label": ("label", "class"),
}
"""Names by which the column of a role is found."""
TABLE_NAMES = ("captions", "metadata", "pairs", "train")
"""Which table of a folder is meant, where it has several."""


def load_pairs(config: PairDataConfig, split: str) -> PairDataset:
    """The pairs of "train", "validation" or "test".

    Raises:
        UserError: the split is not there, or too much of it cannot be used.
    """
    if split not in SPLITS:
        raise UserError(f"no split is called {split!r}.{nearest(split, SPLITS)}")
    if config.path is None:
        if split == "validation":
            raise _no_split(config, split)
        return _limited(config, digit_pairs(split))
    records = pair_records(config, config.path)
    if records is not None:
        divided, read = has_split(config, records), partial(load_record_pairs, config, records)
    else:
        table = find_table(config.path)
        divided = _Columns(config, table).find("split") is not None
        read = partial(_read_pairs, config, table)
    if divided:
        pairs = read(getattr(config, f"{split}_split"))
    elif split == "validation" or (split == "test" and not config.holdout):
        raise _no_split(config, split)
    else:
        whole = read(())
        concepts = whole.groups.unique()
        held = random_subset(len(concepts), round(config.holdout * len(concepts)), config.seed)
        is_test = torch.isin(whole.groups, concepts[held])
        pairs = whole.select((is_test == (split == "test")).nonzero().flatten())
    if len(pairs) < 2:
        raise UserError(
            f"the {split} split of {config.path} has {len(pairs)} image; it needs two at least."
        )
    return _limited(config, pairs)


def open_side(config: PairDataConfig, path: Path) -> Dataset:
    """Images or texts to be embedded, by what `path` is; `config.side` decides for tables."""
    path = path.expanduser()
    records = pair_records(config, path)
    columns = _Columns(config, path) if table_kind(path) in TABLE_SUFFIXES else None
    if records is not None or (columns is not None and columns.names_images()):
        if records is not None:
            pairs = load_record_pairs(config, records)
        else:
            pairs = _read_pairs(config, path)
        pairs = _limited(config, pairs)
        return pairs.texts() if config.side == "text" else pairs.images
    if columns is not None or path == STANDARD_INPUT or path.suffix.lower() == ".txt":
        _refuse_side(config, path, "image")
        column = columns.captions()[0] if columns is not None else "text"
        settings = TextDataConfig(column=column, limit=config.limit, encoding=config.encoding)
        return open_text(settings, path)
    _refuse_side(config, path, "text")
    return open_images(image_config(config), path)


def image_config(config: PairDataConfig) -> ImageDataConfig:
    """How images without captions are read."""
    shared = {"limit", "seed", "max_side", "on_error"}
    return ImageDataConfig(**config.model_dump(include=shared))


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


def has_table(path: Path) -> bool:
    """Whether `path` is a table of pairs, a folder with one, or records with captions."""
    with suppress(UserError):
        return is_records(path) or find_table(path).is_file()
    return False


def pair_records(config: PairDataConfig, path: Path) -> Records | None:
    """The shards or the Hugging Face data set that `path` is; None: it is neither."""
    if path.suffix.lower() == ".parquet" and not has_pictures(path):
        return None
    return open_records(path, config.image, download=config.download)


def _limited(config: PairDataConfig, pairs: PairDataset) -> PairDataset:
    return pairs.select(random_subset(len(pairs), config.limit, config.seed))


class _Columns:
    """The columns of a table by role: named in the section, else found by a usual name."""

    def __init__(self, config: PairDataConfig, table: Path) -> None:
        self.config, self.table = config, table
        self.names = column_names(table, config.encoding)

    def names_images(self) -> bool:
        """Whether there is a column of image files."""
        usual = (self.config.image,) if self.config.image else USUAL["image"]
        return any(name in self.names for name in usual)

    def find(self, role: str, given: str | None = None) -> str | None:
        """The column of a role; None where no usual name is there."""
        given = given or (None if role == "caption" else getattr(self.config, role))
        if given is not None:
            require_columns([given], self.names, self.table)
            return given
        return next((name for name in USUAL[role] if name in self.names), None)

    def need(self, role: str, given: str | None = None) -> str:
        """The column of a role that every table of pairs has."""
        column = self.find(role, given)
        if column is None:
            raise UserError(
                f"{self.table} has no column for the {role} with one of the usual names "
                f"({', '.join(USUAL[role])}): set data.{role} to one of {', '.join(self.names)}."
            )
        return column

    def captions(self) -> list[str]:
        """The columns that hold captions."""
        return [self.need("caption", given) for given in self.config.caption or (None,)]

    def others(self) -> dict[str, str]:
        """Role → column, of the other columns that there are."""
        optional = {r: c for r in ("group", "label", "split") if (c := self.find(r))}
        return {"image": self.need("image"), **optional}


def _read_pairs(config: PairDataConfig, table: Path, splits: Sequence[str] = ()) -> PairDataset:
    """The pairs of a table; with `splits` only the rows whose value of the split is among them.

    Rows with the same file are one image with several captions.
    """
    columns = _Columns(config, table)
    roles, texts = columns.others(), columns.captions()
    rows = read_table(table, [*roles.values(), *texts], config.encoding, header=True)
    captions: dict[str, list[str]] = {}
    firsts: list[dict[str, Any]] = []
    broken: list[str] = []
    seen = 0
    for number, row in enumerate(rows, start=1):
        values = dict(zip(roles, row, strict=False))
        if splits and str(values.get("split")) not in splits:
            continue
        seen += 1
        file, own = values["image"], captions_of(row[len(roles) :], config.join)
        named = isinstance(file, str) and file.strip()
        if not named or not own:
            broken.append(f"row {number} of {table} has no {'caption' if named else 'file'}")
            continue
        if file not in captions:
            firsts.append(values)
        captions.setdefault(file, []).extend(own)
    report_broken(broken, seen, "rows", config.on_error)
    if not captions:
        wanted = f" whose split is {' or '.join(splits)}" if splits else ""
        raise UserError(f"{table} has no row{wanted} with an image and a caption.")
    files = ImageFiles(table.parent, list(captions), max_side=config.max_side, named_by_data=True)
    whole = files.find_readable(config.on_error)
    groups, labels = ([_given(each.get(role)) for each in firsts] for role in ("group", "label"))
    # An image without a concept is one of its own.
    concepts = [g or f"picture {name}" for name, g in zip(captions, groups, strict=True)]
    return PairDataset(
        files,
        [tuple(dict.fromkeys(own)) for own in captions.values()],
        concepts if any(groups) else None,
        *number_classes(labels),
    ).select(whole)


def _given(value: Any) -> str | None:
    return None if value in (None, "") else str(value)


def _refuse_side(config: PairDataConfig, path: Path, side: str) -> None:
    if config.side == side:
        other = "texts" if side == "image" else "images"
        raise UserError(f"{path} holds {other}: leave data.side={side} out.")


def _no_split(config: PairDataConfig, split: str) -> UserError:
    title = config.path or "digits-captions"
    return UserError(
        f"{title} has no {split} split: give the table a column `split` with {', '.join(SPLITS)}, "
        "or set data.holdout=0.1 to set some concepts apart as test."
    )
