"""Image–text data of a recipe: which table, which columns, which pairs of which split."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macl.core.errors import UserError, nearest
from macl.modalities.broken import REPORTED, report_broken
from macl.modalities.hugging_face import has_pictures
from macl.modalities.image_text.digits import digit_pairs
from macl.modalities.image_text.pairs import Captions, PairDataset
from macl.modalities.image_text.records import captions_of, has_split, load_record_pairs
from macl.modalities.image_text.sections import SPLITS, PairDataConfig
from macl.modalities.images.data import open_images
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.images.sources import ImageFiles
from macl.modalities.protocols import Dataset
from macl.modalities.records import Records, is_records, open_records
from macl.modalities.splits import random_subset
from macl.modalities.tables import (
    TABLE_SUFFIXES,
    column_names,
    read_table,
    require_columns,
    table_kind,
)
from macl.modalities.text.data import STANDARD_INPUT, open_text
from macl.modalities.text.sections import TextDataConfig

IMAGE_COLUMNS = ("image", "file", "filename", "file_name", "filepath", "image_path", "path")
CAPTION_COLUMNS = ("caption", "captions", "text", "title", "sentence", "description", "txt")
GROUP_COLUMNS = ("concept",)
SPLIT_COLUMNS = ("split",)
LABEL_COLUMNS = ("label", "class")
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
        pairs = digit_pairs(split)
    else:
        records = pair_records(config)
        if records is not None:
            pairs = _read_records(config, records, split)
        else:
            pairs = _read_split(config, find_table(config.path), split)
    return pairs.select(random_subset(len(pairs), config.limit, config.seed))


def open_side(config: PairDataConfig, path: Path) -> Dataset:
    """Pictures or texts to be embedded, by what `path` is; `config.side` decides for tables."""
    path = path.expanduser()
    records = pair_records(config.model_copy(update={"path": path}))
    if records is not None:
        found = load_record_pairs(config, records, ())
        found = found.select(random_subset(len(found), config.limit, config.seed))
        return found.texts() if config.side == "text" else found.images
    is_table = table_kind(path) in TABLE_SUFFIXES
    if is_table and _has_pictures(config, path):
        pairs = _read_pairs(config, path, {})
        pairs = pairs.select(random_subset(len(pairs), config.limit, config.seed))
        return pairs.texts() if config.side == "text" else pairs.images
    if is_table or path == STANDARD_INPUT or path.suffix.lower() == ".txt":
        _refuse_side(config, path, "image")
        column = _caption_columns(config, path)[0] if is_table else "text"
        return open_text(
            TextDataConfig(column=column, limit=config.limit, encoding=config.encoding), path
        )
    _refuse_side(config, path, "text")
    return open_images(image_config(config), path)


def image_config(config: PairDataConfig) -> ImageDataConfig:
    """How pictures without captions are read."""
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
        raise UserError(f"{path} does not exist: give a table of pictures and captions.")
    tables = sorted(file for file in path.iterdir() if table_kind(file) in TABLE_SUFFIXES)
    for name in TABLE_NAMES:
        for file in tables:
            if file.name.partition(".")[0] == name:
                return file
    if len(tables) == 1:
        return tables[0]
    found = f"it has {', '.join(t.name for t in tables)}: name one" if tables else "it has none"
    raise UserError(f"{path}: a folder of pairs has one table ({found}).")


def has_table(path: Path) -> bool:
    """Whether `path` is a table of pairs, a folder with one, or records with captions."""
    if is_records(path):
        return True
    try:
        find_table(path)
    except UserError:
        return False
    return True


def pair_records(config: PairDataConfig) -> Records | None:
    """The shards or the Hugging Face data set that `config.path` is; None: it is neither."""
    path = config.path
    if path is None or (path.suffix.lower() == ".parquet" and not has_pictures(path)):
        return None
    return open_records(path, config.image)


def _read_records(config: PairDataConfig, records: Records, split: str) -> PairDataset:
    if has_split(config, records):
        return load_record_pairs(config, records, getattr(config, f"{split}_split"))
    return _undivided(config, lambda: load_record_pairs(config, records, ()), split)


def _undivided(config: PairDataConfig, read: Callable[[], PairDataset], split: str) -> PairDataset:
    """The train or test part of data without a column for the split."""
    if split == "validation" or (split == "test" and not config.holdout):
        raise _no_split(config, split)
    whole = read()
    train, held = _hold_out(whole.groups, config.holdout, config.seed)
    return whole.select(train if split == "train" else held)


def _read_split(config: PairDataConfig, table: Path, split: str) -> PairDataset:
    column = _optional(config.split, SPLIT_COLUMNS, config, table)
    if column is not None:
        values = dict.fromkeys(getattr(config, f"{split}_split"), split)
        pairs = _read_pairs(config, table, values)
    else:
        pairs = _undivided(config, lambda: _read_pairs(config, table, {}), split)
    if len(pairs) < 2:
        raise UserError(
            f"the {split} split of {table} has {len(pairs)} picture; it needs two at least."
        )
    return pairs


def _hold_out(groups: Tensor, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Ascending positions of (train, test): `share` of the concepts are for testing."""
    _, concept = groups.unique(return_inverse=True)
    count = int(concept.max()) + 1
    order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
    is_held = torch.zeros(count, dtype=torch.bool)
    is_held[order[: round(share * count)]] = True
    test = is_held[concept]
    return (~test).nonzero().flatten(), test.nonzero().flatten()


