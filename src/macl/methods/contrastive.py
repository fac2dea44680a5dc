"""Methods with a contrastive loss: what is contrasted is stated once, for loss and diagnosis."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from macl.losses import Contrast, ContrastiveLoss, TrainingContext
from macl.losses.contrastive import average
from macl.methods.base import Method, Step


class ContrastiveMethod(Method):
    """Base of SimCLR, MoCo and NNCLR. A subclass defines `encode` and `contrasted`."""

    loss: ContrastiveLoss

    def __init__(self, encoder: nn.Module, projector: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__(encoder, projector, loss)

    def setup(self, context: TrainingContext) -> None:
        """Pass the size of the training on to the loss."""
        self.loss.setup(context)

    def advance(self, step: int) -> None:
        """Pass the step on to the loss and its temperature."""
        self.loss.advance(step)

    def contrast(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Contrast:
        """The loss of the batch with its diagnostics; in training, `store` follows. See `step`."""
        own: dict[str, Any] = {"indices": indices} if self.loss.takes_indices else {}
        own["bank_is_unit"] = True  # a queue's rows are, and are used without a copy
        parts = [
            self.loss.contrast(c.anchors, c.positives, **c.negatives(), **own)
            for c in self.contrasted(embeddings, groups)
        ]
        if self.training:
            self.store(*embeddings)
        return parts[0] if len(parts) == 1 else average(*parts)

    def store(self, *embeddings: Tensor) -> None:
        """Keep embeddings for later batches; called once per training batch, after the loss."""

    def step(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """The loss, with the metrics of `contrast_metrics`."""
        contrast = self.contrast(*embeddings, groups=groups, indices=indices)
        return Step(contrast.loss, contrast_metrics(contrast))


def contrast_metrics(contrast: Contrast) -> dict[str, Tensor | float]:
    """What a contrastive step logs: mean −log P, A, mean τ, W̄, ESS, and whether τ was at its floor.

    ESS = (ΣW)²/(N·ΣW²), the share of anchors that InfoNCE's gradient comes from.
    """
    return {
        "info_nce": contrast.info_nce,
        "alignment": contrast.alignment,
        "temperature": contrast.temperature.mean(),
        "gradient_scale": contrast.gradient_scale.mean(),
        "effective_anchors": contrast.effective_anchors,
        "floored": contrast.floored,
    }
