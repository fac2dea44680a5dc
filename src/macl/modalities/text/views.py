"""Two views of a sentence: the same tokens twice, with different dropout; or a given pair."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from macl.modalities.protocols import Views
from macl.modalities.text.data import TextBatch, batch_groups
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.sections import TextViewsConfig


class TextViews(Views):
    """Token tensors for an encoder, from batches of sentences.

    All views have one padded length, so a method may join them and encode them in one forward;
    dropout draws a mask per row, so that a sentence and its copy then differ.
    """

    def __init__(self, config: TextViewsConfig, encoder: TextEncoder) -> None:
        self.config = config
        self.groups = batch_groups if config.mask_duplicates else None
        self.encoder = encoder

    def __call__(self, inputs: TextBatch) -> tuple[Any, ...]:
        """Sentences twice, or sentences, positives, hard negatives: mappings of (B, T) tensors."""
        texts = inputs.first + (inputs.second or []) + (inputs.negative or [])
        tokens = self.encoder.tokenize(texts, self.config.max_length)
        n = len(inputs.first)
        views = tuple(
            {name: values[start : start + n] for name, values in tokens.items()}
            for start in range(0, len(texts), n)
        )
        return views if len(views) > 1 else views * 2

    def plain(self, inputs: TextBatch) -> dict[str, Tensor]:
        """The sentences for evaluation: (B, T) tensors, uncut where the model allows."""
        return self.encoder.tokenize(inputs.first, self.config.plain_max_length)
