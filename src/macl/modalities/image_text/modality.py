"""The image–text modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.base import MODALITY_KEY, Modality, Resolve
from macl.modalities.image_text.clip import clip_views, export_clip, is_clip, load_clip
from macl.modalities.image_text.data import load_pairs, open_side
from macl.modalities.image_text.evaluation import PAIRED, evaluate_pairs, retrieval_monitor
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.image_text.sections import (
    SECTIONS,
    PairDataConfig,
    PairEncoderConfig,
    PairEvaluationConfig,
    PairViewsConfig,
)
from macl.modalities.image_text.text_side import export_text_side
from macl.modalities.image_text.tower_io import build_towers, load_towers, save_towers, two_towers
from macl.modalities.image_text.towers import TwoTowers, tower_graphs
from macl.modalities.image_text.views import PairViews
from macl.modalities.monitor import has_classes
from macl.modalities.protocols import Dataset, Embed, Graph, Items, Monitor
from macl.probes.score import Score
from macl.recipes import Overrides, Recipe, Sections


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

    def load(self, config: PairDataConfig, split: str) -> PairDataset:
        """The pairs of "train", "validation" or "test"."""
        return load_pairs(config, split)

    def open(self, config: PairDataConfig, path: Path) -> Dataset:
        """Pictures or texts, by what `path` is."""
        return open_side(config, path)

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
        texts = pairs.texts()
        return texts, pairs.matches(texts.names)

    def build_encoder(self, config: PairEncoderConfig, dataset: Dataset) -> TwoTowers:
        """Both towers with their projections."""
        return build_towers(config, dataset)

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """Weights, and what is needed to build both towers again."""
        save_towers(encoder, folder, {**metadata, MODALITY_KEY: self.name})

    def load_encoder(self, config: PairEncoderConfig, folder: Path) -> TwoTowers:
        """The towers of a run, from its folder alone."""
        return load_towers(config, folder)

    def build_views(self, config: PairViewsConfig, encoder: nn.Module) -> PairViews:
        """Augmented images, and captions through the text tower's tokenizer."""
        return PairViews(config, two_towers(encoder))

    def start_from(self, name: str, weights: Path | None) -> Overrides:
        """A folder with a CLIP or SigLIP."""
        return {"encoder.pretrained": Path(name).expanduser().absolute()}

    def settle(self, recipe: Recipe) -> Recipe:
        """The preprocessing of a CLIP or SigLIP, where the recipe leaves it open."""
        folder = recipe.encoder.pretrained
        if folder is None or not is_clip(folder):
            return recipe
        image = recipe.views.image
        given = image.model_dump(exclude_none=True)
        filled = type(image).model_validate({**clip_views(folder), **given})
        views = recipe.views.model_copy(update={"image": filled})
        return recipe.model_copy(update={"views": views})

    def recognizes_encoder(self, name: str) -> bool:
        """What `export` wrote, and folders with a CLIP or SigLIP."""
        return is_clip(Path(name).expanduser()) or super().recognizes_encoder(name)

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """A CLIP or SigLIP with its own preprocessing; else what `export` wrote."""
        folder = Path(name).expanduser()
        if not is_clip(folder):
            return super().open_encoder(name, resolve)
        views = {"image": clip_views(folder), "text": {"max_length": 77}}
        sections = resolve({"views": views, "encoder": {"pretrained": str(folder)}})
        return load_clip(folder), sections

    def export_layout(
        self, layout: str, encoder: nn.Module, views: Any, folder: Path, metadata: Mapping[str, str]
    ) -> str:
        """A folder for one of the two libraries, read back and compared with the towers."""
        towers = two_towers(encoder)
        if layout == "sentence-transformers":
            export_text_side(towers, folder / layout, views.text.plain_max_length)
        elif hasattr(towers, "clip_config"):
            export_clip(towers, views.image.resolve(), folder / layout)
        else:
            raise UserError(
                "`layouts=huggingface`: transformers has no model of these towers. It is for runs "
                "that began with encoder.pretrained; use `layouts=sentence-transformers`."
            )
        return layout

    def graphs(self, encoder: nn.Module, config: PairViewsConfig) -> list[Graph]:
        """A graph of each tower with its projection."""
        return tower_graphs(two_towers(encoder), config.image.resolve().size or 32)

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

    def evaluate(
        self,
        config: PairEvaluationConfig,
        data: PairDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """See `evaluate_pairs`."""
        return evaluate_pairs(config, data, embed, seed)


MODALITY = ImageText()
