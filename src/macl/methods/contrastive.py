"""SimCLR and the base of methods that contrast: stated once, for loss and diagnosis."""

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

    def about_samples(self, indices: Tensor | None) -> dict[str, Any]:
        """What the loss and its temperature are given about the samples."""
        own: dict[str, Any] = {"indices": indices, "positives": None}
        if self.labels is not None and indices is not None:
            own["positives"] = self.labels[indices.to(self.labels.device)]
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


class SimCLR(ContrastiveMethod):
    """SimCLR (Chen et al. 2020): one encoder and projector; negatives from the batch.

    On sentences with dropout as augmentation it is SimCSE, on graphs GraphCL.
    A third view, where the data has one, holds a hard negative for each anchor; its groups, if
    there are any, follow those of the batch.
    """

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(z1, z2) or (z1, z2, hard)."""
        first, second, *hard = views
        return (*self.project_together(first, second), *(self.project(view) for view in hard))

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Inputs]:
        """The two views, with hard negatives where there is a third."""
        z1, z2, *hard = embeddings
        if not hard:
            return [Inputs(z1, z2, groups=groups)]
        own, theirs = (None, None) if groups is None else (groups[: len(z1)], groups[len(z1) :])
        return [Inputs(z1, z2, groups=own, hard=hard[0], hard_groups=theirs)]

    def check_hard_negatives(self) -> None:
        """They are negatives of the first view's anchors, which needs a loss with "cross"."""
        if self.loss.negatives != "cross":
            raise ValueError(
                "hard negatives belong to the anchors of the first view: set loss.negatives=cross, "
                "or leave data.negative out."
            )
