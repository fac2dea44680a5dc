"""The strength of the only augmentation sentences have: dropout inside the transformer."""

from __future__ import annotations

from typing import Any, Literal

from torch import nn

from macl.core.errors import UserError

Kind = Literal["hidden", "attention"]

_SETTINGS: dict[Kind, tuple[str, ...]] = {
    "hidden": ("hidden_dropout_prob", "dropout", "embedding_dropout", "mlp_dropout"),
    "attention": ("attention_probs_dropout_prob", "attention_dropout"),
}
"""What Hugging Face configurations call the two rates, from BERT to DistilBERT and ModernBERT."""


def set_rate(model_config: Any, kind: Kind, rate: float) -> bool:
    """Set a rate in a configuration from which a model is yet to be built; False if it has none."""
    known = [name for name in _SETTINGS[kind] if hasattr(model_config, name)]
    for name in known:
        setattr(model_config, name, rate)
    return bool(known)


def set_modules(model: nn.Module, kind: Kind, rate: float) -> None:
    """Set the rate of a built model's dropout modules, for configurations that do not name it.

    A module belongs to attention when its path says so ("attention", "attn").
    """
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
