"""What libraries call the weights of a ResNet, and how to get from one set of names to another.

A ResNet has six kinds of places: the stem's convolution and norm, and in block b of stage s
convolution i with its norm, and the shortcut with its own. A layout says what each is called.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor

MOMENTUM = re.compile(r"encoder_k|momentum|teacher|_ema|ema_|target")
"""What libraries call the slowly following copy of a network, which is not the one that learns."""

MOST_BLOCKS = 256
"""In one stage; a ResNet-152 has 36."""


class Layout(NamedTuple):
    """Names of places; {s}, {b} and {i} count stages, blocks and convolutions."""

    stem: tuple[str, str]
    """The stem's convolution and its norm."""
    block: str
    """What names in a block begin with."""
    inside: tuple[str, str, str, str]
    """Convolution, its norm, shortcut, its norm."""
    stage: int = 1
    """The number of the first stage."""
    convolution: int = 1
    """The number of the first convolution in a block."""

    def name(self, kind: int, s: int = 0, b: int = 0, i: int = 0) -> str:
        """What this layout calls a place, the stem's first; numbers count from 0."""
        place = (*self.stem, *(self.block + each for each in self.inside))[kind]
        return place.format(s=s + self.stage, b=b, i=i + self.convolution)


TORCHVISION = ("conv{i}", "bn{i}", "downsample.0", "downsample.1")

LAYOUTS = {
    "torchvision": Layout(("conv1", "bn1"), "layer{s}.{b}.", TORCHVISION),
    "detectron2": Layout(
        ("stem.conv1", "stem.conv1.norm"),
        "res{s}.{b}.",
        ("conv{i}", "conv{i}.norm", "shortcut", "shortcut.norm"),
        stage=2,
    ),
    "huggingface": Layout(
        ("embedder.embedder.convolution", "embedder.embedder.normalization"),
        "encoder.stages.{s}.layers.{b}.",
        (
            "layer.{i}.convolution",
            "layer.{i}.normalization",
            "shortcut.convolution",
            "shortcut.normalization",
        ),
        stage=0,
        convolution=0,
    ),
    "sequential": Layout(("0", "1"), "{s}.{b}.", TORCHVISION, stage=4),
}
"""torchvision's names are also timm's; "sequential" is what lightly's examples make of a ResNet:
`nn.Sequential(*list(resnet.children())[:-1])`, where the first stage is child 4."""


@functools.cache
def _names(layout: str) -> list[str]:
    """What a layout calls each place that there may be, in one order for all layouts."""
    counts = itertools.product(range(6), range(4), range(MOST_BLOCKS), range(3))
    return [LAYOUTS[layout].name(*numbers) for numbers in counts]


def renamed(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    """A ResNet's weights under torchvision's names → the same under those of `layout`."""
    theirs = dict(zip(_names("torchvision"), _names(layout), strict=True))
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        if place not in theirs:
            raise ValueError(f"{name} is not a weight of a ResNet")
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
        prefix = _prefix(state, LAYOUTS[layout])
        if prefix is not None:
            inside = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
            return _translated(inside, layout)
    return None


def _prefix(state: Mapping[str, Tensor], layout: Layout) -> str | None:
    """The prefix of the names of a ResNet in `layout`; of several, that of the trained one."""
    stem, first = (f"{layout.name(kind)}.weight" for kind in (0, 2))
    prefixes = [name.removesuffix(first) for name in state if name.endswith(first)]
    whole = [p for p in prefixes if (not p or p.endswith(".")) and p + stem in state]
    return min(whole, key=lambda p: bool(MOMENTUM.search(p)), default=None)


def _translated(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor] | None:
    ours = dict(zip(_names(layout), _names("torchvision"), strict=True))
    before_number = LAYOUTS[layout].block.partition("{b}")[0]
    in_stage = re.compile(re.escape(before_number).replace(r"\{s\}", r"\d+"))
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
