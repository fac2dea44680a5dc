"""Image encoders from weights files of several libraries, and into their files."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.weights import load_state, read_metadata, read_weights, save_weights
from macl.modalities.images.layouts import as_torchvision, renamed
from macl.modalities.images.presets import Augmentation
from macl.modalities.images.views import EVALUATION_MARGIN

HUGGINGFACE_WEIGHTS = "model.safetensors"
TORCH_SUFFIXES = (".pth", ".pt", ".tar", ".ckpt", ".bin")
WRAPPERS = ("state_dict", "model")
"""Where training scripts keep the weights inside a checkpoint."""

TOLERANCE = 1e-5
"""Largest difference between an encoder and its export that passes, relative to the features."""


def is_checkpoint(path: Path) -> bool:
    """Whether `path` may hold weights: such a file, or a folder with Hugging Face's ResNet."""
    return path.suffix in (".safetensors", ".pkl", *TORCH_SUFFIXES) or is_huggingface(path)


def is_huggingface(folder: Path) -> bool:
    """Whether this folder's config.json says that it holds a ResNet."""
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(config, dict) and config.get("model_type") == "resnet"


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a weights file or Hugging Face folder, and its header where it has one.

    Nothing in a file is ever run: safetensors, or torch's archives with plain values only.
    """
    path = path.expanduser()
    if path.is_dir():
        path = path / HUGGINGFACE_WEIGHTS
    if path.suffix not in TORCH_SUFFIXES:
        if path.suffix == ".pkl":
            raise UserError(f"{path} is a pickle, which can run code when read. {_REMEDY}")
        return read_weights(path), read_metadata(path)
    try:
        stored = torch.load(path, map_location="cpu", weights_only=True)
    except OSError as error:
        raise UserError(f"weights {path} cannot be read: {error.strerror or error}.") from error
    # Bytes that are no pickle make the reader raise nearly anything: KeyError, IndexError, …
    except Exception as error:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values and could run code "
            f"when read. {_REMEDY}"
        ) from error
    return _tensors(stored, path), {}


_REMEDY = "If you trust it, load it yourself and save the tensors with safetensors.torch.save_file."


def load_checkpoint(encoder: nn.Module, path: Path) -> None:
    """Load the encoder's weights from `path`, whatever library named them; classifiers stay out.

    Raises:
        UserError: the file cannot be read safely, or does not hold these weights.
    """
    state, origin = read_checkpoint(path)
    own = encoder.state_dict()
    resnet = as_torchvision(state) if as_torchvision(own) is not None else None
    if resnet is None:
        resnet = {n: v for n, v in state.items() if n in own or not n.startswith("fc.")}
    load_state(encoder, resnet, path, origin)


def export_huggingface(
    encoder: nn.Module, folder: Path, preprocessing: Augmentation, metadata: Mapping[str, str]
) -> None:
    """A folder that `transformers.AutoModel` opens; `pooler_output` is the features.

    Raises:
        UserError: transformers is not installed, or has no such ResNet.
    """
    try:
        from transformers import ConvNextImageProcessor, ResNetConfig, ResNetModel
        from transformers.image_utils import PILImageResampling
    except ImportError as error:
        raise UserError(
            "the layout huggingface needs transformers: pip install 'macl[text]'"
        ) from error
    state = _resnet_state(encoder, "huggingface")
    depths = resnet_depths(state)
    bottleneck = "layer1.0.conv3.weight" in state
    last = "bn3" if bottleneck else "bn2"
    config = ResNetConfig(
        embedding_size=len(state["bn1.weight"]),
        hidden_sizes=[len(state[f"layer{s}.0.{last}.weight"]) for s in range(1, len(depths) + 1)],
        depths=depths,
        layer_type="bottleneck" if bottleneck else "basic",
    )
    model = ResNetModel(config).eval()
    theirs = renamed(state, "huggingface")
    if {n: v.shape for n, v in model.state_dict().items()} != {
        n: v.shape for n, v in theirs.items()
    }:
        raise UserError(
            "Hugging Face's ResNet has a 7×7 stem and no groups; this encoder is another network. "
            "Export it without --layout huggingface."
        )
    model.load_state_dict(theirs)
    require_equal(encoder, lambda x: model(x).pooler_output.flatten(1), "the Hugging Face model")
    config.save_pretrained(folder)
    save_weights(model, folder / HUGGINGFACE_WEIGHTS, metadata)
    ConvNextImageProcessor(
        do_resize=preprocessing.size is not None,
        size={"shortest_edge": preprocessing.size},
        crop_pct=1 / EVALUATION_MARGIN if preprocessing.centre_crop else 1.0,
        resample=PILImageResampling.BILINEAR,
        image_mean=list(preprocessing.mean),
        image_std=list(preprocessing.std),
    ).save_pretrained(folder)


def export_detectron2(encoder: nn.Module, path: Path) -> None:
    """A .pth file for detectron2's MODEL.WEIGHTS, to be given with ?matching_heuristics=True."""
    state = renamed(_resnet_state(encoder, "detectron2"), "detectron2")
    atomic_write(path, lambda file: torch.save({"model": state}, file))
    again = _copy_with(encoder, path)
    require_equal(encoder, again, str(path))


def require_equal(encoder: nn.Module, other: Any, name: str) -> None:
    """Compare features of random images; `UserError` if `other` differs from `encoder`."""
    images = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, got = encoder.eval()(images), other(images)
    difference = float((got - expected).abs().amax() / expected.abs().amax().clamp(min=1e-12))
    if not difference <= TOLERANCE:
        raise UserError(f"{name} differs from the encoder by {difference:.1e}.")


def _copy_with(encoder: nn.Module, path: Path) -> nn.Module:
    again = copy.deepcopy(encoder)
    for value in again.state_dict().values():
        value.zero_()
    load_checkpoint(again, path)
    return again.eval()


def _resnet_state(encoder: nn.Module, layout: str) -> dict[str, Tensor]:
    """Contiguous weights under torchvision's names."""
    state = encoder.state_dict()
    resnet = as_torchvision(state)
    if resnet is None or resnet.keys() != state.keys():
        raise UserError(f"the layout {layout} is for ResNets; this encoder is none.")
    return {
        name: value.cpu().clone(memory_format=torch.contiguous_format)
        for name, value in resnet.items()
    }


def resnet_depths(state: Mapping[str, Tensor]) -> list[int]:
    """Blocks in each stage."""
    blocks = {tuple(n.split(".")[:2]) for n in state if n.startswith("layer")}
    stages = sorted({stage for stage, _ in blocks})
    return [sum(stage == each for stage, _ in blocks) for each in stages]


def _tensors(stored: Any, path: Path) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    tensors = (
        {str(name): value for name, value in stored.items() if isinstance(value, Tensor)}
        if isinstance(stored, Mapping)
        else {}
    )
    if not tensors:
        raise UserError(f"{path} holds no weights by name, neither at its top nor in {WRAPPERS}.")
    return tensors
