"""The recipe sections of image–text pairs, and which table and columns they mean; without torch."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from pydantic import BeforeValidator, Field, PositiveInt, field_validator

from macl.core.errors import OnError, UserError
from macl.core.section import AbsolutePath, Section
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.records import is_records
from macl.modalities.tables import TABLE_SUFFIXES, column_names, require_columns, table_kind
from macl.modalities.text.sections import TextEncoderConfig, TextViewsConfig
from macl.probes.sections import KnnConfig, LinearProbeConfig
from macl.recipes.tuning import TunableEncoder

PairProtocol = Literal["retrieval", "zero-shot", "knn", "linear", "geometry"]

SPLITS = ("train", "validation", "test")

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

Values = Annotated[
    tuple[str, ...], BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
]


class PairDataConfig(Section):
    """Where the pairs come from, and which of them belong to which split."""

    user_only: ClassVar[frozenset[str]] = frozenset({"download"})

    path: AbsolutePath | None = None
    """A .csv, .tsv, .jsonl or .parquet table of pairs, or its folder. None: the digits of
    scikit-learn with captions."""
    image: str | None = None
    """The column of the image's file; by default found by its name."""
    caption: Values = ()
    """The column of the caption, or of a list of captions; by default found by its name. Several
    columns: each is a caption of its own."""
    join: str | None = None
    """What stands between the columns of data.caption where they make one caption together, such as
    ", "."""
    group: str | None = None
    """A column whose equal values are one concept: its images and captions are never each other's
    negatives. By default `concept` where there is one."""
    label: str | None = None
    """The column of the class, for evaluation."""
    split: str | None = None
    """The column of the split; by default `split` where there is one."""
    train_split: Values = ("train", "training")
    """Values of that column that are for training."""
    validation_split: Values = ("validation", "valid", "val", "dev")
    test_split: Values = ("test", "testing")
    holdout: float = Field(default=0.1, ge=0, lt=1)
    """Share of the concepts set apart as test, where no column divides the data."""
    limit: int | None = Field(default=None, ge=2)
    """A random subset of each split."""
    seed: int = 0
    """Draws holdout and subset, whatever the seed of the run."""
    max_side: int | None = Field(default=None, ge=1)
    """Shrink on reading until the shorter side is at most this."""
    on_error: OnError = "skip-few"
    """Unreadable images and missing captions."""
    encoding: str = "utf-8"
    """Of .csv, .tsv, .jsonl and .txt files."""
    download: bool = False
    """Let shards be read from a URL."""
    side: Literal["auto", "image", "text"] = "auto"
    """What is embedded of a file with images and captions; auto: images where there are some."""

    def check_files(self) -> None:
        """The columns of a table."""
        path = self.path
        if path is None or not path.exists() or path.suffix == ".parquet" or is_records(path):
            return
        table = find_table(path)
        for role in USUAL:
            self.columns_of(table, role)

    def columns_of(self, table: Path, role: str) -> list[str]:
        """The columns of a role: those that are named here, else the first with a usual name."""
        names = column_names(table, self.encoding)
        given = getattr(self, role) or ()
        columns = [given] if isinstance(given, str) else list(given)
        require_columns(columns, names, table)
        columns = columns or [name for name in USUAL[role] if name in names][:1]
        if not columns and role in ("image", "caption"):
            raise UserError(
                f"{table} has no column for the {role} with one of the usual names "
                f"({', '.join(USUAL[role])}): set data.{role} to one of {', '.join(names)}."
            )
        return columns


class PairViewsConfig(Section):
    """One random view of the image, and one of its captions, drawn anew at every step."""

    image: ImageViewsConfig = ImageViewsConfig.model_validate({"preset": "clip"})
    text: TextViewsConfig = TextViewsConfig()


class PairEncoderConfig(TunableEncoder):
    """Two towers and what projects each of them into the common space."""

    image: ImageEncoderConfig = ImageEncoderConfig.model_validate({})
    text: TextEncoderConfig = TextEncoderConfig()
    image_run: AbsolutePath | None = None
    """Start the image tower from the encoder of this image run."""
    text_run: AbsolutePath | None = None
    """Start the text tower from the encoder of this text run."""
    pretrained: AbsolutePath | None = None
    """Start both towers and projections from this folder, a run of pairs or a CLIP or SigLIP of
    transformers, instead of the keys above."""
    frozen: tuple[Literal["image", "text"], ...] = ()
    """Towers that keep their weights; their projections are trained (LiT)."""
    cache: int = Field(default=1_000_000, ge=0)
    """With a frozen text tower: up to so many images, captions are encoded once before training,
    and their features kept in memory. 0: at every step."""
    dim: PositiveInt = 128
    """Width of the common space."""
    hidden: tuple[PositiveInt, ...] = ()
    """Hidden layers of each projection; none: a matrix, as in CLIP."""


class PairEvaluationConfig(KnnConfig):
    """Which protocols, and their settings."""

    protocols: tuple[PairProtocol, ...] = ("retrieval", "geometry")
    split: Literal["test", "validation"] = "test"
    """What is evaluated; choose settings on validation and report on test."""
    templates: tuple[str, ...] = Field(default=("a picture of {}",), min_length=1)
    """Prompts of zero-shot classification; {} is the name of the class. They are averaged."""
    classes: Mapping[str, str] = Field(default_factory=dict)
    """How prompts call a class of the data: {n01440764: tench}; by default as the data does."""
    linear: LinearProbeConfig = LinearProbeConfig()

    @field_validator("templates")
    @classmethod
    def _have_a_place_for_the_class(cls, templates: tuple[str, ...]) -> tuple[str, ...]:
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"a template has {{}} for the name of the class: {template!r}")
        return templates


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


SECTIONS: dict[str, type[Section]] = {
    "data": PairDataConfig,
    "views": PairViewsConfig,
    "encoder": PairEncoderConfig,
    "evaluation": PairEvaluationConfig,
}
