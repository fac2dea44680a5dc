"""Image encoders that are not part of a run: a weights file, a Hugging Face folder, a name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.weights import load_state, read_metadata
from macl.modalities.base import MODALITY_KEY, Resolve, exported_file, stored_sections
from macl.modalities.images.checkpoints import is_checkpoint, read_checkpoint, resnet_shape
from macl.modalities.images.encoders import ResNetEncoder, build_image_encoder, encoder_names
from macl.modalities.images.layouts import as_torchvision
from macl.modalities.images.preprocessing import completed, folder_kind
from macl.recipes import Sections

SEED = 0
"""Of the weights of an encoder that is given by name and therefore untrained."""


def is_image_encoder(name: str) -> bool:
    """Whether `open_image_encoder` can open `name`, by its name and its header."""
    path = Path(name).expanduser()
    if path.is_dir():
        exported = exported_file(name)
        if exported is not None:
            return _modality(exported) == "images"
        # A CLIP is one of image-text, and one of images where that is asked for.
        return folder_kind(path) in ("timm", "vision")
    if is_checkpoint(path):
        return not path.is_file() or _modality(path) in (None, "images")
    return name in encoder_names() or (":" in name and not name.startswith("package:"))


def open_image_encoder(name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
    """The encoder, and the sections for its evaluation with the views that its file asks for.

    Args:
        name: a weights file; a folder of Hugging Face's, timm's or `macl export`; or a name as in
            a recipe, untrained unless encoder.weights or encoder.pretrained is set.
        resolve: types the sections. Weights that are not a ResNet's need encoder.name.
    """
    path = Path(name).expanduser()
    exported = exported_file(name)
    stored = {} if exported is None else stored_sections(exported)
    if "encoder" in stored:
        encoder = {**stored["encoder"], "weights": str(exported)}
        sections = resolve({"encoder": encoder, "views": stored.get("views", {})})
        return build_image_encoder(sections.encoder), sections
    if path.is_dir() or not is_checkpoint(path):
        return _built(resolve({"encoder": {"name": str(path) if path.is_dir() else name}}))
    state, _ = read_checkpoint(path)
    views = stored_sections(path).get("views") if path.suffix == ".safetensors" else None
    sections = resolve({"views": views or {}})
    if "name" in sections.encoder.model_fields_set:
        return _built(sections, weights=path.absolute())
    resnet = _resnet_of(state, path)
    if views is None:
        large = resnet.conv1.kernel_size == (7, 7)
        sections = resolve({"views": {"preset": "imagenet" if large else "cifar"}})
    return resnet, sections


def _built(sections: Sections, **changes: Any) -> tuple[nn.Module, Sections]:
    """The encoder by its section, and the sections as its own configuration completes them."""
    encoder, views = completed(sections.encoder.model_copy(update=changes), sections.views)
    torch.manual_seed(SEED)
    sections = sections.model_copy(update={"encoder": encoder, "views": views})
    return build_image_encoder(encoder), sections


def _resnet_of(state: Mapping[str, Tensor], path: Path) -> ResNetEncoder:
    resnet = as_torchvision(state)
    if resnet is None:
        raise UserError(
            f"{path} holds no ResNet: name its network with encoder.name=…, such as "
            "encoder.name=timm:vit_small_patch16_224."
        )
    try:
        model = ResNetEncoder(**resnet_shape(resnet))
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
