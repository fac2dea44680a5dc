"""The images modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

import torch
from torch import Tensor, nn

from macl.core.progress import track
from macl.core.weights import load_weights
from macl.modalities.base import ENCODER_FILE, Modality, Resolve
from macl.modalities.images.checkpoints import export_detectron2, export_huggingface
from macl.modalities.images.data import load_for_evaluation, load_images, open_images
from macl.modalities.images.detection.data import is_voc
from macl.modalities.images.detection.protocol import NAME as DETECTION
from macl.modalities.images.detection.protocol import DetectionTask
from macl.modalities.images.encoders import build_image_encoder, encoder_names
from macl.modalities.images.evaluation import evaluate_images
from macl.modalities.images.external import is_image_encoder, open_image_encoder
from macl.modalities.images.sections import (
    PROBES,
    ImageDataConfig,
    ImageEncoderConfig,
    ImageEvaluationConfig,
    ImageViewsConfig,
)
from macl.modalities.images.views import ImageViews
from macl.modalities.items import Items
from macl.modalities.protocols import Dataset, Embed
from macl.probes.score import Score
from macl.recipes import Overrides, Sections


class Images(
    Modality[ImageDataConfig, ImageViewsConfig, ImageEncoderConfig, ImageEvaluationConfig]
):
    """Pictures in folders and arrays, encoded by convolutional networks."""

    name = "images"
    DataConfig = ImageDataConfig
    ViewsConfig = ImageViewsConfig
    EncoderConfig = ImageEncoderConfig
    EvaluationConfig = ImageEvaluationConfig
    open_keys = frozenset({"limit", "seed", "max_side", "on_error"})
    encoder_forms = (
        "a .safetensors or .pth file, a Hugging Face folder with a ResNet, or the name of an "
        "encoder as in a recipe (untrained)"
    )
    layouts: ClassVar[Mapping[str, str]] = {
        "huggingface": "a folder for transformers.AutoModel, whose pooler_output is equal",
        "detectron2": "for MODEL.WEIGHTS detectron2.pth?matching_heuristics=True",
    }
    library = "timm"

    def load(self, config: ImageDataConfig, split: str) -> Dataset:
        """The images of "train", "validation" or "test"."""
        return load_images(config, split)

    def open(self, config: ImageDataConfig, path: Path) -> Dataset:
        """An image file, a folder of them, or an .npz file."""
        return open_images(config, path)

    def data_overrides(self, path: Path, protocols: Sequence[str] | None = None) -> Overrides:
        """VOC is for detection; other images are for the probes.

        Where detection alone is asked for, `path` is taken for VOC in any case, so that detection
        reports what is wrong with it.
        """
        if is_voc(path) or (protocols is not None and tuple(protocols) == (DETECTION,)):
            return {"evaluation.detection.data": path}
        return super().data_overrides(path, protocols)

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """Their names and the pictures themselves."""
        pictures = (dataset[i] for i in track(indices, "thumbnails", len(indices)))
        return Items([dataset.names[i] for i in indices], pictures=pictures)

    def build_encoder(self, config: ImageEncoderConfig, dataset: Dataset) -> nn.Module:
        """A ResNet, a timm model or the user's own."""
        return build_image_encoder(config)

    def load_encoder(self, config: ImageEncoderConfig, folder: Path) -> nn.Module:
        """The same encoder with the run's weights."""
        encoder = build_image_encoder(config.model_copy(update={"weights": None}))
        load_weights(encoder, folder / ENCODER_FILE)
        return encoder

    def build_views(self, config: ImageViewsConfig, encoder: nn.Module) -> ImageViews:
        """Crops and colours, a batch at a time."""
        return ImageViews(config)

    def example(self, config: ImageViewsConfig) -> Tensor:
        """Two blank images of the size that the views give, where they give one."""
        side = config.resolve().size or 32
        return torch.zeros(2, 3, side, side)

    def recognises_encoder(self, name: str) -> bool:
        """Weights files, Hugging Face folders with a ResNet, and names of encoders."""
        return is_image_encoder(name)

    def encoder_names(self) -> Sequence[str]:
        """The ResNets; timm's models are called timm:NAME."""
        return encoder_names()

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """See `open_image_encoder`."""
        return open_image_encoder(name, resolve)

    def export_layout(
        self,
        layout: str,
        encoder: nn.Module,
        views: ImageViewsConfig,
        folder: Path,
        metadata: Mapping[str, str],
    ) -> str:
        """A folder for Hugging Face or a file for detectron2, both compared with the encoder."""
        if layout == "huggingface":
            export_huggingface(encoder, folder / layout, views.resolve(), metadata)
            return layout
        export_detectron2(encoder, folder / "detectron2.pth")
        return "detectron2.pth"

    def implied_protocols(self, path: Path, config: ImageEvaluationConfig) -> Sequence[str] | None:
        """VOC asks for detection."""
        return (DETECTION,) if is_voc(path) else None

    def complete(
        self, config: ImageEvaluationConfig, views: ImageViewsConfig, folder: Path | None
    ) -> ImageEvaluationConfig:
        """Detection takes the normalisation of the views and keeps its detectors in the run."""
        settings = views.resolve()
        around = {
            "mean": settings.mean,
            "std": settings.std,
            "folder": None if folder is None else (folder / "detection").absolute(),
        }
        unset = {k: v for k, v in around.items() if getattr(config.detection, k) is None}
        return config.model_copy(update={"detection": config.detection.model_copy(update=unset)})

    def evaluate(
        self,
        config: ImageEvaluationConfig,
        data: ImageDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """kNN and linear probe from train to test, the geometry of the test embeddings, detection.

        Detection is prepared first, so that its mistakes are reported before anything long begins.
        """
        detection = None
        if DETECTION in config.protocols:
            detection = DetectionTask.prepare(config.detection, encoder)
        scores: list[Score] = []
        if set(PROBES) & set(config.protocols):
            train, test, split = load_for_evaluation(data, config.split)
            scores += evaluate_images(config, train, test, embed, seed, split)
        if detection is not None:
            scores += detection.scores(seed)
        return scores


MODALITY = Images()
