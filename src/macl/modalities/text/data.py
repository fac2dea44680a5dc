"""Sentences, pairs and triplets: from files, or embedded in Python itself."""

from __future__ import annotations

import hashlib
import logging
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.protocols import Dataset
from macl.modalities.records import TEXT_FIELD, Records, is_records, open_records
from macl.modalities.splits import (
    hold_out_for_test,
    number_classes,
    picked,
    random_subset,
    stratified_split,
)
from macl.modalities.tables import DEFAULT_COLUMN, TABLE_SUFFIXES, read_table, table_kind
from macl.modalities.text.sections import TextDataConfig, no_sentences
from macl.modalities.text.store import index_lines, spill

STANDARD_INPUT = Path("-")

# Of the embedded topics.
_TITLE_RULE = re.compile(r"([^\w\s])\1+")
_SENTENCE_END = re.compile(r"(?<=[.!?:;])\s+(?=[A-Z\"*(“])")
_WORD = re.compile(r"[A-Za-z]{2,}")
_FEWEST_WORDS = 6
_FEWEST_SENTENCES = 10
_TEST_EVERY = 5

log = logging.getLogger(__name__)


class TextBatch(NamedTuple):
    """A batch of sentences; `second` are their positives, `negative` their hard negatives."""

    first: list[str]
    second: list[str] | None = None
    negative: list[str] | None = None


class TextDataset(Dataset):
    """Sentences, pairs or triplets, in memory or on disk as the sequences in `columns` are.

    Those are anchors, positives, hard negatives; `topics` has a class name per anchor.
    """

    def __init__(
        self, columns: Sequence[Sequence[str]], topics: Sequence[Any] | None = None
    ) -> None:
        self.columns = list(columns)
        self.names = self.columns[0]
        self.has_negatives = len(self.columns) > 2
        if topics is not None:
            self.labels, self.classes = number_classes(topics)

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> tuple[str, ...]:
        return tuple(column[index] for column in self.columns)

    def collate(self, samples: list[tuple[str, ...]]) -> TextBatch:
        """Join samples: n tuples of k sentences become k lists of n."""
        return TextBatch(*(list(column) for column in zip(*samples, strict=True)))

    def select(self, indices: Tensor) -> TextDataset:
        """The items at `indices`, in that order."""
        chosen = TextDataset([picked(column, indices) for column in self.columns])
        chosen.labels = picked(self.labels, indices)
        chosen.classes = self.classes
        return chosen

    def size(self, index: int) -> int:
        """Characters: sentences of equal length waste no padding."""
        return len(self.names[index])

    def sentences(self) -> Iterator[str]:
        """Every sentence in every role, for learning a vocabulary."""
        for column in self.columns:
            yield from column


def batch_groups(batch: TextBatch) -> Tensor:
    """(B,) duplicate groups of a batch; with those of its hard negatives (2B,).

    A hard negative that is a sentence or a positive of the batch belongs to the group of that.
    """
    pairs = [column for column in batch[:2] if column is not None]
    own = duplicate_groups(*pairs)
    if batch.negative is None:
        return own
    known = {t.strip(): group for c in pairs for t, group in zip(c, own.tolist(), strict=True)}
    theirs = [known.get(text.strip(), text_hash(text)) for text in batch.negative]
    return torch.cat([own, torch.tensor(theirs)])


def duplicate_groups(*columns: Sequence[str]) -> Tensor:
    """(N,) int64: samples that share a sentence, blanks around it aside, share a number.

    It is a hash, so that it means the same in every process of a parallel run. `columns` are the N
    sentences, and for pairs their N positives.
    """
    holder: dict[str, int] = {}
    pairs = [(i, holder.setdefault(t.strip(), i)) for c in columns for i, t in enumerate(c)]
    n = len(columns[0])
    rows, cols = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    shares = coo_array((np.ones(len(rows)), (rows, cols)), shape=(n, n))
    component = torch.from_numpy(connected_components(shares, directed=False)[1]).long()
    hashes = torch.tensor([text_hash(text) for text in columns[0]])
    least = torch.full((n,), 2**63 - 1).scatter_reduce(0, component, hashes, "amin")
    return least[component]


