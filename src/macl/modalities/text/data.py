"""Sentences, pairs and triplets: from files, from Hugging Face, or embedded in Python itself."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from pydantic import field_validator, model_validator
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from macl.core.errors import UserError
from macl.core.section import Section
from macl.modalities.text.store import index_lines, spill
from macl.modalities.text.tables import TABLE_SUFFIXES, read_hugging_face, read_table
from macl.modalities.text.topics import load_topics

log = logging.getLogger(__name__)

_HUGGING_FACE = "hf:"


class TextDataConfig(Section):
    """Where sentences come from. Lines that are too long are cut by the tokenizer, not here."""

    path: str | None = None
    """A .txt with a sentence per line; a .csv, .tsv, .jsonl or .parquet table; or
    hf:NAME[:CONFIGURATION], a Hugging Face data set. None: the embedded topics of Python's help."""
    test_path: str | None = None
    """The same for the test split; the topics and hf: have their own."""
    column: str = "text"
    """The column of a table that holds the sentence."""
    positive: str | None = None
    """The column of its positive; without one, dropout makes the positive."""
    negative: str | None = None
    """The column of its hard negative."""
    label: str | None = None
    """The column of its class, for evaluation."""
    encoding: str = "utf-8"
    """Of text files."""
    download: bool = False
    """Allow hf: sources to reach the network."""

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        try:
            newline = "\n".encode(name)
        except LookupError as error:
            raise ValueError(f"unknown encoding {name!r}; utf-8 and latin-1 are usual") from error
        if newline != b"\n":
            raise ValueError(f"{name} files cannot be read by lines; convert them to UTF-8")
        return name

    @model_validator(mode="after")
    def _negative_has_positive(self) -> TextDataConfig:
        if self.negative is not None and self.positive is None:
            raise ValueError(
                "data.negative needs data.positive: a triplet is anchor, positive, negative"
            )
        return self


class TextBatch(NamedTuple):
    """A batch of sentences; `second` are their positives, `negative` their hard negatives."""

    first: list[str]
    second: list[str] | None = None
    negative: list[str] | None = None


class TextDataset:
    """Sentences, pairs or triplets, kept in memory or on disk as `columns` are.

    Args:
        columns: one to three sequences of equal length: anchors, positives, hard negatives.
        topics: a class name per anchor, or None.
        skipped: how many empty lines or incomplete rows of the source are not here.
    """

    def __init__(
        self,
        columns: Sequence[Sequence[str]],
        topics: Sequence[Any] | None = None,
        skipped: int = 0,
    ) -> None:
        self.columns = list(columns)
        self.names = self.columns[0]
        self.skipped = skipped
        self.labels: Tensor | None = None
        self.classes: list[str] = []
        if topics is not None:
            self.classes = sorted({str(topic) for topic in topics})
            index = {name: i for i, name in enumerate(self.classes)}
            self.labels = torch.tensor([index[str(topic)] for topic in topics])

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[str, ...]:
        return tuple(column[index] for column in self.columns)

    def collate(self, samples: list[tuple[str, ...]]) -> TextBatch:
        """Join samples: n tuples of k sentences become k lists of n."""
        return TextBatch(*(list(column) for column in zip(*samples, strict=True)))

    @property
    def has_negatives(self) -> bool:
        """Whether every sentence brings a hard negative."""
        return len(self.columns) > 2

    def embedding_order(self) -> list[int]:
        """Long sentences first: neighbours of equal length waste no padding."""
        return sorted(range(len(self)), key=lambda i: len(self.names[i]), reverse=True)

    def sentences(self) -> Iterator[str]:
        """Every sentence in every role, for learning a vocabulary."""
        for column in self.columns:
            yield from column


def batch_groups(batch: TextBatch) -> Tensor:
    """(B,) duplicate groups of a batch, by its sentences and their positives.

    Hard negatives follow, (2B,) in all: one that is a sentence or a positive of the batch belongs
    to the group of that, whose negative it cannot be.
    """
    pairs = [column for column in batch[:2] if column is not None]
    own = duplicate_groups(*pairs)
    if batch.negative is None:
        return own
    known = {
        text.strip(): group
        for column in pairs
        for text, group in zip(column, own.tolist(), strict=True)
    }
    theirs = [known.get(text.strip(), _hash(text)) for text in batch.negative]
    return torch.cat([own, torch.tensor(theirs)])


