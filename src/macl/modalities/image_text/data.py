"""Image–text data of a recipe: which samples, which fields of them, which pairs of which split."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from macl.core.errors import UserError, report_broken
from macl.core.inside import file_inside
from macl.core.progress import track
from macl.modalities.image_text.pairs import PairDataset, digit_pairs
from macl.modalities.image_text.sections import SPLITS, USUAL, PairDataConfig, find_table
from macl.modalities.images.data import open_images
from macl.modalities.images.decode import check
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.images.sources import LABEL_FIELDS, RecordImages
from macl.modalities.protocols import Dataset
from macl.modalities.records import (
    TEXT_FIELD,
    ReadOnDemand,
    Records,
    has_pictures,
    is_records,
    open_records,
)
from macl.modalities.splits import number_classes, random_subset
from macl.modalities.tables import TABLE_SUFFIXES, column_names, read_table, table_kind
from macl.modalities.text.data import STANDARD_INPUT, open_text, text_hash
from macl.modalities.text.sections import TextDataConfig

LOOKED_AT = 100
"""Records by which it is known what fields there are."""


class TableRecords(Records):
    """The images of a table, in memory, its columns under the first of their usual names."""

    def __init__(self, config: PairDataConfig, table: Path) -> None:
        self.title, self.root = str(table), table.parent
        columns = {role: config.columns_of(table, role) for role in USUAL}
        names = [USUAL[role][0] for role in ("group", "split", "label") if columns[role]]
        asked = [name for role in ("image", "group", "split", "label", "caption")
                 for name in columns[role]]  # fmt: skip
        blank = {"split": ""} if columns["split"] else {}
        images: dict[tuple[Any, str], dict[str, Any]] = {}
        rows = read_table(table, asked, config.encoding, header=True)
        for number, (file, *cells) in enumerate(rows, start=1):
            values = zip(names, cells, strict=False)
            fields = blank | {name: str(value) for name, value in values if value not in (None, "")}
            named = isinstance(file, str) and file.strip()
            place = file if named else number, fields.get("split", "")
            captions = images.setdefault(place, {**fields, TEXT_FIELD: []})[TEXT_FIELD]
            captions += captions_of(cells[len(names) :], config.join)
        self.files, self.rows = [file for file, _ in images], list(images.values())

    def __len__(self) -> int:
        return len(self.rows)

    def name(self, index: int) -> str:
        """The file as the table names it."""
        file = self.files[index]
        return file if isinstance(file, str) else f"row {file} of {self.title}"

    def image(self, index: int) -> bytes:
        """The content of the file, which lies in the table's folder."""
        return self._file(index).read_bytes()

    def fields(self, index: int) -> dict[str, Any]:
        """What the first row of the image says, and the captions of all of them."""
        return self.rows[index]

    def check_image(self, index: int) -> None:
        """As the file shows; not all of it is read."""
        check(self._file(index))

    def _file(self, index: int) -> Path:
        if not isinstance(self.files[index], str):
            raise UserError(f"{self.name(index)} has no file")
        return file_inside(self.root, self.files[index])


def load_pairs(config: PairDataConfig, split: str) -> PairDataset:
    """The pairs of "train", "validation" or "test"; `UserError` where there are too few to use."""
    no_split = UserError(
        f"{config.path or 'digits-captions'} has no {split} split: give the table a column `split` "
        f"with {', '.join(SPLITS)}, or set data.holdout=0.1 to set some concepts apart as test."
    )
    if config.path is None:
        if split == "validation":
            raise no_split
        return _limited(config, digit_pairs(split))
    config, records = _open_pairs(config, config.path)
    first = next(filter(None, map(records.fields, range(len(records)))), {})
    if first.get(config.split or "split") is not None:
        pairs = _read_pairs(config, records, getattr(config, f"{split}_split"))
    elif split == "validation" or (split == "test" and not config.holdout):
        raise no_split
    else:
        whole = _read_pairs(config, records)
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
    is_table = table_kind(path) in TABLE_SUFFIXES
    if _has_images(config, path):
        pairs = _limited(config, _read_pairs(*_open_pairs(config, path)))
        return pairs.texts() if config.side == "text" else pairs.images
    if is_table or path == STANDARD_INPUT or path.suffix.lower() == ".txt":
        if config.side == "image":
            raise UserError(f"{path} holds texts: leave data.side=image out.")
        column = config.columns_of(path, "caption")[0] if is_table else "text"
        settings = TextDataConfig(column=column, limit=config.limit, encoding=config.encoding)
        return open_text(settings, path)
    if config.side == "text":
        raise UserError(f"{path} holds images: leave data.side=text out.")
    return open_images(image_config(config), path)


def image_config(config: PairDataConfig) -> ImageDataConfig:
    """How images without captions are read."""
    shared = {"limit", "seed", "max_side", "on_error"}
    return ImageDataConfig(**config.model_dump(include=shared))


