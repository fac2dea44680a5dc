"""From sentences to vectors, each distinct sentence once, whatever order they come in."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.embedding import embed
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.sections import TextViewsConfig
from macl.modalities.text.views import TextViews

Encode = Callable[[list[str]], Tensor]
"""N sentences to an (N, D) tensor; any encoder that can be called so can be evaluated."""


def embed_once(encode: Encode, *columns: list[str]) -> list[Tensor]:
    """An (N_i, D) float32 matrix on the CPU for each list of N_i sentences.

    `encode` is called once, with the distinct sentences in a fixed order (short ones first, which
    wastes little padding), so neither the order of the data nor repetitions change a vector.
    """
    distinct = sorted({text for column in columns for text in column}, key=lambda t: (len(t), t))
    place = {text: i for i, text in enumerate(distinct)}
    vectors = encode(distinct).detach().float().cpu()
    if vectors.ndim != 2 or len(vectors) != len(distinct):
        raise ValueError(
            f"encode must return one row per sentence: ({len(distinct)}, D), "
            f"not {tuple(vectors.shape)}."
        )
    if not vectors.isfinite().all():
        raise UserError("The encoder gives NaN or infinite values; its training has diverged.")
    return [vectors[torch.tensor([place[text] for text in column])] for column in columns]


def sentence_encoder(encoder: TextEncoder, batch_size: int = 64) -> Encode:
    """`encoder` as a function of sentences: in eval mode, without gradient, uncut, in batches."""
    views = TextViews(TextViewsConfig(), encoder)
    return lambda texts: embed(encoder, views, TextDataset([texts]), batch_size=batch_size)