def duplicate_groups(*columns: Sequence[str]) -> Tensor:
    """(N,) int64: samples that share a sentence, blanks around it aside, share a number.

    Such samples would be each other's false negatives; a mask over the groups keeps them out. The
    number is a hash of the sentence, so that it means the same in every process of a parallel run.

    Args:
        columns: the N sentences, and for pairs their N positives.
    """
    holder: dict[str, int] = {}
    pairs = [
        (i, holder.setdefault(text.strip(), i))
        for column in columns
        for i, text in enumerate(column)
    ]
    n = len(columns[0])
    rows, cols = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    shares = coo_array((np.ones(len(rows)), (rows, cols)), shape=(n, n))
    component = torch.from_numpy(connected_components(shares, directed=False)[1]).long()
    hashes = torch.tensor([_hash(text) for text in columns[0]])
    least = torch.full((n,), 2**63 - 1).scatter_reduce(0, component, hashes, "amin")
    return least[component]


def _hash(text: str) -> int:
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def load_text(config: TextDataConfig, split: str) -> TextDataset:
    """The sentences of "train" or "test" as `config` names them."""
    path = config.path
    if split == "test" and config.test_path is not None:
        path = config.test_path
    elif split == "test" and path is not None and not path.startswith(_HUGGING_FACE):
        raise UserError(
            f"{path} has no test split. Set data.test_path to a file of test sentences."
        )
    if path is None:
        sentences, topics = load_topics(split)
        return TextDataset([sentences], topics)
    roles = [column for column in (config.positive, config.negative) if column is not None]
    if path.startswith(_HUGGING_FACE):
        if not config.download:
            raise UserError(f"{path} is on the network. Set data.download=true to allow it.")
        columns = [config.column, *roles, *([config.label] if config.label else [])]
        rows = read_hugging_face(path.removeprefix(_HUGGING_FACE), split, columns)
        return _from_rows(rows, path, 1 + len(roles), config.label is not None)
    return read_text(Path(path), config, roles, config.label)


def read_text(
    path: Path, config: TextDataConfig, roles: Sequence[str] = (), label: str | None = None
) -> TextDataset:
    """A user's file: anchors from its lines or from `config.column`, more columns as asked."""
    if not path.is_file():
        raise UserError(f"{path} is not a file. Give a .txt with a sentence per line, or a table.")
    suffix = path.suffix.lower()
    if suffix in TABLE_SUFFIXES:
        columns = [config.column, *roles, *([label] if label else [])]
        rows = read_table(path, columns, config.encoding)
        return _from_rows(rows, str(path), 1 + len(roles), label is not None)
    if suffix != ".txt":
        raise UserError(
            f"{path}: cannot read {suffix or 'files without a suffix'}. "
            f"Known: .txt (a sentence per line), {', '.join(TABLE_SUFFIXES)}."
        )
    if roles or label:
        raise UserError(
            f"{path} has lines, not columns. Pairs and labels need a table: "
            f"{', '.join(TABLE_SUFFIXES)}."
        )
    lines, skipped = index_lines(path, config.encoding)
    return _checked(TextDataset([lines], None, skipped), str(path))


def _from_rows(rows: Iterator[list[Any]], where: str, n_texts: int, labelled: bool) -> TextDataset:
    table = spill(rows, n_texts)
    return _checked(
        TextDataset(table.columns, table.extras if labelled else None, table.skipped), where
    )


def _checked(dataset: TextDataset, where: str) -> TextDataset:
    if len(dataset) == 0:
        raise UserError(f"{where} has no sentences ({dataset.skipped} empty lines or rows).")
    if dataset.skipped:
        log.warning("%s: %d empty lines or incomplete rows skipped.", where, dataset.skipped)
    return dataset
