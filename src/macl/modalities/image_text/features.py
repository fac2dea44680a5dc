"""Captions through a frozen text tower, once instead of at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from macl.core.progress import track

FEATURES = "features"
"""Key of a text view that holds the tower's output in place of tokens."""

BATCH = 256


class CaptionFeatures:
    """The vectors of known captions, computed at the first use.

    Every process and every resumed run encodes the same captions in the same order and batches, so
    that a vector never depends on the training batch that asks for it.

    Args:
        captions: the distinct captions of the training data.
        tower: a frozen text tower with `tokenize`.
        max_length: tokens of a caption in training.
    """

    def __init__(self, captions: Sequence[str], tower: Any, max_length: int | None) -> None:
        self.captions, self.tower, self.max_length = captions, tower, max_length
        self.place = {caption: row for row, caption in enumerate(captions)}
        self.table: Tensor | None = None

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """(B, width) vectors of known captions, on the tower's device."""
        if self.table is None:
            self.table = self._encoded()
        rows = torch.tensor([self.place[caption] for caption in captions])
        return self.table[rows.to(self.table.device)]

    @torch.no_grad()
    def _encoded(self) -> Tensor:
        # Neighbours of equal length waste no padding.
        order = sorted(range(len(self.captions)), key=lambda i: -len(self.captions[i]))
        batches = [order[start : start + BATCH] for start in range(0, len(order), BATCH)]
        parts = [
            self.tower(self.tower.tokenize([self.captions[i] for i in rows], self.max_length))
            for rows in track(batches, "captions", len(batches))
        ]
        return torch.cat(parts)[torch.tensor(order).argsort().to(parts[0].device)]
