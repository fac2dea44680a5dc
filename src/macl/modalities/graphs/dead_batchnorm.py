"""Batch-norm units that training never used, kept out of an evaluation.

A unit behind a ReLU that is 0 for every node of every training batch has running mean 0 and a
running variance that decays towards 0. In evaluation its output is (h − mean)/√(var + ε)·γ + β: a
graph that does activate it, if only a little, is scaled by up to 1/√ε ≈ 316, and after sum-pooling
one such column outweighs all others. GraphCL on IMDB-BINARY has such units.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

SMALLEST = 10.0
"""A running variance below this many ε is none: ε, not the data, then decides the scale."""


def inactive_units(norm: nn.Module) -> Tensor | None:
    """(C,) bool: units of a batch norm that training never used; None where it has no statistics.

    running mean = 0 exactly, as no value but 0 ever entered it, or running variance < 10·ε.
    """
    # Untrained, mean 0 and variance 1 are the initial values.
    if not isinstance(norm, _BatchNorm) or not norm.num_batches_tracked:
        return None
    assert norm.running_mean is not None
    assert norm.running_var is not None
    return (norm.running_mean == 0) | (norm.running_var < SMALLEST * norm.eps)


@contextmanager
def without_inactive_units(encoder: nn.Module) -> Iterator[int]:
    """Within it, units that training never used give their bias β, whatever enters them.

    Yields how many there are. β is what such a unit gave in training for each node.
    """
    masks = {norm: inactive_units(norm) for norm in encoder.modules()}
    inactive = {norm: mask for norm, mask in masks.items() if mask is not None and mask.any()}
    variances: dict[nn.Module, Any] = {norm: norm.running_var for norm in inactive}
    for norm, mask in inactive.items():
        norm.running_var = variances[norm].masked_fill(mask, torch.inf)  # (h − mean)/∞·γ + β = β
    try:
        yield sum(int(mask.sum()) for mask in inactive.values())
    finally:
        for norm, variance in variances.items():
            norm.running_var = variance
