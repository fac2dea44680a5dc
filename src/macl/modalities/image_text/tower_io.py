"""Building, writing and reading the two towers of a recipe."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import nn

from macl import recipes
from macl.core.errors import UserError
from macl.core.weights import read_metadata, save_weights
from macl.modalities.base import ENCODER_FILE, with_weights
from macl.modalities.image_text.clip import is_clip, load_clip, save_clip_plan
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.image_text.sections import PairEncoderConfig
from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.modality import MODALITY as IMAGES
from macl.modalities.images.sections import ImageEncoderConfig
from macl.modalities.protocols import Dataset
from macl.modalities.text.folders import build_from_plan, save_plan
from macl.modalities.text.modality import MODALITY as TEXT
from macl.modalities.text.sections import TINY
from macl.recipes.upgrade import STORED

TEXT_FOLDER = "text_encoder"
"""Folder of a run with the configuration and the vocabulary of the text tower."""

CLIP_FOLDER = "clip"
"""The same for both towers of a CLIP or SigLIP."""

IMAGE_KEY = "image_encoder"
"""Where the header of the weights holds the section of the image tower."""


def build_towers(config: PairEncoderConfig, dataset: Dataset) -> TwoTowers:
    """Both towers as the recipe asks: from scratch, from weights, from other runs, or CLIP's."""
    if config.pretrained is not None and (config.pretrained / STORED).is_file():
        towers = _towers_of(config.pretrained, config)
    elif config.pretrained is not None:
        towers = load_clip(config.pretrained, config.frozen)
    else:
        section: ImageEncoderConfig = config.image
        if config.image_run is None:
            image = build_image_encoder(section)
        else:
            section = _encoder_section(config.image_run, "images")
            image = IMAGES.load_encoder(section, config.image_run)
        towers = _joined(image, _text_tower(config, dataset), section, config)
    few = len(dataset) <= config.cache
    if "text" in config.frozen and few and isinstance(dataset, PairDataset):
        towers.captions = dataset.texts().names
    return towers


def save_towers(encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
    """The plan of the text tower, then weights with the image tower's section in their header."""
    towers = two_towers(encoder)
    if hasattr(towers, "clip_config"):
        save_clip_plan(towers, folder / CLIP_FOLDER)
        save_weights(towers, folder / ENCODER_FILE, metadata)
        return
    text: Any = towers.text
    save_plan(text, folder / TEXT_FOLDER)
    section: ImageEncoderConfig = towers.image_section  # type: ignore[assignment]
    stored = section.model_dump(mode="json", exclude={"weights", "allow_import"})
    save_weights(towers, folder / ENCODER_FILE, {**metadata, IMAGE_KEY: json.dumps(stored)})


def load_towers(config: PairEncoderConfig, folder: Path) -> TwoTowers:
    """The towers that `save_towers` wrote, from the folder alone."""
    file = folder / ENCODER_FILE
    if is_clip(folder / CLIP_FOLDER):
        return with_weights(load_clip(folder / CLIP_FOLDER, config.frozen, weights=False), folder)
    stored = read_metadata(file).get(IMAGE_KEY)
    try:
        values = json.loads(stored) if stored is not None else config.image.model_dump()
        # A file cannot allow itself to import code: that is the recipe's, which was checked.
        granted = {"weights": None, "allow_import": config.image.allow_import}
        section = ImageEncoderConfig(**{**values, **granted})
    except ValueError as error:
        raise UserError(f"{file}: its header is damaged ({error}).") from error
    image = build_image_encoder(section)
    text = build_from_plan(folder / TEXT_FOLDER)
    return with_weights(_joined(image, text, section, config), folder)


def two_towers(encoder: nn.Module) -> TwoTowers:
    """`encoder` as two towers; `UserError` where it is something else."""
    if not isinstance(encoder, TwoTowers):
        raise UserError(f"{type(encoder).__name__} has no image and text tower.")
    return encoder


def _joined(
    image: nn.Module, text: nn.Module, section: ImageEncoderConfig, config: PairEncoderConfig
) -> TwoTowers:
    towers = TwoTowers(image, text, config.dim, config.hidden, config.frozen)
    towers.image_section = section  # type: ignore[assignment]
    return towers


def _towers_of(folder: Path, config: PairEncoderConfig) -> TwoTowers:
    """Both towers of a finished run, frozen as `config` says."""
    section: PairEncoderConfig = _encoder_section(folder, "image-text")
    # The new run is opened by its own recipe, which must therefore describe the projections.
    for key in ("dim", "hidden"):
        ours, theirs = getattr(config, key), getattr(section, key)
        if ours != theirs:
            text = recipes.text_of(theirs)
            raise UserError(
                f"{folder} has encoder.{key}={text}: set the same, encoder.{key}={text}."
            )
    return load_towers(section.model_copy(update={"frozen": config.frozen}), folder)


def _text_tower(config: PairEncoderConfig, dataset: Dataset) -> nn.Module:
    if config.text_run is not None:
        return TEXT.load_encoder(_encoder_section(config.text_run, "text"), config.text_run)
    if config.text.name != TINY:
        return TEXT.build_encoder(config.text, dataset)
    if not isinstance(dataset, PairDataset):
        raise UserError("the text tower 'tiny' learns its vocabulary from a data set of pairs.")
    return TEXT.build_encoder(config.text, dataset.texts())


def _encoder_section(folder: Path, modality: str) -> Any:
    """The encoder section of a finished run."""
    if not (folder / STORED).is_file() or not (folder / ENCODER_FILE).is_file():
        raise UserError(f"{folder} is not a finished run: it needs recipe.yaml and {ENCODER_FILE}.")
    recipe = recipes.load(str(folder / STORED))
    if recipe.modality != modality:
        raise UserError(f"{folder} is a run of {recipe.modality}, not of {modality}.")
    return recipe.encoder
