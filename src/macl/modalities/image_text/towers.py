"""Two towers as one encoder: images and texts in, vectors of one space out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, Self

import torch
from torch import Tensor, nn

from macl.core import batching
from macl.core.progress import track
from macl.methods.base import out_dim
from macl.methods.heads import build_head
from macl.modalities.protocols import Graph
from macl.recipes.methods import HeadConfig

FEATURES = "features"
"""Key of a text view that holds the tower's output in place of tokens."""

BATCH = 256


class TwoTowers(nn.Module):
    """An image tower and a text tower, each with a projection: `forward(view) -> (B, out_dim)`.

    A view that is a mapping of token tensors goes through the text tower, a tensor through the
    image tower. A frozen tower keeps its weights, its running statistics and has no dropout. A
    mapping with the frozen text tower's own output, `features`, is only projected.
    """

    image: Any
    text: Any
    captions: Sequence[str] | None = None
    """The distinct captions of the training data, where views may give their features."""
    image_section: Any = None
    """The recipe section of the image tower, where it has one."""
    clip_config: Any = None
    """The configuration of transformers that both towers are of, where they are a CLIP's."""

    def __init__(
        self,
        image: nn.Module,
        text: nn.Module,
        dim: int = 128,
        hidden: Sequence[int] = (),
        frozen: Sequence[str] = (),
        projections: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text = image, text
        if projections is None:
            head = HeadConfig(widths=(*hidden, dim), bias=False)
            projections = build_head(head, out_dim(image)), build_head(head, out_dim(text))
        self.image_projection, self.text_projection = projections
        self.out_dim = dim
        self.frozen = tuple(frozen)
        for name in self.frozen:
            self.get_submodule(name).requires_grad_(False)

    @property
    def tokenize(self) -> Any:
        """The text tower's function from texts to token tensors."""
        return self.text.tokenize

    def forward(self, view: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Images (B, 3, H, W) or tokens (B, T) to (B, out_dim), not of unit length."""
        if isinstance(view, Mapping):
            features = view[FEATURES] if FEATURES in view else self.text(view)
            projected: Tensor = self.text_projection(features)
        else:
            projected = self.image_projection(self.image(view))
        return projected

    def train(self, mode: bool = True) -> Self:
        """Training mode for all but the frozen towers."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self


class CaptionFeatures:
    """The vectors that a frozen text tower gives of known captions, computed at the first use.

    Every process and every resumed run encodes the same captions in the same order and batches, so
    that a vector never depends on the training batch that asks for it.
    """

    def __init__(self, captions: Sequence[str], tower: Any, max_length: int | None) -> None:
        self.tower, self.max_length = tower, max_length
        # Neighbors of equal length waste no padding.
        self.captions = sorted(captions, key=len, reverse=True)
        self.place = {caption: row for row, caption in enumerate(self.captions)}

    def __call__(self, captions: Sequence[str]) -> Tensor:
        """(B, width) vectors of known captions, on the tower's device."""
        rows = torch.tensor([self.place[caption] for caption in captions])
        return self.table[batching.move(rows, self.table.device)]

    @cached_property
    @torch.no_grad()
    def table(self) -> Tensor:
        """The vectors of all captions, the longest first."""
        starts = range(0, len(self.captions), BATCH)
        batches = (self.captions[start : start + BATCH] for start in starts)
        return torch.cat(
            [
                self.tower(self.tower.tokenize(texts, self.max_length))
                for texts in track(batches, "captions", len(starts))
            ]
        )


TRACED = ("a red heart", "two dogs run along the beach")
CHECKED = ("rain", "a man is playing a guitar in the rain", "three")
"""Texts that the text tower is traced and checked with."""


def tower_graphs(towers: TwoTowers, side: int) -> list[Graph]:
    """image.onnx takes images (B, 3, side, side), text.onnx what the tokenizer makes of texts."""
    inputs, others = (dict(towers.tokenize(list(texts))) for texts in (TRACED, CHECKED))
    # A tower that pads every text to its full length has one length only.
    lengths = {value.shape[1] for value in (*inputs.values(), *others.values())}
    free = (0,) if len(lengths) == 1 else (0, 1)
    return [
        Graph("image.onnx", towers, {"pixels": torch.zeros(2, 3, side, side)}),
        Graph("text.onnx", towers, inputs, as_mapping=True, others=others, free=free),
    ]
