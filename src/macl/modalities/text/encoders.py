"""Sentence encoders: a Hugging Face transformer, its tokenizer and a pooling, as one module."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

import torch.nn.functional as F
from torch import Tensor, nn

from macl.core import batching
from macl.core.errors import UserError
from macl.modalities.text.data import TextDataset
from macl.modalities.text.sections import Pooling, TextEncoderConfig

Kind = Literal["hidden", "attention"]

_SETTINGS: dict[Kind, tuple[str, ...]] = {
    "hidden": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
    "attention": ("attention_probs_dropout_prob", "attention_dropout"),
}
"""What Hugging Face configurations call the two rates, from BERT to DistilBERT and ModernBERT."""

_SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
_LARGEST_ALPHABET = 1000


def pool(hidden: Sequence[Tensor], mask: Tensor, pooling: Pooling) -> Tensor:
    """Sentence vectors (B, D) from token vectors, (B, T, D) for each layer.

    cls, cls-before-pooler  the last layer's first token. In SimCSE the two differ in training only,
                            where "cls" adds an MLP; here that MLP is the method's projector.
    mean                    Σ_t m_t h_t / Σ_t m_t over the last layer
    first-last-mean         the same over (h¹ + hᴸ) / 2, layer 1 being the first transformer block

    `hidden` are the embeddings, then every layer's output, of which only "first-last-mean" needs
    more than the last; `mask`, (B, T), is 1 for tokens and 0 for padding.
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


def dropout_rates(config: TextEncoderConfig) -> dict[Kind, float]:
    """The dropout rates that a configuration asks for, by kind."""
    rates: dict[Kind, float | None]
    rates = {"hidden": config.hidden_dropout, "attention": config.attention_dropout}
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


def set_rate(model_config: Any, kind: Kind, rate: float) -> bool:
    """Set a rate in a configuration from which a model is yet to be built; False if it has none."""
    known = [name for name in _SETTINGS[kind] if hasattr(model_config, name)]
    for name in known:
        setattr(model_config, name, rate)
    return bool(known)


def set_modules(model: nn.Module, kind: Kind, rate: float) -> None:
    """Set the rate of a built model's dropout modules, for configurations that do not name it."""
    modules = [
        module
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout) and (kind == "attention") == ("att" in name.lower())
    ]
    if not modules:
        raise UserError(
            f"This encoder has no {kind} dropout to set: leave encoder.{kind}_dropout out."
        )
    for module in modules:
        module.p = rate


def learn_vocabulary(sentences: Callable[[], Iterable[str]], size: int) -> dict[str, int]:
    """Up to `size` lower-cased word pieces and their ids.

    The trainer of `tokenizers` numbers letters inside words in the order of a random hash and
    breaks ties between merges by those numbers, so a resumed run could not read its own checkpoint.
    Naming the letters beforehand, in order, makes the vocabulary the same every time. `sentences`
    gives a fresh iterator over the corpus; it is called twice.
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
