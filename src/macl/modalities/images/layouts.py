"""What libraries call the weights of a ResNet, and how to get from one set of names to another."""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping

import torch
from torch import Tensor

MOMENTUM = re.compile(r"encoder_k|momentum|teacher|_ema|ema_|target")
"""What libraries call the slowly following copy of a network, which is not the one that learns."""

MOST_BLOCKS = 256
"""In one stage; a ResNet-152 has 36."""


def _layout(stem: tuple[str, str], block: str, *inside: str) -> tuple[str, ...]:
    return (*stem, *(block + place for place in inside))


LAYOUTS = {
    "torchvision": _layout(
        ("conv1", "bn1"), "layer{s1}.{b}.", "conv{i1}", "bn{i1}", "downsample.0", "downsample.1"
    ),
    "detectron2": _layout(
        ("stem.conv1", "stem.conv1.norm"),
        "res{s2}.{b}.",
        *("conv{i1}", "conv{i1}.norm", "shortcut", "shortcut.norm"),
    ),
    "huggingface": _layout(
        ("embedder.embedder.convolution", "embedder.embedder.normalization"),
        "encoder.stages.{s0}.layers.{b}.",
        *("layer.{i0}.convolution", "layer.{i0}.normalization"),
        *("shortcut.convolution", "shortcut.normalization"),
    ),
    "sequential": _layout(
        ("0", "1"), "{s4}.{b}.", "conv{i1}", "bn{i1}", "downsample.0", "downsample.1"
    ),
}
"""What each library calls six kinds of places: the stem's convolution and norm, and in block {b} of
stage {s} convolution {i} and its norm, the shortcut and its norm; {s2} counts stages from 2.

torchvision's names are also timm's; "sequential" is what lightly's examples make of a ResNet:
`nn.Sequential(*list(resnet.children())[:-1])`, where the first stage is child 4."""


def _name(place: str, s: int = 0, b: int = 0, i: int = 0) -> str:
    return place.format(s0=s, s1=s + 1, s2=s + 2, s4=s + 4, b=b, i0=i, i1=i + 1)


@functools.cache
def _translation(source: str, target: str) -> dict[str, str]:
    """Each place that there may be: what the layout `source` calls it → what `target` does."""
    places = zip(LAYOUTS[source], LAYOUTS[target], strict=True)
    counts = list(itertools.product(range(4), range(MOST_BLOCKS), range(3)))
    return {_name(one, *each): _name(two, *each) for one, two in places for each in counts}


def renamed(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    """A ResNet's weights under torchvision's names → the same under those of `layout`."""
    theirs = _translation("torchvision", layout)
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        result[f"{theirs[place]}.{leaf}"] = value
    return result


def as_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The ResNet inside `state` under torchvision's names, or None if there is none in it.

    Everything else is left out: wrappers (`module.`, `backbone.`, `encoder_q.`),
    momentum copies, projectors, classifiers, queues.
    """
    # detectron2's C4 models keep the last stage with the boxes.
    state = {re.sub(r"^roi_heads\.res5\.", "backbone.res5.", name): v for name, v in state.items()}
    for layout in LAYOUTS:
        prefix = _prefix(state, layout)
        if prefix is not None:
            inside = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
            return _translated(inside, layout)
    return None


def _prefix(state: Mapping[str, Tensor], layout: str) -> str | None:
    """The prefix of the names of a ResNet in `layout`; of several, that of the trained one."""
    stem, first = (f"{_name(LAYOUTS[layout][kind])}.weight" for kind in (0, 2))
    prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
    whole = [p for p in prefixes if (not p or p.endswith(".")) and p + stem in state]
    return min(whole, key=lambda p: bool(MOMENTUM.search(p)), default=None)


def _translated(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor] | None:
    ours = _translation(layout, "torchvision")
    before_block = LAYOUTS[layout][2].partition("{b}")[0]
    in_stage = re.compile(re.sub(r"\\{s\d\\}", r"\\d+", re.escape(before_block)))
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        if place in ours:
            result[f"{ours[place]}.{leaf}"] = value
        elif in_stage.match(name):
            return None  # blocks with more inside than a ResNet's: some relative of it
    for name in [name for name in result if name.endswith(".running_mean")]:
        # Frozen norms, as in detectron2's models, do not count batches.
        counter = name.replace("running_mean", "num_batches_tracked")
        result.setdefault(counter, torch.zeros((), dtype=torch.int64))
    return result