def text_hash(text: str) -> int:
    """A number of 63 bits for a text, blanks around it aside; the same in every process."""
    digest = hashlib.blake2b(text.strip().encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def load_text(config: TextDataConfig, split: str) -> TextDataset:
    """The sentences of "train" or "test"; a file without a test split is divided by `holdout`."""
    divided = (split == "test" or config.holdout > 0) and not has_test(config)
    if divided and not config.holdout:
        raise UserError(
            f"{config.path} has no test split. Set data.test_path to a file of test sentences, or "
            "train with data.holdout=0.2."
        )
    path = config.test_path if split == "test" and config.test_path else config.path
    if path is None:
        sentences, topics = load_topics(split)
        dataset = TextDataset([sentences], topics)
    else:
        dataset = read_text(path, config, "train" if divided else split)
    if divided:
        labels = torch.zeros(len(dataset)) if dataset.labels is None else dataset.labels
        train, test = stratified_split(labels, config.holdout)
        dataset = dataset.select(train if split == "train" else test)
    return dataset.select(random_subset(len(dataset), config.limit))


def has_test(config: TextDataConfig) -> bool:
    """Whether the data has a test split of its own, as the topics have."""
    if config.test_path is not None or config.path is None:
        return True
    records = _records(config.path, config)
    return records is not None and "test" in records.splits()


def load_for_evaluation(config: TextDataConfig) -> tuple[Dataset, Dataset, str]:
    """Training sentences, sentences to evaluate on, and what those are: "test" or "holdout"."""
    train = load_text(config, "train")
    if has_test(config) or config.holdout:
        return train, load_text(config, "test"), "test"
    missing = UserError(
        f"{config.path} has no test split and no classes. Set data.test_path or data.holdout to "
        "have test sentences, and data.label to the column of the classes."
    )
    return *hold_out_for_test(train, missing), "holdout"


def read_text(path: Path, config: TextDataConfig, split: str | None = None) -> TextDataset:
    """The sentences of a file, in the columns that `config` names; of records, those of `split`.

    The path "-" is the standard input, a sentence per line.
    """
    roles = [column for column in (config.positive, config.negative) if column]
    if path.suffix.lower() == ".txt" and path.is_file():
        if roles or config.label:
            raise UserError(
                f"{path} has lines, not columns. Pairs and labels need a table: "
                f"{', '.join(TABLE_SUFFIXES)}."
            )
        texts, labels, skipped = index_lines(path, config.encoding)
    else:
        columns = [config.column, *roles, *([config.label] if config.label else [])]
        texts, labels, skipped = spill(_rows(path, config, columns, split), 1 + len(roles))
    title = "standard input" if path == STANDARD_INPUT else path
    if len(texts[0]) == 0:
        raise UserError(f"{title} has no sentences ({skipped} empty lines or rows).")
    if skipped:
        log.warning("%s: %d empty lines or incomplete rows skipped.", title, skipped)
    return TextDataset(texts, labels if config.label else None)


def open_text(config: TextDataConfig, path: Path) -> TextDataset:
    """The sentences of a user's file alone, at most `config.limit`, to be embedded."""
    alone = config.model_copy(update={"positive": None, "negative": None, "label": None})
    dataset = read_text(path.expanduser(), alone)
    return dataset.select(random_subset(len(dataset), config.limit))


def _rows(
    path: Path, config: TextDataConfig, columns: Sequence[str], split: str | None
) -> Iterator[Sequence[Any]]:
    """The values of `columns`, row by row, of all that is not a file of lines."""
    if path == STANDARD_INPUT:
        yield from ([line] for line in sys.stdin)
    elif (records := _records(path, config)) is not None:
        for fields in map(records.fields, range(len(records))):
            if split is None or fields.get("split") in (None, split):
                named = {DEFAULT_COLUMN: fields.get(TEXT_FIELD), **fields}
                yield [named.get(column) for column in columns]
    elif not path.is_file():
        raise no_sentences(path)
    elif table_kind(path) in TABLE_SUFFIXES:
        yield from read_table(path, columns, config.encoding, config.header)
    else:
        raise UserError(
            f"{path}: cannot read {table_kind(path) or 'files without a suffix'}. "
            f"Known: .txt (a sentence per line), {', '.join(TABLE_SUFFIXES)}."
        )


def _records(path: Path, config: TextDataConfig) -> Records | None:
    return open_records(path, download=config.download) if is_records(path) else None


def load_topics(split: str) -> tuple[list[str], list[str]]:
    """The sentences of "train" or "test" in the running Python's help, and the topic of each.

    Topics quote each other; a sentence is kept once, under the shortest topic that has it, which is
    the one it is about. Topics with too few sentences to be tested are dropped.
    """
    from pydoc_data.topics import topics

    by_topic: dict[str, list[str]] = {}
    seen: set[str] = set()
    for topic in sorted(topics, key=lambda name: (len(topics[name]), name)):
        own = [s for s in dict.fromkeys(split_sentences(topics[topic])) if s not in seen]
        seen.update(own)
        if len(own) >= _FEWEST_SENTENCES:
            by_topic[topic] = own
    chosen = [
        (sentence, topic)
        for topic in sorted(by_topic)
        for i, sentence in enumerate(by_topic[topic])
        if (i % _TEST_EVERY == _TEST_EVERY - 1) == (split == "test")
    ]
    return [sentence for sentence, _ in chosen], [topic for _, topic in chosen]


def split_sentences(text: str) -> Iterator[str]:
    """Sentences of the paragraphs of `text`, without titles and without what has hardly a word."""
    for paragraph in re.split(r"\n\s*\n", text):
        lines = [line.strip() for line in paragraph.splitlines()]
        if len(lines) > 1 and _TITLE_RULE.fullmatch(lines[1]):
            continue
        for sentence in _SENTENCE_END.split(" ".join(lines)):
            if len(_WORD.findall(sentence)) >= _FEWEST_WORDS:
                yield sentence.strip()
