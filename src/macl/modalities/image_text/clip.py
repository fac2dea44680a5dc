"""CLIP and SigLIP of the library transformers as two towers, and back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macl.core import batching
from macl.core.errors import UserError
from macl.core.files import read_json
from macl.modalities.hub import quiet
from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.images.preprocessing import (
    PREPROCESSOR,
    image_processor,
    preprocessing_of,
    processor_config,
)
from macl.modalities.images.pretrained import HuggingFaceImages
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.text.folders import read_model, write_json

MODELS = ("clip", "siglip")
"""Values of model_type in config.json that can be opened."""

SCALES = ("logit_scale", "logit_bias")
"""Trained numbers of the loss, which are kept for export."""


class ClipTextTower(nn.Module):
    """The text model with its tokenizer: tokens (B, T) → (B, out_dim), before the projection."""

    def __init__(self, model: nn.Module, tokenizer: Any, whole_length: bool) -> None:
        super().__init__()
        self.model, self.tokenizer = model, tokenizer
        # SigLIP was trained on texts padded to the full length.
        self.whole_length = whole_length
        config: Any = model.config
        self.max_length: int = config.max_position_embeddings
        self.out_dim: int = config.hidden_size

    def forward(self, view: Mapping[str, Tensor]) -> Tensor:
        """Encode token tensors, as `tokenize` makes them."""
        pooled: Tensor = self.model(**view).pooler_output
        return pooled

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Token tensors (B, T) on the tower's device; what is too long loses its end."""
        limit = min(max_length or self.max_length, self.max_length)
        tokens = self.tokenizer(
            texts,
            padding="max_length" if self.whole_length else True,
            truncation=True,
            max_length=self.max_length if self.whole_length else limit,
            return_tensors="pt",
        )
        kept = {n: tokens[n] for n in ("input_ids", "attention_mask") if n in tokens}
        tensors: dict[str, Tensor] = batching.move(kept, next(self.parameters()).device)
        return tensors


def is_clip(folder: Path) -> bool:
    """Whether a folder holds a CLIP or SigLIP of transformers."""
    return read_json(folder / "config.json").get("model_type") in MODELS


def load_clip(folder: Path, frozen: tuple[str, ...] = (), *, weights: bool = True) -> TwoTowers:
    """The model of a folder as two towers; without `weights` from its configuration alone."""
    if not is_clip(folder):
        raise UserError(f"{folder} holds no CLIP or SigLIP: its config.json is not of {MODELS}.")
    model, tokenizer = read_model(folder, weights=weights)
    projections = (
        getattr(model, "visual_projection", nn.Identity()),
        getattr(model, "text_projection", nn.Identity()),
    )
    text = ClipTextTower(model.text_model, tokenizer, model.config.model_type == "siglip")
    image = HuggingFaceImages(model.vision_model)
    dim: int = getattr(projections[0], "out_features", image.out_dim)
    towers = TwoTowers(image, text, dim, frozen=frozen, projections=projections)
    for name in SCALES:
        if hasattr(model, name):
            towers.register_buffer(name, getattr(model, name).detach().clone())
    towers.clip_config = model.config
    return towers


def save_clip_plan(towers: TwoTowers, folder: Path) -> None:
    """Write all but the weights: configuration and vocabulary."""
    folder.mkdir(parents=True, exist_ok=True)
    towers.clip_config.save_pretrained(folder)
    towers.text.tokenizer.save_pretrained(folder)


def export_clip(towers: TwoTowers, views: ImageViewsConfig, folder: Path) -> None:
    """Write a folder that `transformers.AutoModel` opens, with the preprocessing of `views`."""
    from transformers import AutoModel

    config = towers.clip_config
    model: Any = AutoModel.from_config(config, trust_remote_code=False)
    model.text_model, model.vision_model = towers.text.model, towers.image.model
    if hasattr(model, "visual_projection"):
        model.visual_projection = towers.image_projection
        model.text_projection = towers.text_projection
    scales = {name: getattr(towers, name) for name in SCALES if hasattr(model, name)}
    model.load_state_dict(scales, strict=False)
    save_clip_plan(towers, folder)
    kind = "SiglipImageProcessor" if config.model_type == "siglip" else "CLIPImageProcessor"
    write_json(folder / PREPROCESSOR, {**processor_config(views), "image_processor_type": kind})
    with quiet():
        model.save_pretrained(folder, safe_serialization=True)
    again = load_clip(folder).state_dict()
    if not all(torch.equal(value.cpu(), again[n]) for n, value in towers.state_dict().items()):
        raise UserError(f"{folder} does not give the towers' own weights when read back.")


def clip_views(folder: Path) -> dict[str, Any]:
    """The values of views.image by which a folder's own preprocessing is followed."""
    if image_processor(folder):
        own, _ = preprocessing_of(ImageEncoderConfig.model_validate({"name": str(folder)}))
    else:
        config = read_json(folder / "config.json").get("vision_config", {})
        own = {"size": config.get("image_size", 224)}
    return {"preset": "clip", **own}
