"""Methods with a contrastive loss: what is contrasted is stated once, for loss and diagnosis."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from macl.losses import ContrastiveLoss, TrainingContext
from macl.losses.build import Inputs
from macl.losses.output import average_metrics
from macl.methods.base import Method, Step


class ContrastiveMethod(Method):
    """Base of SimCLR, MoCo and NNCLR. A subclass defines `encode` and `contrasted`."""

    loss: ContrastiveLoss
    labels: Tensor | None
    """(samples,) classes of the training data, where the loss takes labels; not in checkpoints."""
    guide: Tensor | None
    """(samples, G) a guide model's embeddings of the training data; not in checkpoints."""

    def __init__(self, encoder: nn.Module, projector: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__(encoder, projector, loss)
        self.register_buffer("labels", None, persistent=False)
        self.register_buffer("guide", None, persistent=False)

    def setup(self, context: TrainingContext) -> None:
        """Pass the size of the training on to the loss, and keep what it takes of the samples."""
        self.loss.setup(context)
        self.guide = context.guide
        if self.loss.takes_labels:
            self.labels = labels = context.labels
            found = "none" if labels is None else f"{labels.dtype} {tuple(labels.shape)}"
            if labels is None or labels.shape != (context.samples,) or labels.is_floating_point():
                raise ValueError(
                    f"{type(self.loss).__name__} learns from labels and the training data has "
                    f"{found}: give one integer for each sample, ({context.samples},), or use a "
                    "loss without labels, such as loss=nt-xent."
                )

    def advance(self, step: int) -> None:
        """Pass the step on to the loss and its temperature."""
        self.loss.advance(step)

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Inputs]:
        """What `step` contrasts, as loss and diagnosis need it: anchors, positives, negatives."""
        raise NotImplementedError

    def sample_labels(self, indices: Tensor | None) -> Tensor | None:
        """(N,) labels of the samples at `indices`; None where the loss takes none."""
        if self.labels is None or indices is None:
            return None
        return self.labels[indices.to(self.labels.device)]

    def about_samples(self, indices: Tensor | None) -> dict[str, Any]:
        """What the loss and its temperature are given about the samples."""
        own: dict[str, Any] = {"indices": indices, "positives": self.sample_labels(indices)}
        if self.guide is not None and indices is not None:
            rows = self.guide[indices.to(self.guide.device)]
            own["guide"] = (rows, rows)  # both views are of one sample
        return own

    def store(self, *embeddings: Tensor) -> None:
        """Keep embeddings for later batches; called once per training batch, after the loss."""

    def step(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """The mean of the losses of what is contrasted; metrics are computed for logged rows."""
        about = self.about_samples(indices)
        if about["positives"] is not None:
            groups = None  # duplicates have one label, and are positives
        contrasted = self.contrasted(embeddings, groups)
        outputs = [self.loss.evaluate(inputs._replace(**about)) for inputs in contrasted]
        if self.training:
            self.store(*embeddings)
        losses = [output.loss for output in outputs]
        loss = losses[0] if len(losses) == 1 else torch.stack(losses).mean(0)
        return Step(loss, lambda: average_metrics(outputs))
