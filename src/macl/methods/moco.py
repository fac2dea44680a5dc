"""MoCo v2 (He et al. 2020, Chen et al. 2020): a slow key encoder and a queue of its keys."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from macl.core import batching
from macl.losses import ContrastiveLoss, PairOptions
from macl.losses.build import Inputs
from macl.methods.base import out_dim
from macl.methods.contrastive import ContrastiveMethod
from macl.methods.heads import build_head, head_dim
from macl.methods.queue import Queue


class MoCo(ContrastiveMethod):
    """Queries against a momentum encoder's keys, negatives from the queue alone.

    Args:
        encoder: query encoder; the key encoder starts as its copy.
        projector: head of the queries, copied likewise.
        loss: any loss of the family; it is called with `bank=queue`.
        dim: width of the projector's output.
        queue_size: number of keys kept as negatives.
        momentum: m of the moving average, key ← m·key + (1 − m)·query.
        splits: keys are encoded in this many shuffled parts, so that batch normalization does not
            reveal which key shares a query's batch ("shuffled BN"; it also works on one device).
    """

    loss_options: ClassVar[PairOptions] = {"symmetric": False}
    """Queries alone are anchors, so a loss needs no state or network for keys."""

    def __init__(
        self,
        encoder: nn.Module,
        projector: nn.Module,
        loss: ContrastiveLoss,
        dim: int,
        *,
        queue_size: int = 65536,
        momentum: float = 0.999,
        splits: int = 8,
    ) -> None:
        super().__init__(encoder, projector, loss)
        if not loss.takes_bank:
            raise ValueError(
                f"MoCo contrasts with a queue, which {type(loss).__name__} does not take: use "
                "method=simclr, or another loss."
            )
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum lies between 0 and 1, got {momentum}. MoCo uses 0.999.")
        self.key_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.key_projector = copy.deepcopy(projector).requires_grad_(False)
        self.queue = Queue(queue_size, dim)
        self.momentum, self.splits = momentum, splits

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> MoCo:
        """MoCo with its projector and queue, from the section `moco` of a recipe."""
        width = out_dim(encoder)
        return cls(
            encoder,
            build_head(section.projector, width),
            loss,
            head_dim(section.projector, width),
            queue_size=section.queue_size,
            momentum=section.momentum,
            splits=section.bn_splits,
        )

    @torch.no_grad()
    def prepare(self) -> None:
        """Store the last batch's keys; move the key branch towards the query branch."""
        self.queue.flush()
        branches = (self.key_encoder, self.encoder), (self.key_projector, self.projector)
        for slow, fast in branches:
            keys, queries = tuple(slow.parameters()), tuple(fast.parameters())
            if keys:
                torch._foreach_lerp_(keys, queries, 1 - self.momentum)

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(query, key): keys carry no gradient."""
        first, second = views
        return self.project(first), self._keys(second)

    def contrasted(
        self, embeddings: tuple[Tensor, ...], groups: Tensor | None = None
    ) -> list[Inputs]:
        """Queries and keys against the queue, which holds keys of earlier batches only.

        `groups` mark samples of the batch, so they do not apply.
        """
        query, key = embeddings
        return [Inputs(query, key, bank=self.queue.rows, bank_is_unit=True)]  # without a copy

    def store(self, *embeddings: Tensor) -> None:
        """The keys enter the queue when the next batch begins, after this one's backward pass."""
        self.queue.stage(embeddings[1])

    @torch.no_grad()
    def _keys(self, view: Any) -> Tensor:
        n = batching.size(view)
        if not self.training or self.splits <= 1:
            return self.key_projector(self.key_encoder(view))
        order = torch.randperm(n, device=next(self.key_encoder.parameters()).device)
        # Batch normalization needs two samples, so small batches are split in fewer parts.
        parts = order.tensor_split(max(1, min(self.splits, n // 2)))
        keys = torch.cat(
            [self.key_projector(self.key_encoder(batching.take(view, part))) for part in parts]
        )
        return keys[order.argsort()]
