"""Projection and prediction heads: small multilayer perceptrons."""

from __future__ import annotations

import itertools

from torch import nn

from macl.recipes.methods import HeadConfig


def build_head(config: HeadConfig, in_dim: int) -> nn.Sequential:
    """Linear (+ BatchNorm) (+ activation) layers, (B, in_dim) → (B, out); "same" is `in_dim`.

    A bias before batch normalization has no effect and is left out.
    """
    widths = [in_dim if width == "same" else width for width in config.widths]
    layers: list[nn.Module] = []
    for number, (before, after) in enumerate(itertools.pairwise([in_dim, *widths]), start=1):
        is_hidden = number < len(widths)
        normalized = config.norm == "all" or (config.norm == "hidden" and is_hidden)
        layers.append(nn.Linear(before, after, bias=config.bias and not normalized))
        if normalized:
            layers.append(nn.BatchNorm1d(after))
        if is_hidden or config.final_activation:
            layers.append(nn.Tanh() if config.activation == "tanh" else nn.ReLU())
    return nn.Sequential(*layers)


def head_dim(config: HeadConfig, in_dim: int) -> int:
    """Width of what the head puts out."""
    last = config.widths[-1] if config.widths else "same"
    return in_dim if last == "same" else last
