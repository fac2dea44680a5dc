"""MoCo v2 (He et al. 2020, Chen et al. 2020): a slow key encoder and a queue of its keys."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from macl.core import batching
from macl.losses import Contrast, ContrastiveLoss
from macl.methods.base import Method
from macl.methods.heads import build_head, head_dim
from macl.methods.queue import Queue


class MoCo(Method):
    """Queries against a momentum encoder's keys, negatives from the queue alone.

    Args:
        encoder: query encoder; the key encoder starts as its copy.
        projector: head of the queries, copied likewise.
        loss: any loss of the family; it is called with `bank=queue`.
        dim: width of the projector's output.
        queue_size: number of keys kept as negatives.
        momentum: m of the moving average, key ← m·key + (1 − m)·query.
        splits: keys are encoded in this many shuffled parts, so that batch normalisation does not
            tell a query which key shares its batch ("shuffled BN", which also works on one device).
    """

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
        if not 0 <= momentum <= 1:
            raise ValueError(f"momentum lies between 0 and 1, got {momentum}. MoCo uses 0.999.")
        self.key_encoder = copy.deepcopy(encoder).requires_grad_(False)
        self.key_projector = copy.deepcopy(projector).requires_grad_(False)
        self.queue = Queue(queue_size, dim)
        self.momentum, self.splits = momentum, splits

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> MoCo:
        """MoCo with its projector and queue, from the section `moco` of a recipe."""
        width: int = encoder.out_dim  # type: ignore[assignment]
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
        """Move the key branch towards the query branch, before it encodes this step's keys."""
        for slow, fast in (
            (self.key_encoder, self.encoder),
            (self.key_projector, self.projector),
        ):
            for key, query in zip(slow.parameters(), fast.parameters(), strict=True):
                key.lerp_(query.detach(), 1 - self.momentum)

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """(query, key): keys carry no gradient."""
        first, second = views
        return self.project(first), self._keys(second)

    def contrast(self, *embeddings: Tensor, groups: Tensor | None = None) -> Contrast:
        """The loss against the queue as it was, then the new keys enter it.

        `groups` mark samples of the batch; the queue's keys come from earlier batches.
        """
        query, key = embeddings
        # A copy: the queue changes below, before the backward pass reads it.
        told = self.loss.contrast(query, key, bank=self.queue.rows.clone())
        if self.training:
            self.queue.push(key)
        return told

    @torch.no_grad()
    def _keys(self, view: Any) -> Tensor:
        n = batching.size(view)
        if not self.training or self.splits <= 1:
            return self.key_projector(self.key_encoder(view))
        order = torch.randperm(n)
        # Batch normalisation needs two samples, so small batches are split in fewer parts.
        parts = order.tensor_split(max(1, min(self.splits, n // 2)))
        keys = torch.cat(
            [self.key_projector(self.key_encoder(batching.take(view, part))) for part in parts]
        )
        return keys[order.argsort()]
