"""Projection and prediction heads: small multilayer perceptrons."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Literal

from torch import nn

from macl.recipes.methods import HeadConfig


def build_head(config: HeadConfig, in_dim: int) -> nn.Sequential:
    """The head as a module `(B, in_dim) → (B, out)`; "same" stands for `in_dim`."""
    widths = [in_dim if width == "same" else width for width in config.widths]
    return mlp(
        [in_dim, *widths],
        norm=config.norm,
        activation=nn.Tanh if config.activation == "tanh" else nn.ReLU,
        final_activation=config.final_activation,
        bias=config.bias,
    )


def head_dim(config: HeadConfig, in_dim: int) -> int:
    """Width of what the head puts out."""
    last = config.widths[-1] if config.widths else "same"
    return in_dim if last == "same" else last


def mlp(
    widths: Sequence[int],
    *,
    norm: Literal["none", "hidden", "all"] = "hidden",
    activation: type[nn.Module] = nn.ReLU,
    final_activation: bool = False,
    bias: bool = True,
) -> nn.Sequential:
    """Linear (+ BatchNorm) (+ activation) layers of the given widths.

    A bias before batch normalization has no effect and is left out.
    """
    layers: list[nn.Module] = []
    last = len(widths) - 2
    for i, (before, after) in enumerate(itertools.pairwise(widths)):
        normalized = norm == "all" or (norm == "hidden" and i < last)
        layers.append(nn.Linear(before, after, bias=bias and not normalized))
        if normalized:
            layers.append(nn.BatchNorm1d(after))
        if i < last or final_activation:
            layers.append(activation())
    return nn.Sequential(*layers)
