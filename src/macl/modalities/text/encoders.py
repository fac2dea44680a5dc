"""Sentence encoders: a Hugging Face transformer, its tokenizer and a pooling; and its views."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch.nn.functional as F
from torch import Tensor, nn

from macl.core import batching
from macl.core.errors import UserError
from macl.modalities.protocols import Views
from macl.modalities.text.data import TextBatch, TextDataset, batch_groups
from macl.modalities.text.sections import Pooling, TextEncoderConfig, TextViewsConfig

_DROPOUT = {
    "hidden": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
    "attention": ("attention_probs_dropout_prob", "attention_dropout"),
}
"""What Hugging Face configurations call the two rates, from BERT to DistilBERT and ModernBERT."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LARGEST_ALPHABET = 1000


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors (B, D) from the last layer's token vectors (B, T, D).

    cls   the first token. In training SimCSE adds an MLP, which here is the method's projector.
    mean  Σ_t m_t h_t / Σ_t m_t; `mask`, (B, T), is 1 for tokens and 0 for padding
    """
    if pooling == "cls":
        return hidden[:, 0]
    weights = mask.unsqueeze(-1).to(hidden.dtype)
    return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class TextEncoder(nn.Module):
    """Token tensors in, one vector per sentence out: `forward(view) -> (B, out_dim)`."""

    def __init__(
        self, backbone: nn.Module, tokenizer: Any, pooling: Pooling, normalize: bool = False
    ) -> None:
        super().__init__()
        # The pretraining head on [CLS] is not part of any pooling; left in, it would be a parameter
        # without gradient, which data parallelism refuses.
        if getattr(backbone, "pooler", None) is not None:
            backbone.register_module("pooler", None)
        # [CLS] is expected in the first place.
        tokenizer.padding_side = "right"
        self.backbone, self.tokenizer = backbone, tokenizer
        self.pooling, self.normalize = pooling, normalize
        self.out_dim: int = backbone.config.hidden_size  # type: ignore[union-attr, assignment]

    def forward(self, view: Mapping[str, Tensor]) -> Tensor:
        """Encode token tensors of shape (B, T), as `tokenize` makes them."""
        hidden = self.backbone(**view).last_hidden_state
        vectors = pool(hidden, view["attention_mask"], self.pooling)
        return F.normalize(vectors, dim=-1) if self.normalize else vectors

    def tokenize(self, texts: list[str], max_length: int | None = None) -> dict[str, Tensor]:
        """Token tensors (B, T) on the encoder's device, padded to the longest of `texts`.

        Texts beyond `max_length` tokens, or beyond what the model can take, lose their end.
        """
        limit = self.most_tokens(max_length)
        tokens = self.tokenizer(
            texts, padding=True, truncation=limit is not None, max_length=limit, return_tensors="pt"
        )
        tensors: dict[str, Tensor] = batching.move(dict(tokens), next(self.parameters()).device)
        return tensors

    def most_tokens(self, wanted: int | None = None) -> int | None:
        """`wanted` tokens, or fewer where the model takes no more; None: there is no limit."""
        limits = [self.tokenizer.model_max_length, *([wanted] if wanted else [])]
        embeddings = getattr(self.backbone, "embeddings", None)
        positions = getattr(embeddings, "position_embeddings", None)
        if isinstance(positions, nn.Embedding):
            # RoBERTa counts positions from after its padding index, so it has fewer of them.
            taken = 0 if positions.padding_idx is None else positions.padding_idx + 1
            limits.append(positions.num_embeddings - taken)
        limit = min(limits)
        # Tokenizers without a limit have a very large number here.
        return int(limit) if limit < 10**9 else None


class TextViews(Views):
    """A sentence twice, which dropout makes different, or a given pair, as token tensors.

    All views have one padded length, so a method may join them and encode them in one forward.
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


def set_dropout(model_config: Any, config: TextEncoderConfig) -> None:
    """Set the dropout rates that are asked for in a configuration, before its model is built."""
    for kind, names in _DROPOUT.items():
        rate = getattr(config, f"{kind}_dropout")
        known = [name for name in names if hasattr(model_config, name)]
        if rate is not None and not known:
            raise UserError(
                f"This encoder has no {kind} dropout: leave encoder.{kind}_dropout out."
            )
        for name in known if rate is not None else ():
            setattr(model_config, name, rate)


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
    set_dropout(model_config, config)
    tokenizer = BertTokenizer(
        vocab=vocabulary, model_max_length=model_config.max_position_embeddings
    )
    backbone = BertModel(model_config, add_pooling_layer=False)
    return TextEncoder(backbone, tokenizer, config.pooling or "mean", bool(config.normalize))


def learn_vocabulary(sentences: Callable[[], Iterable[str]], size: int) -> dict[str, int]:
    """Up to `size` lower-cased word pieces and their ids.

    `tokenizers` numbers letters inside words by a random hash and breaks ties between merges by
    those numbers. Naming the letters beforehand, in order, makes the vocabulary the same every
    time. `sentences` gives a fresh iterator over the corpus; it is called twice.
    """
    from tokenizers import BertWordPieceTokenizer

    pieces = BertWordPieceTokenizer(lowercase=True)
    letters: Counter[str] = Counter()
    for sentence in sentences():
        letters.update(pieces.normalizer.normalize_str(sentence))
    ranked = sorted(letters, key=lambda letter: (-letters[letter], letter))[:_LARGEST_ALPHABET]
    alphabet = sorted(letter for letter in ranked if not letter.isspace())
    pieces.train_from_iterator(
        sentences(),
        vocab_size=size,
        special_tokens=[*_SPECIAL, *alphabet, *(f"##{letter}" for letter in alphabet)],
        limit_alphabet=_LARGEST_ALPHABET,
        show_progress=False,
    )
    vocabulary: dict[str, int] = pieces.get_vocab()
    return vocabulary
