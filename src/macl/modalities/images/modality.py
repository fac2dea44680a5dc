"""The images modality."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.base import ENCODER_FILE, Modality, with_weights
from macl.modalities.images import encoders, pretrained
from macl.modalities.images.checkpoints import export_detectron2, require_equal
from macl.modalities.images.data import load_for_evaluation, load_images, open_images
from macl.modalities.images.detection.data import find_devkit
from macl.modalities.images.detection.protocol import NAME as DETECTION
from macl.modalities.images.detection.protocol import DetectionTask
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.preprocessing import TIMM, TORCHVISION, completed
from macl.modalities.images.pretrained import HuggingFaceImages
from macl.modalities.images.sections import (
    PROBES,
    SECTIONS,
    ImageDataConfig,
    ImageEncoderConfig,
    ImageEvaluationConfig,
    ImageViewsConfig,
)
from macl.modalities.images.views import ImageViews, short_side
from macl.modalities.probing import probe_scores
from macl.modalities.protocols import Dataset, Embed, Graph, Items, Views
from macl.probes.score import Score
from macl.recipes import Overrides, Recipe

PLAN_FOLDER = "image_encoder"
"""Folder of a run with the configuration of a model of transformers."""


class Images(Modality):
    """Pictures in folders and arrays, encoded by convolutional networks."""

    name = "images"
    sections = SECTIONS
    open_keys = frozenset({"limit", "seed", "max_side", "on_error"})
    encoder_forms = (
        "a .safetensors or .pth file, a folder of Hugging Face's, timm's or `macl export`, or the "
        "name of an encoder as in a recipe (untrained)"
    )
    adapt_recipe = "adapt-images"
    layouts: ClassVar[Mapping[str, str]] = {
        "huggingface": "a folder for transformers.AutoModel, whose pooler_output is equal",
        "detectron2": "for MODEL.WEIGHTS detectron2.pth?matching_heuristics=True",
    }

    load = staticmethod(load_images)
    open = staticmethod(open_images)
    recognizes_encoder = staticmethod(encoders.is_image_encoder)
    encoder_names = staticmethod(encoders.encoder_names)
    open_encoder = staticmethod(encoders.open_image_encoder)

    def data_overrides(self, path: Path, protocols: Sequence[str] | None = None) -> Overrides:
        """VOC is for detection, as is any path where it alone is asked for; all else for probes."""
        asked = protocols is not None and tuple(protocols) == (DETECTION,)
        key = "evaluation.detection.data" if asked or find_devkit(path) else "data.path"
        return {key: path}

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """Their names and the pictures themselves; of many channels the first three."""
        pictures = (dataset[i][:3] for i in track(indices, "thumbnails", len(indices)))
        return Items([dataset.names[i] for i in indices], pictures=pictures)

    def build_encoder(self, config: ImageEncoderConfig, dataset: Dataset) -> nn.Module:
        """A ResNet, a timm model or the user's own."""
        return build_image_encoder(config)

    def load_encoder(self, config: ImageEncoderConfig, folder: Path) -> nn.Module:
        """The same encoder with the run's weights."""
        plan = folder / PLAN_FOLDER
        if plan.is_dir():
            return with_weights(pretrained.build_huggingface(plan, weights=False), folder)
        untrained = config.model_copy(update={"weights": None, "pretrained": False})
        return with_weights(build_image_encoder(untrained), folder)

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """The weights; of a model of transformers also its configuration."""
        if isinstance(encoder, HuggingFaceImages):
            encoder.config.save_pretrained(folder / PLAN_FOLDER)
        super().save_encoder(encoder, folder, metadata)

    def start_from(self, name: str, weights: Path | None) -> Overrides:
        """A network by its name, with a file of weights or those of its library."""
        if Path(name).expanduser().is_file():
            raise UserError(
                f"{name} does not say which network it is of: give its name, and this file as the "
                "weights."
            )
        if weights is not None:
            return {"encoder.name": name, "encoder.weights": weights.absolute()}
        library = name.startswith((TIMM, TORCHVISION))
        return {"encoder.name": name, **({"encoder.pretrained": True} if library else {})}

    def settle(self, recipe: Recipe) -> Recipe:
        """The size and statistics of the images as the pretrained network expects them."""
        encoder, views = completed(recipe.encoder, recipe.views)
        return recipe.model_copy(update={"encoder": encoder, "views": views})

    def build_views(self, config: ImageViewsConfig, encoder: nn.Module) -> ImageViews:
        """Crops and colors, a batch at a time."""
        return ImageViews(config)

    def input_settings(self, config: ImageViewsConfig) -> dict[str, Any]:
        """Side in pixels (that of the images where it is None), mean and standard deviation."""
        chosen = config.resolve()
        return {"size": chosen.size, "mean": chosen.mean, "std": chosen.std}

    def graphs(self, encoder: nn.Module, config: ImageViewsConfig) -> list[Graph]:
        """Of images of the size that the views give, where they give one."""
        chosen = config.resolve()
        side = chosen.size or 32
        example = torch.zeros(2, len(chosen.mean), side, side)
        return [Graph("encoder.onnx", encoder, {"input": example})]

    def export(
        self, encoder: nn.Module, views: ImageViewsConfig, folder: Path, metadata: Mapping[str, str]
    ) -> Path:
        """A folder for transformers or timm, whose network it is; else weights that name theirs."""
        if isinstance(encoder, HuggingFaceImages):
            return pretrained.save_huggingface(encoder, folder, views)
        if hasattr(encoder, "pretrained_cfg"):
            return pretrained.save_timm(encoder, folder, views)
        return super().export(encoder, views, folder, metadata)

    def usage(self, encoder: nn.Module, views: ImageViewsConfig) -> tuple[str, Sequence[str]]:
        """By the library whose network it is."""
        if isinstance(encoder, HuggingFaceImages):
            return "transformers", (
                'model = AutoModel.from_pretrained("FOLDER")',
                'prepare = AutoImageProcessor.from_pretrained("FOLDER")',
                'vectors = model(**prepare(images, return_tensors="pt")).pooler_output.flatten(1)',
            )
        if hasattr(encoder, "pretrained_cfg"):
            return "timm", (
                'model = timm.create_model("local-dir:FOLDER", pretrained=True).eval()',
                "config = timm.data.resolve_model_data_config(model)",
                "vectors = model(timm.data.create_transform(**config)(image)[None])",
            )
        return self.library, ('vectors = macl.embed("FOLDER", "photos/").values',)

    def preparation(self, data: ImageDataConfig, views: ImageViewsConfig) -> str:
        """Resizing, cropping and normalization."""
        chosen = views.resolve()
        size, how = chosen.size, f"({chosen.interpolation}, antialiased)"
        steps = []
        if data.max_side is not None:
            steps.append(f"shrink until the shorter side is at most {data.max_side}")
        if size is not None and chosen.crop != "whole":
            steps.append(f"resize the shorter side to {short_side(size, chosen.crop)} {how}")
            steps.append(f"cut {size}×{size} out of the center")
        elif size is not None:
            steps.append(f"resize to {size}×{size} {how}")
        steps.append(f"RGB in [0, 1], minus {list(chosen.mean)}, divided by {list(chosen.std)}")
        return "; ".join(steps) + "."

    def reads_back(
        self, config: ImageEncoderConfig, encoder: nn.Module, views: Views, folder: Path
    ) -> bool:
        """Whether the folder, opened as a user would, gives the same features."""
        if (folder / ENCODER_FILE).is_file():
            return super().reads_back(config, encoder, views, folder)
        fixed = {"img_size": config.img_size, "channels": config.channels, "name": str(folder)}
        again = build_image_encoder(ImageEncoderConfig.model_validate(fixed)).eval()
        require_equal(encoder, again, str(folder), config.img_size or 64, config.channels)
        return True

    def export_layout(
        self, layout: str, encoder: nn.Module, views: Any, folder: Path, metadata: Mapping[str, str]
    ) -> str:
        """A folder for Hugging Face or a file for detectron2, both compared with the encoder."""
        if layout == "huggingface":
            pretrained.export_huggingface(encoder, folder / layout, views, metadata)
            return layout
        export_detectron2(encoder, folder / "detectron2.pth")
        return "detectron2.pth"

    def implied_protocols(self, path: Path, config: ImageEvaluationConfig) -> Sequence[str] | None:
        """VOC asks for detection."""
        return (DETECTION,) if find_devkit(path) else None

    def complete(
        self, config: ImageEvaluationConfig, views: ImageViewsConfig, folder: Path | None
    ) -> ImageEvaluationConfig:
        """Detection takes the normalization of the views and keeps its detectors in the run."""
        chosen, kept = views.resolve(), folder and (folder / "detection").absolute()
        around = {"mean": chosen.mean, "std": chosen.std, "folder": kept}
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
        asked = DETECTION in config.protocols
        detection = DetectionTask(config.detection, encoder) if asked else None
        scores: list[Score] = []
        if set(PROBES) & set(config.protocols):
            train, test, split = load_for_evaluation(data, config.split)
            scores += probe_scores(config, train, test, embed, seed, split)
        if detection is not None:
            scores += detection.scores(seed)
        return scores


MODALITY = Images()
