"""Image encoders from weights files of several libraries, and into their files."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.torch_files import load_torch
from macl.core.weights import load_state, read_metadata, read_weights
from macl.modalities.images.layouts import as_torchvision, renamed

WEIGHTS = "model.safetensors"
"""What Hugging Face and timm call the file with the weights."""
TORCH_SUFFIXES = (".pth", ".pt", ".tar", ".ckpt", ".bin")
WRAPPERS = ("state_dict", "model")
"""Where training scripts keep the weights inside a checkpoint."""

TOLERANCE = 1e-5
"""Largest difference between an encoder and its export that passes, relative to the features."""


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is called like a file of weights."""
    return path.suffix in (".safetensors", ".pkl", *TORCH_SUFFIXES)


def read_checkpoint(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """All tensors of a weights file or Hugging Face folder, and its header where it has one.

    Nothing in a file is ever run: safetensors, or torch's archives with plain values only.
    """
    path = path.expanduser()
    if path.is_dir():
        path = path / WEIGHTS
    if path.suffix == ".pkl":
        raise UserError(f"{path} is a pickle, which can run code when read. {_REMEDY}")
    if path.suffix not in TORCH_SUFFIXES:
        return read_weights(path), read_metadata(path)
    try:
        stored = load_torch(path)
    except UserError:
        raise
    except OSError as error:
        raise UserError(f"weights {path} cannot be read: {error.strerror or error}.") from error
    # Bytes that are not a pickle make the reader raise nearly anything: KeyError, IndexError, …
    except Exception as error:
        raise UserError(
            f"{path} is damaged, or holds more than tensors and plain values and could run code "
            f"when read. {_REMEDY}"
        ) from error
    return _tensors(stored, path), {}


_REMEDY = "If you trust it, load it yourself and save the tensors with safetensors.torch.save_file."


def load_checkpoint(encoder: nn.Module, path: Path) -> None:
    """Load the encoder's weights from `path`, whatever library named them; classifiers stay out.

    `UserError` if the file cannot be read safely, or does not hold these weights.
    """
    load_named(encoder, *read_checkpoint(path), path)


def load_named(
    encoder: nn.Module,
    state: Mapping[str, Tensor],
    origin: Mapping[str, str],
    path: Path,
    heads: tuple[str, ...] = ("fc.",),
) -> None:
    """As `load_checkpoint`, of a file that was read; `heads` begin the names of classifiers."""
    own = encoder.state_dict()
    weights = as_torchvision(state) if as_torchvision(own) is not None else None
    if weights is None:
        weights = {n: v for n, v in state.items() if n in own or not n.startswith(heads)}
    load_state(encoder, weights, path, origin)


def export_detectron2(encoder: nn.Module, path: Path) -> None:
    """A .pth file for detectron2's MODEL.WEIGHTS, to be given with ?matching_heuristics=True."""
    state = renamed(resnet_state(encoder, "detectron2"), "detectron2")
    atomic_write(path, lambda file: torch.save({"model": state}, file))
    again = copy.deepcopy(encoder)
    load_checkpoint(again, path)
    require_equal(encoder, again.eval(), str(path))


def require_equal(
    encoder: nn.Module, other: Any, name: str, side: int = 64, channels: int = 3
) -> None:
    """Compare features of random images; `UserError` if `other` differs from `encoder`."""
    images = torch.randn(2, channels, side, side, generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected, got = encoder.eval()(images), other(images)
    difference = float((got - expected).abs().amax() / expected.abs().amax().clamp(min=1e-12))
    if not difference <= TOLERANCE:
        raise UserError(f"{name} differs from the encoder by {difference:.1e}.")


def resnet_state(encoder: nn.Module, layout: str) -> dict[str, Tensor]:
    """Contiguous weights under torchvision's names."""
    state = encoder.state_dict()
    resnet = as_torchvision(state)
    if resnet is None or resnet.keys() != state.keys():
        raise UserError(f"the layout {layout} is for ResNets; this encoder is none.")
    return {
        name: value.cpu().clone(memory_format=torch.contiguous_format)
        for name, value in resnet.items()
    }


def resnet_shape(state: Mapping[str, Tensor]) -> dict[str, Any]:
    """The kind of ResNet that weights under torchvision's names are of, for `ResNetEncoder`."""
    bottleneck = "layer1.0.conv3.weight" in state
    width, taken, side, _ = state["conv1.weight"].shape
    # The 3×3 convolution of a bottleneck shows its groups: (channels, channels / groups, 3, 3).
    channels, per_group = state[f"layer1.0.conv{2 if bottleneck else 1}.weight"].shape[:2]
    blocks = {tuple(n.split(".")[:2]) for n in state if n.startswith("layer")}
    return {
        "block": Bottleneck if bottleneck else BasicBlock,
        "layers": [count for _, count in sorted(Counter(stage for stage, _ in blocks).items())],
        "width": width,
        "groups": channels // per_group,
        "width_per_group": per_group * 64 // width if bottleneck else 64,
        "stem": "imagenet" if side == 7 else "cifar",
        "channels": taken,
    }


def _tensors(stored: Any, path: Path) -> dict[str, Tensor]:
    for wrapper in WRAPPERS:
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    items = stored.items() if isinstance(stored, Mapping) else ()
    tensors = {str(name): value for name, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} holds no weights by name, neither at its top nor in {WRAPPERS}.")
    return tensors