def has_table(path: Path) -> bool:
    """Whether `path` is a table of pairs, a folder with one, or records with captions."""
    with suppress(UserError):
        return is_records(path) or find_table(path).is_file()
    return False


def captions_of(cells: Sequence[Any], join: str | None = None) -> list[str]:
    """The captions in some cells, each a text or a list of texts; with `join` they are one."""
    lists = [cell if isinstance(cell, list | tuple) else [cell] for cell in cells]
    texts = [text.strip() for each in lists for text in each if isinstance(text, str)]
    captions = [text for text in texts if text]
    return [join.join(captions)] if captions and join is not None else captions


def _open_pairs(config: PairDataConfig, path: Path) -> tuple[PairDataConfig, Records]:
    """The samples that `path` stands for, and the section by which their fields are read."""
    records = open_records(path, config.image, download=config.download)
    if records is not None:
        return config, records
    keys = ("group", "split", "label", "join")
    usual = config.model_copy(update={"caption": (), **dict.fromkeys(keys)})
    return usual, TableRecords(config, find_table(path))


def _read_pairs(config: PairDataConfig, records: Records, names: Sequence[str] = ()) -> PairDataset:
    """The pairs whose split is one of `names`; all of them where the records have no split.

    Captions stay where they are: 24 bytes are kept of each pair. Those of shards and data sets with
    equal concepts, else equal first captions, are a group.
    """
    _require_captions(records, config.caption)
    key = config.split or "split"
    group_names = (config.group,) if config.group else USUAL["group"]
    label_names = (config.label,) if config.label else LABEL_FIELDS
    read_captions = partial(_captions_at, records, config.caption, config.join)
    kept, broken = list[tuple[int, str | None, int, str | None]](), list[str]()
    for index in track(range(len(records)), "Reading pairs", len(records)):
        fields = records.fields(index)
        split = fields.get(key)
        if split is None and config.split is not None:
            raise UserError(f"{records.name(index)} of {records.title} has no field {key!r}.")
        if names and split is not None and str(split) not in names:
            continue
        captions = read_captions(index)
        problem = records.image_problem(index)
        if problem is None and not captions:
            problem = f"{records.name(index)} has no caption that is text in UTF-8"
        if problem is not None:
            broken.append(problem)
            continue
        concept = _first(fields, group_names)
        group = text_hash(captions[0] if concept is None else f"concept\0{concept}")
        kept.append((index, concept, group, _first(fields, label_names)))
    report_broken(broken, len(kept) + len(broken), "pairs", config.on_error)
    if not kept:
        wanted = f" whose {key} is {' or '.join(names)}" if names else ""
        raise UserError(f"{records.title} has no pair{wanted}.")
    positions, concepts, groups, labels = zip(*kept, strict=True)
    chosen, numbers = torch.tensor(positions), torch.tensor(groups)
    in_memory = isinstance(records, TableRecords)
    shown: Sequence[str] | Tensor = numbers
    if in_memory:  # so that any caption can make a group, not the first alone
        own = zip(concepts, positions, strict=True)
        shown = [concept or f"picture {records.name(index)}" for concept, index in own]
    return PairDataset(
        RecordImages(records, chosen, max_side=config.max_side),
        ReadOnDemand(read_captions, chosen),
        shown if any(concepts) else None,
        *number_classes(labels),
        groups=None if in_memory else numbers,
    )


def _captions_at(
    records: Records, names: Sequence[str], join: str | None, index: int
) -> tuple[str, ...]:
    """The captions of a record: its text, or the fields `names`; empty where it has none."""
    fields = records.fields(index)
    names = names or [name for name in (TEXT_FIELD, *USUAL["caption"]) if fields.get(name)][:1]
    return tuple(dict.fromkeys(captions_of([fields.get(name) for name in names], join)))


def _require_captions(records: Records, fields: Sequence[str]) -> None:
    """`UserError` where captions are to come from fields that none of the first records has."""
    first = range(min(len(records), LOOKED_AT))
    names = dict.fromkeys(name for index in first for name in records.fields(index))
    if names and fields and names.keys().isdisjoint(fields):
        raise UserError(
            f"{records.title} has no field {fields[0]!r} for the caption: set data.caption to one "
            f"of {', '.join(names)}."
        )


def _first(fields: Any, names: Sequence[str]) -> str | None:
    value = next((fields[name] for name in names if fields.get(name) is not None), None)
    return None if value is None else str(value)


def _limited(config: PairDataConfig, pairs: PairDataset) -> PairDataset:
    return pairs.select(random_subset(len(pairs), config.limit, config.seed))


def _has_images(config: PairDataConfig, path: Path) -> bool:
    """Whether `path` is records, or a table with a column of images."""
    if is_records(path) or has_pictures(path):
        return True
    usual = {config.image} if config.image else {*USUAL["image"]}
    is_table = table_kind(path) in TABLE_SUFFIXES
    return is_table and not usual.isdisjoint(column_names(path, config.encoding))
