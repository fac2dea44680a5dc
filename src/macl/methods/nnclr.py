"""NNCLR (Dwibedi et al. 2021): the positive is a neighbor of the other view."""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from macl.losses import ContrastiveLoss, PairOptions
from macl.losses.build import Inputs
from macl.methods.base import out_dim
from macl.methods.contrastive import ContrastiveMethod
from macl.methods.heads import build_head, head_dim
from macl.methods.queue import Queue


class NNCLR(ContrastiveMethod):
    """nn(z₁) against the predictions of view 2, and nn(z₂) against those of view 1.

    Args:
        encoder: shared by both views.
        projector: z = projector(encoder(view)).
        predictor: p = predictor(z).
        loss: any loss of the family with `negatives="cross", symmetric=False`: the anchors are the
            neighbors, which carry no gradient, and the candidates the other view's predictions.
        dim: width of the projector's output.
        queue_size: size of the support set in which neighbors are found.
    """

    loss_options: ClassVar[PairOptions] = {"negatives": "cross", "symmetric": False}

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        predictor: nn.Module,
        loss: ContrastiveLoss,
        dim: int,
        *,
        queue_size: int = 65536,
    ) -> None:
        super().__init__(encoder, projector, loss)
        if loss.negatives != "cross" or loss.symmetric:
            raise ValueError(
                "NNCLR symmetrizes by itself: give it a loss with "
                'negatives="cross", symmetric=False.'
            )
        self.predictor = predictor
        self.queue = Queue(queue_size, dim)

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> NNCLR:
        """NNCLR with its heads and support set, from the section `nnclr` of a recipe."""
        width = out_dim(encoder)
        dim = head_dim(section.projector, width)
        predicted = head_dim(section.predictor, dim)
        if predicted != dim:
            raise ValueError(
                f"the predictor's output has {predicted} dimensions and the projector's {dim}; end "
                "method.predictor.widths in 'same'."
            )
        return cls(
            encoder,
            build_head(section.projector, width),
            build_head(section.predictor, dim),
            loss,
            dim,
            queue_size=section.queue_size,
        )

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(z1, z2, p1, p2)."""
        z1, z2 = self.project_together(*views)
        return z1.detach(), z2.detach(), self.predictor(z1), self.predictor(z2)

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Inputs]:
        """Both directions; the loss is their mean."""
        z1, z2, p1, p2 = embeddings
        n1, n2 = self.queue.nearest(z1), self.queue.nearest(z2)
        # Under autocast the predictions come in half precision, the support set never does.
        return [
            Inputs(n1, p2.to(n1.dtype), groups=groups),
            Inputs(n2, p1.to(n2.dtype), groups=groups),
        ]

    def store(self, *embeddings: Tensor) -> None:
        """The first view's projections enter the support set; neighbors are copies of its rows."""
        self.queue.push(embeddings[0])
