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
    labels: Tensor | None
    """(samples,) classes of the training data, where the loss takes labels; not in checkpoints."""

    def __init__(self, encoder: nn.Module, projector: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__(encoder, projector, loss)
        self.register_buffer("labels", None, persistent=False)

    def setup(self, context: TrainingContext) -> None:
        """Pass the size of the training on to the loss, and keep the labels if it takes them."""
        self.loss.setup(context)
        if self.loss.takes_labels:
            self.labels = checked_labels(context, type(self.loss).__name__)

    def advance(self, step: int) -> None:
        """Pass the step on to the loss and its temperature."""
        self.loss.advance(step)

    def contrast(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Contrast:
        """The loss of the batch with its diagnostics; in training, `store` follows. See `step`."""
        own = self.about_samples(indices)
        own["bank_is_unit"] = True  # a queue's rows are, and are used without a copy
        if "labels" in own:
            groups = None  # duplicates have one label, and are positives
        parts = [
            self.loss.contrast(c.anchors, c.positives, **c.negatives(), **own)
            for c in self.contrasted(embeddings, groups)
        ]
        if self.training:
            self.store(*embeddings)
        return parts[0] if len(parts) == 1 else average(*parts)

    def about_samples(self, indices: Tensor | None) -> dict[str, Any]:
        """The keywords of `ContrastiveLoss.contrast` that the loss takes about the samples."""
        own: dict[str, Any] = {"indices": indices} if self.loss.takes_indices else {}
        if self.loss.takes_labels and self.labels is not None and indices is not None:
            own["labels"] = self.labels[indices.to(self.labels.device)]
        return own

    def store(self, *embeddings: Tensor) -> None:
        """Keep embeddings for later batches; called once per training batch, after the loss."""

    def step(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """The loss, with the metrics of its `Contrast`."""
        contrast = self.contrast(*embeddings, groups=groups, indices=indices)
        return Step(contrast.loss, contrast.metrics())


def checked_labels(context: TrainingContext, loss: str) -> Tensor:
    """The labels of the training data; a `ValueError` where there is not one integer for each."""
    labels = context.labels
    if labels is None:
        raise ValueError(
            f"{loss} learns from labels and the training data has none: give labelled data, or use "
            "a loss without labels, such as loss=nt-xent."
        )
    if labels.shape != (context.samples,) or labels.is_floating_point():
        raise ValueError(
            f"{loss} needs one integer label per sample, ({context.samples},), and the training "
            f"data has {labels.dtype} {tuple(labels.shape)}: use a loss without labels, such as "
            "loss=nt-xent."
        )
    return labels