def _roles(config: PairDataConfig, table: Path) -> dict[str, str]:
    """Role → column, of the columns that there are; captions are not among them."""
    names = column_names(table, config.encoding)
    roles = {
        "image": _required(config.image, IMAGE_COLUMNS, names, table, "image"),
        "group": _optional(config.group, GROUP_COLUMNS, config, table),
        "label": _optional(config.label, LABEL_COLUMNS, config, table),
        "split": _optional(config.split, SPLIT_COLUMNS, config, table),
    }
    return {role: column for role, column in roles.items() if column is not None}


def _read_pairs(config: PairDataConfig, table: Path, splits: dict[str, str]) -> PairDataset:
    """The pairs of a table; with `splits` only the rows whose value of the split is among them.

    Rows with the same file are one picture with several captions.
    """
    roles, texts = _roles(config, table), _caption_columns(config, table)
    pictures: dict[str, _Picture] = {}
    broken: list[str] = []
    seen = count = 0
    for number, row in enumerate(
        read_table(table, [*roles.values(), *texts], config.encoding, header=True), start=1
    ):
        value = dict(zip(roles, row, strict=False))
        if splits and str(value.get("split")) not in splits:
            continue
        seen += 1
        file, captions = value["image"], captions_of(row[len(roles) :], config.join)
        if not isinstance(file, str) or not file.strip() or not captions:
            count += 1
            if len(broken) < REPORTED:
                what = "caption" if isinstance(file, str) and file.strip() else "file"
                broken.append(f"row {number} of {table} has no {what}")
            continue
        found = pictures.setdefault(file, _Picture(value.get("group"), value.get("label")))
        found.captions += captions
    report_broken(broken, seen, "rows", config.on_error, count)
    if not pictures:
        wanted = f" whose split is {' or '.join(splits)}" if splits else ""
        raise UserError(f"{table} has no row{wanted} with a picture and a caption.")
    images = ImageFiles(table.parent, list(pictures), max_side=config.max_side)
    whole = images.find_readable(config.on_error)
    return _assembled(images, list(pictures.values())).select(whole)


@dataclasses.dataclass
class _Picture:
    group: Any
    label: Any
    captions: list[str] = dataclasses.field(default_factory=list)


def _assembled(images: ImageFiles, pictures: Sequence[_Picture]) -> PairDataset:
    captions: list[Captions] = [tuple(dict.fromkeys(p.captions)) for p in pictures]
    concepts = None
    if any(p.group not in (None, "") for p in pictures):
        # A picture without a concept is one of its own.
        concepts = [
            f"picture {name}" if p.group in (None, "") else str(p.group)
            for name, p in zip(images.names, pictures, strict=True)
        ]
    labels, classes = None, list[str]()
    if all(p.label not in (None, "") for p in pictures):
        classes = sorted({str(p.label) for p in pictures})
        number = {name: i for i, name in enumerate(classes)}
        labels = torch.tensor([number[str(p.label)] for p in pictures])
    return PairDataset(images, captions, concepts, labels, classes)


def _has_pictures(config: PairDataConfig, table: Path) -> bool:
    names = column_names(table, config.encoding)
    return config.image in names if config.image else any(c in names for c in IMAGE_COLUMNS)


def _caption_columns(config: PairDataConfig, table: Path) -> list[str]:
    names = column_names(table, config.encoding)
    given = config.caption or (None,)
    return [_required(each, CAPTION_COLUMNS, names, table, "caption") for each in given]


def _required(
    given: str | None, usual: Sequence[str], names: Sequence[str], table: Path, key: str
) -> str:
    if given is not None:
        require_columns([given], names, table)
        return given
    found = next((name for name in usual if name in names), None)
    if found is None:
        raise UserError(
            f"{table} has no column for the {key} with one of the usual names "
            f"({', '.join(usual)}): set data.{key} to one of {', '.join(names)}."
        )
    return found


def _optional(
    given: str | None, usual: Sequence[str], config: PairDataConfig, table: Path
) -> str | None:
    names = column_names(table, config.encoding)
    if given is not None:
        require_columns([given], names, table)
        return given
    return next((name for name in usual if name in names), None)


def _refuse_side(config: PairDataConfig, path: Path, side: str) -> None:
    if config.side == side:
        other = "texts" if side == "image" else "pictures"
        raise UserError(f"{path} holds {other}: leave data.side={side} out.")


def _no_split(config: PairDataConfig, split: str) -> UserError:
    title = config.path or "digits-captions"
    return UserError(
        f"{title} has no {split} split: give the table a column `split` with {', '.join(SPLITS)}, "
        "or set data.holdout=0.1 to set some concepts apart as test."
    )
