"""Image encoders from weights files of several libraries, and into their files."""

from __future__ import annotations

import copy
import functools
import itertools
import re
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
from macl.core.weights import load_state, read_weights

WEIGHTS = "model.safetensors"
"""What Hugging Face and timm call the file with the weights."""
TORCH_SUFFIXES = (".pth", ".pt", ".tar", ".ckpt", ".bin")
WRAPPERS = ("state_dict", "model")
"""Where training scripts keep the weights inside a checkpoint."""

REMEDY = "If you trust it, load it yourself and save the tensors with safetensors.torch.save_file."

TOLERANCE = 1e-5
"""Largest difference between an encoder and its export that passes, relative to the features."""

MOMENTUM = re.compile(r"encoder_k|momentum|teacher|_ema|ema_|target")
"""What libraries call the slowly following copy of a network, which is not the one that learns."""

LAYOUTS = {
    "torchvision": (
        ("conv1", "bn1"),
        ("layer{s1}.{b}.", "conv{i1}", "bn{i1}", "downsample.0", "downsample.1"),
    ),
    "detectron2": (
        ("stem.conv1", "stem.conv1.norm"),
        ("res{s2}.{b}.", "conv{i1}", "conv{i1}.norm", "shortcut", "shortcut.norm"),
    ),
    "huggingface": (
        ("embedder.embedder.convolution", "embedder.embedder.normalization"),
        ("encoder.stages.{s0}.layers.{b}.", "layer.{i0}.convolution", "layer.{i0}.normalization",
         "shortcut.convolution", "shortcut.normalization"),
    ),
    "sequential": (
        ("0", "1"),
        ("{s4}.{b}.", "conv{i1}", "bn{i1}", "downsample.0", "downsample.1"),
    ),
}  # fmt: skip
"""What each library calls the stem's convolution and norm; block {b} of stage {s}, and inside it
convolution {i} and its norm, the shortcut and its norm. {s2} counts stages from 2.

torchvision's names are also timm's; "sequential" is what lightly's examples make of a ResNet:
`nn.Sequential(*list(resnet.children())[:-1])`, where the first stage is child 4."""


def is_checkpoint(path: Path) -> bool:
    """Whether `path` is called like a file of weights."""
    return path.suffix in (".safetensors", ".pkl", *TORCH_SUFFIXES)


def read_checkpoint(path: Path) -> dict[str, Tensor]:
    """The tensors of a weights file or Hugging Face folder; nothing in a file is ever run."""
    path = path.expanduser()
    if path.is_dir():
        path = path / WEIGHTS
    if path.suffix == ".pkl":
        raise UserError(f"{path} is a pickle, which can run code when read. {REMEDY}")
    if path.suffix not in TORCH_SUFFIXES:
        return read_weights(path)
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
            f"when read. {REMEDY}"
        ) from error
    for wrapper in WRAPPERS:
        if isinstance(stored, Mapping) and isinstance(stored.get(wrapper), Mapping):
            stored = stored[wrapper]
    items = stored.items() if isinstance(stored, Mapping) else ()
    tensors = {str(name): value for name, value in items if isinstance(value, Tensor)}
    if not tensors:
        raise UserError(f"{path} holds no weights by name, neither at its top nor in {WRAPPERS}.")
    return tensors


def load_checkpoint(encoder: nn.Module, path: Path) -> None:
    """Load the encoder's weights from `path`, whatever library named them."""
    load_foreign(encoder, read_checkpoint(path), path)


def load_foreign(
    encoder: nn.Module, state: Mapping[str, Tensor], path: Path, heads: tuple[str, ...] = ("fc.",)
) -> None:
    """Load weights that were read from `path`; `heads` begin the names of classifiers, left out."""
    own = encoder.state_dict()
    weights = as_torchvision(state) if as_torchvision(own) is not None else None
    if weights is None:
        weights = {n: v for n, v in state.items() if n in own or not n.startswith(heads)}
    load_state(encoder, weights, path)


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
    return {name: value.cpu().contiguous() for name, value in resnet.items()}


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


def renamed(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    """A ResNet's weights under torchvision's names → the same under those of `layout`."""
    theirs = dict(zip(_places("torchvision"), _places(layout), strict=True))
    parts = ((name.rpartition("."), value) for name, value in state.items())
    return {f"{theirs[place]}.{leaf}": value for (place, _, leaf), value in parts}


def as_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The ResNet inside `state` under torchvision's names, without all that is around it, or None.

    Around it are wrappers (`module.`, `encoder_q.`), momentum copies, projectors, queues.
    """
    # detectron2's C4 models keep the last stage with the boxes.
    state = {re.sub(r"^roi_heads\.res5\.", "backbone.res5.", name): v for name, v in state.items()}
    for layout in LAYOUTS:
        stem, _, first = (f"{place}.weight" for place in _places(layout)[:3])
        prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
        whole = [p for p in prefixes if (not p or p.endswith(".")) and p + stem in state]
        if whole:
            prefix = min(whole, key=lambda p: bool(MOMENTUM.search(p)))
            inside = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
            return _translated(inside, layout)
    return None


def _translated(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor] | None:
    ours = dict(zip(_places(layout), _places("torchvision"), strict=True))
    before_block = LAYOUTS[layout][1][0].partition("{b}")[0]
    in_stage = re.compile(re.sub(r"\\{s\d\\}", r"\\d+", re.escape(before_block)))
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        if place in ours:
            result[f"{ours[place]}.{leaf}"] = value
        elif in_stage.match(name):
            return None  # blocks with more inside than a ResNet's: some relative of it
    norms = [name.rpartition(".")[0] for name in result if name.endswith(".running_mean")]
    for norm in norms:  # frozen ones, as in detectron2's models, do not count batches
        result.setdefault(f"{norm}.num_batches_tracked", torch.tensor(0))
    return result


@functools.cache
def _places(layout: str) -> tuple[str, ...]:
    """What a library calls each place that there may be, in the same order for all libraries."""
    stem, (block, *inside) = LAYOUTS[layout]
    most = 256  # blocks in a stage; a ResNet-152 has 36
    names = (
        (block + place).format(s0=s, s1=s + 1, s2=s + 2, s4=s + 4, b=b, i0=i, i1=i + 1)
        for s, b, i, place in itertools.product(range(4), range(most), range(3), inside)
    )
    return (*stem, *names)
