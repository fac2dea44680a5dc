"""The image–text modality."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from macl import recipes
from macl.core.errors import UserError
from macl.core.progress import track
from macl.core.weights import read_metadata
from macl.modalities.base import ENCODER_FILE, Modality, Resolve, with_weights
from macl.modalities.image_text import clip
from macl.modalities.image_text.data import load_pairs, open_side
from macl.modalities.image_text.evaluation import PAIRED, evaluate_pairs, retrieval_monitor
from macl.modalities.image_text.pairs import PairDataset, PairViews
from macl.modalities.image_text.sections import (
    SECTIONS,
    PairEncoderConfig,
    PairEvaluationConfig,
    PairViewsConfig,
)
from macl.modalities.image_text.towers import TwoTowers, export_text_side, tower_graphs
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.modality import MODALITY as IMAGES
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.protocols import Dataset, Graph, Items, Monitor
from macl.modalities.splits import has_classes
from macl.modalities.text.folders import build_from_plan, save_plan
from macl.modalities.text.modality import MODALITY as TEXT
from macl.modalities.text.modality import PLAN_FOLDER
from macl.modalities.text.sections import TINY
from macl.recipes import Overrides, Recipe, Sections
from macl.recipes.upgrade import STORED

CLIP_FOLDER = "clip"
"""Folder of a run with the configuration and the vocabulary of a CLIP or SigLIP."""

IMAGE_KEY = "image_encoder"
"""Where the header of the weights holds the section of the image tower."""


class ImageText(Modality):
    """Images with captions, encoded by two towers into one space."""

    name = "image-text"
    line_suffix = ".txt"
    sections = SECTIONS
    open_keys = frozenset(
        {"side", "image", "caption", "limit", "seed", "max_side", "on_error", "encoding"}
    )
    monitor_needs = "pairs"
    adapt_recipe = "adapt-pairs"
    encoder_forms = f"{Modality.encoder_forms}, or a folder with a CLIP or SigLIP of transformers"
    layouts: ClassVar[Mapping[str, str]] = {
        "huggingface": "a folder for transformers.AutoModel, of runs that began with one",
        "sentence-transformers": "the text side for SentenceTransformer; images: image.onnx",
    }

    load = staticmethod(load_pairs)
    open = staticmethod(open_side)
    evaluate = staticmethod(evaluate_pairs)

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """First captions and images of pairs; what there is of one side alone."""
        if not isinstance(dataset, PairDataset):
            return super().describe_items(dataset, indices)
        pictures = (dataset.images[i] for i in track(indices, "thumbnails", len(indices)))
        return Items([dataset.captions[i][0] for i in indices], pictures=pictures)

    def facing(self, dataset: Dataset, indices: Sequence[int]) -> tuple[Dataset, Tensor] | None:
        """The distinct captions of pairs."""
        if not isinstance(dataset, PairDataset):
            return None
        pairs = dataset.select(torch.tensor(indices))
        return pairs.texts(), pairs.matches()

    def build_encoder(self, config: PairEncoderConfig, dataset: Dataset) -> TwoTowers:
        """Both towers: from scratch, from weights, from other runs, or CLIP's."""
        if config.pretrained is None:
            section: ImageEncoderConfig = config.image
            if config.image_run is None:
                image = build_image_encoder(section)
            else:
                section = _encoder_section(config.image_run, "images")
                image = IMAGES.load_encoder(section, config.image_run)
            text = _text_tower(config, dataset)
            towers = TwoTowers(image, text, config.dim, config.hidden, config.frozen)
            towers.image_section = section
        elif (config.pretrained / STORED).is_file():
            towers = self._towers_of(config.pretrained, config)
        else:
            towers = clip.load_clip(config.pretrained, config.frozen)
        few = len(dataset) <= config.cache
        if "text" in config.frozen and few and isinstance(dataset, PairDataset):
            towers.captions = dataset.texts().names
        return towers

    def save_encoder(self, encoder: Any, folder: Path, metadata: Mapping[str, str]) -> None:
        """The plan of the text tower, then weights with the image tower's section in the header."""
        if encoder.clip_config is not None:
            clip.save_clip_plan(encoder, folder / CLIP_FOLDER)
        else:
            save_plan(encoder.text, folder / PLAN_FOLDER)
            stored = encoder.image_section.model_dump_json(exclude={"weights", "allow_import"})
            metadata = {**metadata, IMAGE_KEY: stored}
        super().save_encoder(encoder, folder, metadata)

    def load_encoder(self, config: PairEncoderConfig, folder: Path) -> TwoTowers:
        """The towers of a run, from its folder alone."""
        if clip.is_clip(folder / CLIP_FOLDER):
            towers = clip.load_clip(folder / CLIP_FOLDER, config.frozen, weights=False)
            return with_weights(towers, folder)
        file = folder / ENCODER_FILE
        # A file cannot allow itself to import code: that is the recipe's, which was checked.
        granted = {"weights": None, "allow_import": config.image.allow_import}
        try:
            stored = json.loads(read_metadata(file)[IMAGE_KEY])
            section = ImageEncoderConfig.model_validate({**stored, **granted})
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"{file}: its header is damaged ({error}).") from error
        image, text = build_image_encoder(section), build_from_plan(folder / PLAN_FOLDER)
        towers = TwoTowers(image, text, config.dim, config.hidden, config.frozen)
        towers.image_section = section
        return with_weights(towers, folder)

    def _towers_of(self, folder: Path, config: PairEncoderConfig) -> TwoTowers:
        """Both towers of a finished run, frozen as `config` says."""
        section: PairEncoderConfig = _encoder_section(folder, self.name)
        # The new run is opened by its own recipe, which must therefore describe the projections.
        for key in ("dim", "hidden"):
            if getattr(config, key) != getattr(section, key):
                setting = f"encoder.{key}={recipes.text_of(getattr(section, key))}"
                raise UserError(f"{folder} has {setting}: set the same, {setting}.")
        return self.load_encoder(section.model_copy(update={"frozen": config.frozen}), folder)

    def build_views(self, config: PairViewsConfig, encoder: nn.Module) -> PairViews:
        """Augmented images, and captions through the text tower's tokenizer."""
        if not isinstance(encoder, TwoTowers):
            raise UserError(f"{type(encoder).__name__} has no image and text tower.")
        return PairViews(config, encoder)

    def start_from(self, name: str, weights: Path | None) -> Overrides:
        """A folder with a CLIP or SigLIP."""
        return {"encoder.pretrained": Path(name).expanduser().absolute()}

    def settle(self, recipe: Recipe) -> Recipe:
        """The preprocessing of a CLIP or SigLIP, where the recipe leaves it open."""
        folder = recipe.encoder.pretrained
        if folder is None or not clip.is_clip(folder):
            return recipe
        given = recipe.views.image.model_dump(exclude_none=True)
        image = ImageViewsConfig.model_validate({**clip.clip_views(folder), **given})
        views = recipe.views.model_copy(update={"image": image})
        return recipe.model_copy(update={"views": views})

    def recognizes_encoder(self, name: str) -> bool:
        """What `export` wrote, and folders with a CLIP or SigLIP."""
        return clip.is_clip(Path(name).expanduser()) or super().recognizes_encoder(name)

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """A CLIP or SigLIP with its own preprocessing; else what `export` wrote."""
        folder = Path(name).expanduser()
        if not clip.is_clip(folder):
            return super().open_encoder(name, resolve)
        views = {"image": clip.clip_views(folder), "text": {"max_length": 77}}
        sections = resolve({"views": views, "encoder": {"pretrained": str(folder)}})
        return clip.load_clip(folder), sections

    def export_layout(
        self, layout: str, encoder: Any, views: Any, folder: Path, metadata: Mapping[str, str]
    ) -> str:
        """A folder for one of the two libraries, read back and compared with the towers."""
        if layout == "sentence-transformers":
            export_text_side(encoder, folder / layout, views.text.plain_max_length)
        elif encoder.clip_config is not None:
            clip.export_clip(encoder, views.image, folder / layout)
        else:
            raise UserError(
                "`layouts=huggingface`: transformers has no model of these towers. It is for runs "
                "that began with encoder.pretrained; use `layouts=sentence-transformers`."
            )
        return layout

    def graphs(self, encoder: Any, config: PairViewsConfig) -> list[Graph]:
        """A graph of each tower with its projection."""
        return tower_graphs(encoder, config.image.resolve().size or 32)

    def monitor(self, config: PairEvaluationConfig, train: Dataset) -> Monitor | None:
        """Retrieval among a sample of the training pairs."""
        return partial(retrieval_monitor, train) if isinstance(train, PairDataset) else None

    def monitor_title(self, config: PairEvaluationConfig) -> str:
        """What `monitor` measures."""
        return "image-to-text R@1 (%)"

    def runnable_protocols(self, config: PairEvaluationConfig, train: Dataset) -> tuple[str, ...]:
        """Pairs are retrieved by each other; classes are for the other protocols."""
        every = has_classes(train)
        return tuple(name for name in config.protocols if every or name in PAIRED)


def _text_tower(config: PairEncoderConfig, dataset: Dataset) -> nn.Module:
    if config.text_run is not None:
        return TEXT.load_encoder(_encoder_section(config.text_run, "text"), config.text_run)
    if config.text.name == TINY and isinstance(dataset, PairDataset):
        dataset = dataset.texts()
    return TEXT.build_encoder(config.text, dataset)


def _encoder_section(folder: Path, modality: str) -> Any:
    """The encoder section of a finished run."""
    if not (folder / STORED).is_file() or not (folder / ENCODER_FILE).is_file():
        raise UserError(f"{folder} is not a finished run: it needs recipe.yaml and {ENCODER_FILE}.")
    recipe = recipes.load(str(folder / STORED))
    if recipe.modality != modality:
        raise UserError(f"{folder} is a run of {recipe.modality}, not of {modality}.")
    return recipe.encoder


MODALITY = ImageText()
