"""Images: folders, arrays and CIFAR; SimCLR's views; ResNets; probes and detection."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from macl.core.weights import load_weights
from macl.modalities.base import ENCODER_FILE, Modality
from macl.modalities.images.data import ImageDataConfig, load_images, open_images
from macl.modalities.images.detection.data import is_voc
from macl.modalities.images.detection.protocol import NAME as DETECTION
from macl.modalities.images.detection.protocol import DetectionTask
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.modalities.images.evaluation import PROBES, ImageEvaluationConfig, evaluate_images
from macl.modalities.images.views import ImageViews, ImageViewsConfig
from macl.modalities.protocols import Dataset, Embed
from macl.probes.score import Score

if TYPE_CHECKING:
    from macl.runs import Run


class Images(
    Modality[ImageDataConfig, ImageViewsConfig, ImageEncoderConfig, ImageEvaluationConfig]
):
    """The images modality."""

    name = "images"
    DataConfig = ImageDataConfig
    ViewsConfig = ImageViewsConfig
    EncoderConfig = ImageEncoderConfig
    EvaluationConfig = ImageEvaluationConfig

    def load(self, config: ImageDataConfig, split: str) -> Dataset:
        """The images of "train", "validation" or "test"."""
        return load_images(config, split)

    def open(self, config: ImageDataConfig, path: Path) -> Dataset:
        """An image file, a folder of them, or an .npz file."""
        return open_images(config, path)

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

    def data_key(self, path: Path, protocol: str | None = None) -> str:
        """VOC is for detection; other images are for the probes."""
        return "evaluation.detection.data" if is_voc(path) else super().data_key(path, protocol)

    def judge(
        self, run: Run, overrides: list[str], *, data: Path | None, protocol: str | None, best: bool
    ) -> list[Score]:
        """As for every modality; detection needs more of the run than its encoder."""
        from macl.modalities.images.judging import judge_image_run

        return judge_image_run(run, overrides, data=data, protocol=protocol, best=best)

    def evaluate(
        self,
        config: ImageEvaluationConfig,
        data: ImageDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """kNN and linear probe from train to test, the geometry of the test embeddings, detection.

        Detection is prepared first: what is wrong with it is told before anything long begins.
        """
        detection = None
        if DETECTION in config.protocols:
            detection = DetectionTask.prepare(config.detection, encoder)
        scores: list[Score] = []
        if set(PROBES) & set(config.protocols):
            train, test = load_images(data, "train"), load_images(data, config.split)
            scores += evaluate_images(config, train, test, embed, seed)
        if detection is not None:
            scores += detection.scores(seed)
        return scores


MODALITY = Images()
