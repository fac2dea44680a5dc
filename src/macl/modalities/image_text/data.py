"""Image–text data of a recipe: which table, which columns, which pairs of which split."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path

import torch

from macl.core.errors import UserError
from macl.modalities.hugging_face import has_pictures
from macl.modalities.image_text.pairs import PairDataset, digit_pairs
from macl.modalities.image_text.records import captions_of, has_split, load_record_pairs
from macl.modalities.image_text.sections import SPLITS, PairDataConfig
from macl.modalities.image_text.tables import USUAL, columns_of, find_table
from macl.modalities.images.data import open_images
from macl.modalities.images.sections import ImageDataConfig
from macl.modalities.images.sources import ImageFiles
from macl.modalities.input_errors import report_broken
from macl.modalities.protocols import Dataset
from macl.modalities.records import Records, is_records, open_records
from macl.modalities.splits import number_classes, random_subset
from macl.modalities.tables import TABLE_SUFFIXES, column_names, read_table, table_kind
from macl.modalities.text.data import STANDARD_INPUT, open_text
from macl.modalities.text.sections import TextDataConfig


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
    records = pair_records(config, config.path)
    if records is not None:
        divided, read = has_split(config, records), partial(load_record_pairs, config, records)
    else:
        table = find_table(config.path)
        divided, read = (
            bool(columns_of(config, table, "split")),
            partial(_read_table, config, table),
        )
    if divided:
        pairs = read(getattr(config, f"{split}_split"))
    elif split == "validation" or (split == "test" and not config.holdout):
        raise no_split
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
    is_table = records is None and table_kind(path) in TABLE_SUFFIXES
    if records is not None or (is_table and _has_images(config, path)):
        if records is not None:
            pairs = load_record_pairs(config, records)
        else:
            pairs = _read_table(config, path)
        pairs = _limited(config, pairs)
        return pairs.texts() if config.side == "text" else pairs.images
    if is_table or path == STANDARD_INPUT or path.suffix.lower() == ".txt":
        if config.side == "image":
            raise UserError(f"{path} holds texts: leave data.side=image out.")
        column = columns_of(config, path, "caption")[0] if is_table else "text"
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


def pair_records(config: PairDataConfig, path: Path) -> Records | None:
    """The shards or the Hugging Face data set that `path` is; None: it is neither."""
    if path.suffix.lower() == ".parquet" and not has_pictures(path):
        return None
    return open_records(path, config.image, download=config.download)


def _limited(config: PairDataConfig, pairs: PairDataset) -> PairDataset:
    return pairs.select(random_subset(len(pairs), config.limit, config.seed))


def _has_images(config: PairDataConfig, table: Path) -> bool:
    usual = (config.image,) if config.image else USUAL["image"]
    return not set(usual).isdisjoint(column_names(table, config.encoding))


def _read_table(config: PairDataConfig, table: Path, splits: Sequence[str] = ()) -> PairDataset:
    """The pairs of a table, or of these splits alone; rows with the same file are one image."""
    roles = {
        role: found[0]
        for role in ("image", "group", "label", "split")
        if (found := columns_of(config, table, role))
    }
    columns = [*roles.values(), *columns_of(config, table, "caption")]
    images: dict[str, tuple[dict[str, str], list[str]]] = {}
    broken: list[str] = []
    seen = 0
    for number, row in enumerate(read_table(table, columns, config.encoding, header=True), start=1):
        given = zip(roles, row, strict=False)
        values = {role: str(value) for role, value in given if value not in (None, "")}
        if splits and values.get("split", "") not in splits:
            continue
        seen += 1
        file, captions = row[0], captions_of(row[len(roles) :], config.join)
        named = isinstance(file, str) and file.strip()
        if named and captions:
            images.setdefault(file, (values, []))[1].extend(captions)
        else:
            broken.append(f"row {number} of {table} has no {'caption' if named else 'file'}")
    report_broken(broken, seen, "rows", config.on_error)
    if not images:
        wanted = f" whose split is {' or '.join(splits)}" if splits else ""
        raise UserError(f"{table} has no row{wanted} with an image and a caption.")
    files = ImageFiles(table.parent, list(images), max_side=config.max_side, named_by_data=True)
    groups, labels = (
        [values.get(role) for values, _ in images.values()] for role in ("group", "label")
    )
    # An image without a concept is one of its own.
    concepts = [g or f"picture {name}" for name, g in zip(images, groups, strict=True)]
    return PairDataset(
        files,
        [tuple(dict.fromkeys(captions)) for _, captions in images.values()],
        concepts if any(groups) else None,
        *number_classes(labels),
    ).select(files.find_readable(config.on_error))
