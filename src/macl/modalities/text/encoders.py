"""Sentence encoders: a Hugging Face transformer, its tokenizer and a pooling, as one module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from macl.modalities.text.data import TextDataset
from macl.modalities.text.dropout import Kind, set_rate
from macl.modalities.text.sections import Pooling, TextEncoderConfig
from macl.modalities.text.vocabulary import learn_vocabulary


def pool(hidden: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors (B, D) from token vectors, (B, T, D) for each layer.

    cls, cls-before-pooler  the last layer's first token. In SimCSE the two differ in training only,
                            where "cls" adds an MLP; here that MLP is the method's projector.
    mean                    Σ_t m_t h_t / Σ_t m_t over the last layer
    first-last-mean         the same over (h¹ + hᴸ) / 2, layer 1 being the first transformer block

    Args:
        hidden: embeddings, then every layer's output; only "first-last-mean" needs more
            than the last.
        mask: (B, T), 1 for tokens and 0 for padding.
    """
    last = hidden[-1]
    if pooling in ("cls", "cls-before-pooler"):
        return last[:, 0]
    tokens = (hidden[1] + last) / 2 if pooling == "first-last-mean" else last
    weights = mask.unsqueeze(-1).to(tokens.dtype)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TextEncoder(nn.Module):
    """Token tensors in, one vector per sentence out: `forward(view) -> (B, out_dim)`."""

    def __init__(
        self, backbone: nn.Module, tokenizer: Any, pooling: Pooling, normalize: bool = False
    ) -> None:
        super().__init__()
        # The pretraining head on [CLS] is no part of any pooling; left in, it would be a parameter
        # without gradient, which data parallelism refuses.
        if getattr(backbone, "pooler", None) is not None:
            backbone.register_module("pooler", None)
        # [CLS] is expected in the first place.
        tokenizer.padding_side = "right"
        self.backbone = backbone
        self.tokenizer = tokenizer
        self.pooling = pooling
        self.normalize = normalize
        self.out_dim: int = backbone.config.hidden_size  # type: ignore[union-attr, assignment]

    def forward(self, view: Mapping[str, Tensor]) -> Tensor:
        """Encode token tensors of shape (B, T), as `tokenize` makes them."""
        layers = self.pooling == "first-last-mean"
        output = self.backbone(**view, output_hidden_states=layers)
        hidden = output.hidden_states if layers else (output.last_hidden_state,)
        vectors = pool(hidden, view["attention_mask"], self.pooling)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Token tensors (B, T) on the encoder's device, padded to the longest of `texts`.

        Texts beyond `max_length` tokens, or beyond what the model can take, lose their end.
        """
        limit = self.most_tokens(max_length)
        tokens = self.tokenizer(
            texts,
            padding=True,
            truncation=limit is not None,
            max_length=limit,
            return_tensors="pt",
        )
        device = next(self.parameters()).device
        return {name: values.to(device) for name, values in tokens.items()}

    def most_tokens(self, wanted: int | None) -> int | None:
        """`wanted` tokens, or fewer where the model takes no more; None: there is no limit."""
        limits = [limit for limit in (wanted, self.max_length) if limit is not None]
        return min(limits, default=None)

    @property
    def max_length(self) -> int | None:
        """The most tokens the model can take, special ones included; None where it has no limit."""
        limits = [self.tokenizer.model_max_length]
        embeddings = getattr(self.backbone, "embeddings", None)
        positions = getattr(embeddings, "position_embeddings", None)
        if isinstance(positions, nn.Embedding):
            # RoBERTa counts positions from after its padding index, so it has fewer of them.
            taken = 0 if positions.padding_idx is None else positions.padding_idx + 1
            limits.append(positions.num_embeddings - taken)
        limit = min(limits)
        # Tokenizers without a limit have a very large number here.
        return int(limit) if limit < 10**9 else None

    @property
    def vocabulary(self) -> list[str]:
        """The tokenizer's word pieces in the order of their ids."""
        pieces = self.tokenizer.get_vocab()
        return sorted(pieces, key=pieces.__getitem__)


def dropout_rates(config: TextEncoderConfig) -> dict[Kind, float]:
    """The dropout rates that a configuration asks for, by kind."""
    rates: dict[Kind, float | None] = {
        "hidden": config.hidden_dropout,
        "attention": config.attention_dropout,
    }
    return {kind: rate for kind, rate in rates.items() if rate is not None}


def tiny_encoder(config: TextEncoderConfig, dataset: TextDataset) -> TextEncoder:
    """A small BERT with fresh weights and a WordPiece vocabulary learned from `dataset`."""
    from transformers import BertConfig, BertModel, BertTokenizer

    vocabulary = learn_vocabulary(dataset.sentences, config.vocabulary)
    model_config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=config.width,
        num_hidden_layers=config.layers,
        num_attention_heads=config.heads,
        intermediate_size=4 * config.width,
        pad_token_id=vocabulary["[PAD]"],
    )
    for kind, rate in dropout_rates(config).items():
        set_rate(model_config, kind, rate)
    tokenizer = BertTokenizer(
        vocab=vocabulary, model_max_length=model_config.max_position_embeddings
    )
    backbone = BertModel(model_config, add_pooling_layer=False)
    return TextEncoder(backbone, tokenizer, config.pooling or "mean", bool(config.normalize))
