"""The contract of a method: views in, a loss and named metrics out.

`prepare` runs once per step (MoCo moves its key encoder), `encode` works sample by sample, `step`
sees the embeddings of the whole batch. They are separate so that a large batch can be encoded in
chunks. Nothing here assumes negatives or a temperature; `macl.methods.contrastive` adds those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from macl.core import batching
from macl.losses import TrainingContext
from macl.methods.heads import build_head

Metrics = Mapping[str, Tensor | float]


class Step:
    """The loss of one batch, a scalar, and what to log about it.

    `metrics` are detached scalars by the name of their column, or what computes them when a row is
    logged, on every rank alike.
    """

    def __init__(
        self, loss: Tensor, metrics: Metrics | Callable[[], Metrics] | None = None
    ) -> None:
        self.loss, self._given = loss, metrics or {}

    @cached_property
    def metrics(self) -> Metrics:
        """Detached scalars by name, computed when first read."""
        return self._given() if callable(self._given) else self._given


class Method(nn.Module):
    """Base of the methods: a plain module, `method(view1, view2).loss.backward()` in any loop."""

    loss_options: ClassVar[Mapping[str, Any]] = {}
    """The keywords with which the recipe's loss is built for this method."""
    loss: nn.Module | None
    """The loss, where it is a module of its own."""

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, loss: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.loss = encoder, projector, loss

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> Method:
        """Build the method from its recipe section; by default with the projector alone.

        Args:
            section: the method's section, with a `projector`.
            encoder: has an attribute `out_dim`, the width of its output.
            loss: the recipe's loss, built with `loss_options`; None where it names none.
        """
        return cls(encoder, build_head(section.projector, out_dim(encoder)), loss)

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""

    def advance(self, step: int) -> None:
        """Called after every optimizer step with the number of steps taken so far."""

    def prepare(self) -> None:
        """Called once per training batch, before encoding."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """Views → (N, D) embeddings, sample by sample (except in batch normalization).

        The first one is what a diagnosis measures.
        """
        raise NotImplementedError

    def step(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """Embeddings of the whole batch → its loss and metrics.

        Args:
            embeddings: what `encode` returns.
            groups: (N,) integers; samples of one group are duplicates. Hard negatives of a third
                view have theirs after them, (2N,) in all.
            indices: (N,) positions of the samples in the data set.
        """
        raise NotImplementedError

    def check_hard_negatives(self) -> None:
        """Raise `ValueError` if a third view with hard negatives cannot be used."""
        raise ValueError(
            f"{type(self).__name__} cannot use hard negatives: use method=simclr, or leave "
            "data.negative out."
        )

    def forward(
        self, *views: Any, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """Views of a batch → its loss and metrics; see `step`.

        Views are inputs of the encoder, two or more; sample i of each is the same instance.
        """
        if self.training:
            self.prepare()
        return self.step(*self.encode(*views), groups=groups, indices=indices)

    def project(self, view: Any) -> Tensor:
        """(B, D) embedding on which the loss is computed."""
        return self.projector(self.encoder(view))

    def project_together(self, first: Any, second: Any) -> tuple[Tensor, Tensor]:
        """Both views in one forward where they can be joined, so batch norm sees them together."""
        joined = batching.concat(first, second)
        if joined is None:
            return self.project(first), self.project(second)
        z1, z2 = self.project(joined).split([batching.size(first), batching.size(second)])
        return z1, z2


def out_dim(encoder: nn.Module) -> int:
    """The width of an encoder's output, its attribute `out_dim`."""
    width: int = encoder.out_dim  # type: ignore[assignment]
    return width
