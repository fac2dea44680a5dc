"""How W and τ are spread over the anchors of a batch, on every rank.

A rank's anchors are summarised by a few numbers, which are exchanged once; the figures of the whole
batch follow from the summaries of all ranks exactly, whatever their sizes.
"""

from __future__ import annotations

import math
from itertools import pairwise

import torch
from torch import Tensor

from macl import distributed

BINS = 10
"""Bins of the histogram of τ."""

COLUMN = "temperature_in_"
"""Begins the names of the histogram's columns: temperature_in_0.05_0.067 is the share of anchors
with τ between the two."""

COUNT, LSE, LSE_OF_SQUARES, MEAN, SQUARES, FIRST = range(6)
"""The entries of a summary: n, log ΣW, log ΣW², the mean of τ, Σ(τ − mean)²; then the bins."""

Range = tuple[float, float]
"""The lowest and the highest τ of a histogram."""


def summary(margin: Tensor, temperature: Tensor, bounds: Range | None) -> Tensor:
    """(5 + BINS,) what the spread over anchors follows from; (5,) without `bounds`.

    Args:
        margin: (n,) x, with W = σ(x).
        temperature: τ, a scalar or (n,).
        bounds: the range of the histogram of τ.
    """
    log_w = torch.nn.functional.logsigmoid(margin)
    mean = temperature.mean()
    parts = torch.stack(
        [
            torch.full_like(mean, len(margin)),
            log_w.logsumexp(0).to(mean.dtype),
            (2 * log_w).logsumexp(0).to(mean.dtype),
            mean,
            (temperature - mean).square().sum(),
        ]
    )
    return parts if bounds is None else torch.cat([parts, _counts(temperature, bounds)])


def of_every_rank(own: Tensor) -> Tensor:
    """(ranks, k) the summaries of all ranks, in rank order."""
    return distributed.gather(own[None], [1] * distributed.world_size())


def effective_anchors(summaries: Tensor) -> Tensor:
    """Scalar (ΣW)²/(n·ΣW²) over all anchors, from logarithms, which do not underflow."""
    total = summaries[:, LSE].logsumexp(0)
    squares = summaries[:, LSE_OF_SQUARES].logsumexp(0)
    share = torch.exp(2 * total - squares) / summaries[:, COUNT].sum()
    return torch.where(total.isneginf(), 0.0, share)


def mean_temperature(summaries: Tensor) -> Tensor:
    """Scalar mean of τ over all anchors."""
    counts = summaries[:, COUNT]
    return (counts * summaries[:, MEAN]).sum() / counts.sum()


def std_temperature(summaries: Tensor) -> Tensor:
    """Scalar standard deviation of τ over all anchors (divided by n)."""
    counts, means = summaries[:, COUNT], summaries[:, MEAN]
    between = counts * (means - mean_temperature(summaries)).square()
    return ((summaries[:, SQUARES] + between).sum() / counts.sum()).sqrt()


def histogram(summaries: Tensor) -> Tensor:
    """(BINS,) share of all anchors in each bin of τ."""
    return summaries[:, FIRST:].sum(0) / summaries[:, COUNT].sum()


def edges(bounds: Range) -> list[float]:
    """The BINS + 1 edges of the histogram, evenly spaced on a logarithmic scale."""
    lowest, highest = bounds
    return [lowest * (highest / lowest) ** (k / BINS) for k in range(BINS + 1)]


def columns(bounds: Range) -> list[str]:
    """The names of the histogram's columns."""
    names = [f"{edge:.4g}" for edge in edges(bounds)]
    return [f"{COLUMN}{low}_{high}" for low, high in pairwise(names)]


def is_bin(name: str) -> bool:
    """Whether a column of metrics.csv is a bin of the histogram."""
    return name.startswith(COLUMN)


def parse_column(name: str) -> Range | None:
    """The two edges of a histogram's column; None for any other column."""
    if not is_bin(name):
        return None
    low, _, high = name.removeprefix(COLUMN).partition("_")
    return float(low), float(high)


def _counts(temperature: Tensor, bounds: Range) -> Tensor:
    """(BINS,) number of τ in each bin; those outside count for the nearest."""
    lowest, highest = bounds
    place = (temperature / lowest).log() * (BINS / math.log(highest / lowest))
    place = place.floor().clamp(0, BINS - 1)
    numbers = torch.arange(BINS, device=place.device, dtype=place.dtype)
    return (place[:, None] == numbers).sum(0).to(place.dtype)
