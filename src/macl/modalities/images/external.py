"""Image encoders that are not part of a run: a weights file, a Hugging Face folder, a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from macl.core.errors import UserError
from macl.core.weights import load_state, read_metadata
from macl.modalities.base import MODALITY_KEY, Resolve
from macl.modalities.images.checkpoints import is_checkpoint, read_checkpoint, resnet_depths
from macl.modalities.images.encoders import ResNetEncoder, build_image_encoder, encoder_names
from macl.modalities.images.layouts import as_torchvision
from macl.recipes import Sections

SEED = 0
"""Of the weights of an encoder that is given by name and therefore untrained."""


def is_image_encoder(name: str) -> bool:
    """Whether `open_image_encoder` can open `name`, by its name and its header."""
    path = Path(name).expanduser()
    if is_checkpoint(path):
        return not path.is_file() or _modality(path) in (None, "images")
    return name in encoder_names() or (":" in name and not name.startswith("package:"))


def open_image_encoder(name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
    """The encoder, and the sections for its evaluation with the views that its file asks for.

    Args:
        name: a weights file, a folder of Hugging Face's, or a name as in a recipe (untrained).
        resolve: types the sections. Weights that are not a ResNet's need encoder.name.
    """
    path = Path(name).expanduser()
    if not is_checkpoint(path):
        sections = resolve({"encoder": {"name": name}})
        torch.manual_seed(SEED)
        return build_image_encoder(sections.encoder), sections
    state, header = read_checkpoint(path)
    views = _stored_views(path, header)
    sections = resolve({"views": views})
    if "name" in sections.encoder.model_fields_set:
        named = sections.encoder.model_copy(update={"weights": path})
        return build_image_encoder(named), sections
    encoder = _resnet_of(state, path)
    if not views:
        large = encoder.conv1.kernel_size == (7, 7)
        preset = {"preset": "imagenet" if large else "cifar"}
        sections = resolve({"views": preset})
    return encoder, sections


def resnet_like(state: Mapping[str, Tensor]) -> ResNetEncoder:
    """The ResNet, with new weights, that weights under torchvision's names were taken from."""
    bottleneck = "layer1.0.conv3.weight" in state
    width = len(state["conv1.weight"])
    # The 3×3 convolution of a bottleneck shows its groups: (channels, channels / groups, 3, 3).
    channels, per_group = state[f"layer1.0.conv{2 if bottleneck else 1}.weight"].shape[:2]
    return ResNetEncoder(
        Bottleneck if bottleneck else BasicBlock,
        resnet_depths(state),
        width,
        "imagenet" if state["conv1.weight"].shape[-1] == 7 else "cifar",
        groups=channels // per_group,
        width_per_group=per_group * 64 // width if bottleneck else 64,
    )


def _resnet_of(state: Mapping[str, Tensor], path: Path) -> ResNetEncoder:
    resnet = as_torchvision(state)
    if resnet is None:
        raise UserError(
            f"{path} holds no ResNet: name its network with encoder.name=…, such as "
            "encoder.name=timm:vit_small_patch16_224."
        )
    try:
        model = resnet_like(resnet)
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} has a ResNet's names, but not its shapes: {error}") from error
    load_state(model, resnet, path, {})
    return model


def _modality(path: Path) -> str | None:
    """The modality in the header of a file that macl wrote; None for any other file."""
    if path.suffix != ".safetensors":
        return None
    try:
        return read_metadata(path).get(MODALITY_KEY)
    except UserError:
        return None  # reported when it is opened


def _stored_views(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    """The views section in the header of an exported encoder; empty where there is none."""
    try:
        return dict(json.loads(header.get("views", "{}")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path}: the views in its header cannot be read: {error}") from error
