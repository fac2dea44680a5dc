"""Pairs of shards and of Hugging Face data sets: captions stay where they are."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.image_text.sections import PairDataConfig
from macl.modalities.image_text.tables import USUAL
from macl.modalities.images.sources import LABEL_FIELDS, RecordImages
from macl.modalities.input_errors import report_broken
from macl.modalities.records import TEXT_FIELD, ReadOnDemand, Records
from macl.modalities.splits import number_classes
from macl.modalities.text.data import text_hash

LOOKED_AT = 100
"""Records by which it is known what fields there are."""


def captions_of(cells: Sequence[Any], join: str | None = None) -> list[str]:
    """The captions in some cells, each a text or a list of texts; with `join` they are one."""
    lists = [cell if isinstance(cell, list | tuple) else [cell] for cell in cells]
    texts = [text.strip() for each in lists for text in each if isinstance(text, str)]
    captions = [text for text in texts if text]
    return [join.join(captions)] if captions and join is not None else captions


def captions_at(
    records: Records, names: Sequence[str], join: str | None, index: int
) -> tuple[str, ...]:
    """The captions of a record: its text, or the fields `names`; empty where it has none."""
    fields = records.fields(index)
    names = names or [name for name in (TEXT_FIELD, *USUAL["caption"]) if fields.get(name)][:1]
    return tuple(dict.fromkeys(captions_of([fields.get(name) for name in names], join)))


def load_record_pairs(
    config: PairDataConfig, records: Records, names: Sequence[str] = ()
) -> PairDataset:
    """The pairs whose split is one of `names`; all of them where the records have no split.

    24 bytes are kept of each. Pairs with equal concepts, else equal first captions, are a group.
    """
    _require_captions(records, config.caption)
    key = config.split or "split"
    read_captions = partial(captions_at, records, config.caption, config.join)
    positions, groups = list[int](), list[int]()
    labels, broken = list[str | None](), list[str]()
    seen, has_concepts = 0, False
    for index in track(range(len(records)), "Reading records", len(records)):
        fields = records.fields(index)
        split = fields.get(key)
        if split is None and config.split is not None:
            raise UserError(f"{records.name(index)} of {records.title} has no field {key!r}.")
        if names and split is not None and str(split) not in names:
            continue
        seen += 1
        captions = read_captions(index)
        problem = records.image_problem(index)
        if problem is None and not captions:
            problem = f"{records.name(index)} has no caption that is text in UTF-8"
        if problem is not None:
            broken.append(problem)
            continue
        concept = _first(fields, (config.group,) if config.group else USUAL["group"])
        has_concepts |= concept is not None
        positions.append(index)
        groups.append(text_hash(captions[0] if concept is None else f"concept\0{concept}"))
        labels.append(_first(fields, (config.label,) if config.label else LABEL_FIELDS))
    report_broken(broken, seen, "records", config.on_error)
    if not positions:
        wanted = f" whose {key} is {' or '.join(names)}" if names else ""
        raise UserError(f"{records.title} has no pair{wanted}.")
    chosen, numbers = torch.tensor(positions), torch.tensor(groups)
    return PairDataset(
        RecordImages(records, chosen, max_side=config.max_side),
        ReadOnDemand(read_captions, chosen),
        numbers if has_concepts else None,
        *number_classes(labels),
        groups=numbers,
    )


def has_split(config: PairDataConfig, records: Records) -> bool:
    """Whether the records name their split, by the first of them that has fields."""
    fields = next(filter(None, map(records.fields, range(len(records)))), {})
    return fields.get(config.split or "split") is not None


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
