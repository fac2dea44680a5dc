"""The contract of a method: views in, a loss and named metrics out.

`prepare` runs once per step (MoCo moves its key encoder), `encode` works sample by sample, `step`
sees the embeddings of the whole batch. They are separate so that a large batch can be encoded in
chunks. Nothing here assumes negatives or a temperature; `macl.methods.contrastive` adds those.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from torch import Tensor, nn

from macl.core import batching
from macl.losses import ContrastiveLoss, TrainingContext
from macl.losses.contrastive import Form
from macl.methods.heads import build_head


@dataclass(frozen=True)
class Step:
    """The loss of one batch, and what to log about it."""

    loss: Tensor
    """Scalar to call backward on."""
    metrics: Mapping[str, Tensor | float] = field(default_factory=dict)
    """Detached scalars by the name of their column. A boolean is logged as the share of the steps
    since the last row in which it was true, any other value as it is in the logged step."""


@dataclass(frozen=True)
class Contrasted:
    """Anchors with their positives, and where their negatives come from."""

    anchors: Tensor
    """(N, D)"""
    positives: Tensor
    """(N, D), row by row."""
    bank: Tensor | None = None
    """(K, D) rows of length 1: negatives in place of the batch's own."""
    groups: Tensor | None = None
    """(N,) integers; rows of one group are never each other's negatives."""
    hard: Tensor | None = None
    """(H, D) further negatives of every anchor."""
    hard_groups: Tensor | None = None
    """(H,) the groups of those."""

    def negatives(self) -> dict[str, Any]:
        """The keywords of `ContrastiveLoss.contrast` beside the two views."""
        return {
            "bank": self.bank,
            "groups": self.groups,
            "hard": self.hard,
            "hard_groups": self.hard_groups,
        }


class Method(nn.Module):
    """Base of the methods: a plain module, `method(view1, view2).loss.backward()` in any loop."""

    form: ClassVar[Form] = {}
    """The keywords with which a loss is built for this method."""
    loss: ContrastiveLoss | None
    """The loss of a contrastive method."""

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, loss: ContrastiveLoss | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.loss = encoder, projector, loss

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> Method:
        """Build the method from its recipe section; by default with the projector alone.

        Args:
            section: the method's section, with a `projector`.
            encoder: has an attribute `out_dim`, the width of its output.
            loss: the recipe's loss, built with the keywords of `form`; None where it names none.
        """
        return cls(encoder, build_head(section.projector, out_dim(encoder)), loss)

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""

    def advance(self, step: int) -> None:
        """Called after every optimiser step with the number of steps taken so far."""

    def prepare(self) -> None:
        """Called once per training batch, before encoding."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """Views → (N, D) embeddings, sample by sample (but for batch normalisation).

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

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Contrasted]:
        """What `step` contrasts, as loss and diagnosis need it; empty where it has no negatives."""
        return []

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

        Args:
            views: inputs of the encoder, two or more; sample i of each is the same instance.
            groups: as in `step`.
            indices: as in `step`.
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
