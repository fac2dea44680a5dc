"""Both towers as graphs for ONNX, each with its projection."""

from __future__ import annotations

import torch

from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.onnx_graphs import Graph

TRACED = ("a red heart", "two dogs run along the beach")
CHECKED = ("rain", "a man is playing a guitar in the rain", "three")
"""Texts that the text tower is traced and checked with."""


def tower_graphs(towers: TwoTowers, side: int) -> list[Graph]:
    """image.onnx takes pictures (B, 3, side, side), text.onnx what the tokenizer makes of texts."""
    inputs, others = (dict(towers.tokenize(list(texts))) for texts in (TRACED, CHECKED))
    # A tower that pads every text to its full length has one length only.
    lengths = {value.shape[1] for value in (*inputs.values(), *others.values())}
    free = (0,) if len(lengths) == 1 else (0, 1)
    return [
        Graph("image.onnx", towers, {"pixels": torch.zeros(2, 3, side, side)}),
        Graph("text.onnx", towers, inputs, as_mapping=True, others=others, free=free),
    ]
