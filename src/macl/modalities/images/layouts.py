"""What libraries call the weights of a ResNet, and how to get from one set of names to another.

A ResNet has six kinds of places: the stem's convolution and norm, and in block b of stage s
convolution i with its norm, and the shortcut with its own. A layout says what each is called.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

MOMENTUM = re.compile(r"encoder_k|momentum|teacher|_ema|ema_|target")
"""What libraries call the slowly following copy of a network, which is not the one that learns."""


@dataclass(frozen=True)
class Layout:
    """Names of places; {s}, {b} and {i} count stages, blocks and convolutions."""

    places: tuple[str, str, str, str, str, str]
    """Stem, its norm, convolution, its norm, shortcut, its norm."""
    stage: int = 1
    """The number of the first stage."""
    convolution: int = 1
    """The number of the first convolution in a block."""

    @functools.cached_property
    def patterns(self) -> tuple[re.Pattern[str], ...]:
        """Regular expressions for the places."""
        return tuple(
            re.compile(re.sub(r"\\{(\w)\\}", r"(?P<\1>\\d+)", re.escape(place)))
            for place in self.places
        )

    @functools.cached_property
    def anchor(self) -> str:
        """The first weight of the first block."""
        return self.name(2, 0, 0, 0) + ".weight"

    def name(self, kind: int, s: int, b: int, i: int) -> str:
        """What this layout calls a place; numbers count from 0."""
        return self.places[kind].format(s=s + self.stage, b=b, i=i + self.convolution)

    def find(self, name: str) -> tuple[int, int, int, int] | None:
        """The kind and numbers of a place, from its name here."""
        for kind, pattern in enumerate(self.patterns):
            match = pattern.fullmatch(name)
            if match is not None:
                number = {key: int(value) for key, value in match.groupdict().items()}
                s, i = number.get("s", self.stage), number.get("i", self.convolution)
                return kind, s - self.stage, number.get("b", 0), i - self.convolution
        return None


LAYOUTS = {
    "torchvision": Layout(
        (
            "conv1", "bn1", "layer{s}.{b}.conv{i}", "layer{s}.{b}.bn{i}",
            "layer{s}.{b}.downsample.0", "layer{s}.{b}.downsample.1",
        ),
    ),
    "detectron2": Layout(
        (
            "stem.conv1", "stem.conv1.norm", "res{s}.{b}.conv{i}", "res{s}.{b}.conv{i}.norm",
            "res{s}.{b}.shortcut", "res{s}.{b}.shortcut.norm",
        ),
        stage=2,
    ),
    "huggingface": Layout(
        (
            "embedder.embedder.convolution", "embedder.embedder.normalization",
            "encoder.stages.{s}.layers.{b}.layer.{i}.convolution",
            "encoder.stages.{s}.layers.{b}.layer.{i}.normalization",
            "encoder.stages.{s}.layers.{b}.shortcut.convolution",
            "encoder.stages.{s}.layers.{b}.shortcut.normalization",
        ),
        stage=0,
        convolution=0,
    ),
    "sequential": Layout(
        (
            "0", "1", "{s}.{b}.conv{i}", "{s}.{b}.bn{i}",
            "{s}.{b}.downsample.0", "{s}.{b}.downsample.1",
        ),
        stage=4,
    ),
}  # fmt: skip
"""torchvision's names are also timm's; "sequential" is what lightly's examples make of a ResNet:
`nn.Sequential(*list(resnet.children())[:-1])`, where the first stage is child 4."""

TORCHVISION = LAYOUTS["torchvision"]


def renamed(state: Mapping[str, Tensor], layout: str) -> dict[str, Tensor]:
    """A ResNet's weights under torchvision's names → the same under those of `layout`."""
    target = LAYOUTS[layout]
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        found = TORCHVISION.find(place)
        if found is None:
            raise ValueError(f"{name} is no weight of a ResNet")
        result[f"{target.name(*found)}.{leaf}"] = value
    return result


def as_torchvision(state: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """The ResNet inside `state` under torchvision's names, or None if there is none in it.

    Everything else is left out: wrappers (`module.`, `backbone.`, `encoder_q.`),
    momentum copies, projectors, classifiers, queues.
    """
    # detectron2's C4 models keep the last stage with the boxes.
    state = {re.sub(r"^roi_heads\.res5\.", "backbone.res5.", name): v for name, v in state.items()}
    for layout in LAYOUTS.values():
        prefix = _prefix(state, layout)
        if prefix is not None:
            inside = {n[len(prefix) :]: v for n, v in state.items() if n.startswith(prefix)}
            return _translated(inside, layout)
    return None


def _prefix(state: Mapping[str, Tensor], layout: Layout) -> str | None:
    """The prefix of the names of a ResNet in `layout`; of several, that of the trained one."""
    stem = layout.name(0, 0, 0, 0) + ".weight"
    prefixes = [name.removesuffix(layout.anchor) for name in state if name.endswith(layout.anchor)]
    whole = [p for p in prefixes if (not p or p.endswith(".")) and p + stem in state]
    return min(whole, key=lambda p: bool(MOMENTUM.search(p)), default=None)


def _translated(state: Mapping[str, Tensor], layout: Layout) -> dict[str, Tensor] | None:
    stages = re.compile(layout.patterns[2].pattern.partition(r"(?P<b>")[0])
    result = {}
    for name, value in state.items():
        place, _, leaf = name.rpartition(".")
        found = layout.find(place)
        if found is not None:
            result[f"{TORCHVISION.name(*found)}.{leaf}"] = value
        elif stages.match(name):
            return None  # blocks with more inside than a ResNet's: some relative of it
    for name in [name for name in result if name.endswith(".running_mean")]:
        # Frozen norms, as in detectron2's models, do not count batches.
        counter = name.replace("running_mean", "num_batches_tracked")
        result.setdefault(counter, torch.zeros((), dtype=torch.int64))
    return result
