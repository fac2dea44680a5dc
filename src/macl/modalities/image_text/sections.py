"""The recipe sections of image–text pairs, without torch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from pydantic import Field, PositiveInt, field_validator

from macl.core.section import AbsolutePath, Section
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.text.sections import TextEncoderConfig, TextViewsConfig
from macl.probes.sections import LinearProbeConfig

PairProtocol = Literal["retrieval", "zero-shot", "knn", "linear", "geometry"]

SPLITS = ("train", "validation", "test")

Values = tuple[str, ...]


class PairDataConfig(Section):
    """Where the pairs come from, and which of them belong to which split."""

    path: AbsolutePath | None = Field(
        None,
        description="A .csv, .tsv, .jsonl or .parquet table of pairs, or its folder. None: the "
        "digits of scikit-learn with captions.",
    )
    image: str | None = Field(
        None, description="The column of the picture's file; by default found by its name."
    )
    caption: Values = Field(
        (),
        description="The column of the caption, or of a list of captions; by default found by its "
        "name. Several columns: each is a caption of its own.",
    )
    join: str | None = Field(
        None,
        description="What stands between the columns of data.caption where they make one caption "
        'together, such as ", ".',
    )
    group: str | None = Field(
        None,
        description="A column whose equal values are one concept: its pictures and captions are "
        "never each other's negatives. By default `concept` where there is one.",
    )
    label: str | None = Field(None, description="The column of the class, for evaluation.")
    split: str | None = Field(
        None, description="The column of the split; by default `split` where there is one."
    )
    train_split: Values = Field(
        ("train", "training"), description="Values of that column that are for training."
    )
    validation_split: Values = Field(
        ("validation", "valid", "val", "dev"), description="The same for validation."
    )
    test_split: Values = Field(("test", "testing"), description="The same for test.")
    holdout: float = Field(
        0.1,
        ge=0,
        lt=1,
        description="Share of the concepts set apart as test, where no column divides the data.",
    )
    limit: int | None = Field(None, ge=2, description="A random subset of each split.")
    seed: int = Field(0, description="Draws holdout and subset, whatever the seed of the run.")
    max_side: int | None = Field(
        None, ge=1, description="Shrink on reading until the shorter side is at most this."
    )
    on_error: Literal["fail", "skip", "skip-few"] = Field(
        "skip-few",
        description="Unreadable pictures and missing captions: fail on the first, skip all, or "
        "skip-few: skip up to 1% and fail above.",
    )
    encoding: str = Field("utf-8", description="Of .csv, .tsv, .jsonl and .txt files.")
    side: Literal["auto", "image", "text"] = Field(
        "auto",
        description="What is embedded of a file with pictures and captions; auto: the pictures "
        "where there are some.",
    )

    @field_validator("caption", "train_split", "validation_split", "test_split", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value


class PairViewsConfig(Section):
    """One random view of the picture, and one of its captions, drawn anew at every step."""

    image: ImageViewsConfig = ImageViewsConfig(preset="clip")
    text: TextViewsConfig = TextViewsConfig()


class PairEncoderConfig(Section):
    """Two towers and what projects each of them into the common space."""

    image: ImageEncoderConfig = ImageEncoderConfig.model_validate({})
    text: TextEncoderConfig = TextEncoderConfig()
    image_run: AbsolutePath | None = Field(
        None, description="Start the image tower from the encoder of this image run."
    )
    text_run: AbsolutePath | None = Field(
        None, description="Start the text tower from the encoder of this text run."
    )
    pretrained: AbsolutePath | None = Field(
        None,
        description="Start both towers and projections from this folder, a run of pairs or a CLIP "
        "or SigLIP of transformers, instead of the keys above.",
    )
    frozen: tuple[Literal["image", "text"], ...] = Field(
        (), description="Towers that keep their weights; their projections are trained (LiT)."
    )
    cache: int = Field(
        1_000_000,
        ge=0,
        description="With a frozen text tower: up to so many pictures, captions are encoded once "
        "before training, and their features kept in memory. 0: at every step.",
    )
    dim: PositiveInt = Field(128, description="Width of the common space.")
    hidden: tuple[PositiveInt, ...] = Field(
        (), description="Hidden layers of each projection; none: a matrix, as in CLIP."
    )


class PairEvaluationConfig(Section):
    """Which protocols, and their settings."""

    protocols: tuple[PairProtocol, ...] = ("retrieval", "geometry")
    split: Literal["test", "validation"] = "test"
    """What is evaluated; choose settings on validation and report on test."""
    templates: tuple[str, ...] = Field(default=("a picture of {}",), min_length=1)
    """Prompts of zero-shot classification; {} is the name of the class. They are averaged."""
    classes: Mapping[str, str] = Field(default_factory=dict)
    """How prompts call a class of the data: {n01440764: tench}; by default as the data does."""
    k: int = Field(default=20, ge=1)
    """Neighbours of the kNN probe."""
    temperature: float = Field(default=0.1, gt=0)
    """Of the votes of the kNN probe, not of the loss."""
    linear: LinearProbeConfig = LinearProbeConfig()

    @field_validator("templates")
    @classmethod
    def _have_a_place_for_the_class(cls, templates: tuple[str, ...]) -> tuple[str, ...]:
        for template in templates:
            if "{}" not in template:
                raise ValueError(f"a template has {{}} for the name of the class: {template!r}")
        return templates


SECTIONS: dict[str, type[Section]] = {
    "data": PairDataConfig,
    "views": PairViewsConfig,
    "encoder": PairEncoderConfig,
    "evaluation": PairEvaluationConfig,
}
