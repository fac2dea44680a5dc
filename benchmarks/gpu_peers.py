"""Losses as their users call them, and a training step around each, for benchmarks/gpu.py.

Three shapes: "both" contrasts 2N rows with each other (NT-Xent); "cross" N rows with N others, in
both directions (CLIP); "rank" N rows of one process with the keys of RANKS processes (DDP).
Embeddings are what an encoder returns, of any length; each loss normalizes them.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import macl

TAU = 0.1
RANKS = 8
Loss = Callable[..., Tensor]


class Candidate(NamedTuple):
    """A loss of N pairs, of a shape; `package` must be installed."""

    shape: str
    name: str
    build: Callable[[], Loss]
    package: str = "torch"

    @property
    def installed(self) -> bool:
        """Whether it can run here."""
        return importlib.util.find_spec(self.package) is not None


def inputs(shape: str, n: int, dim: int, device: torch.device) -> list[Tensor]:
    """Embeddings with gradients: two views, and for "rank" the keys of the other ranks."""
    torch.manual_seed(0)
    sizes = [n, n, (RANKS - 1) * n][: 3 if shape == "rank" else 2]
    return [torch.randn(k, dim, device=device, requires_grad=True) for k in sizes]


def textbook_both(z1: Tensor, z2: Tensor) -> Tensor:
    rows, n = F.normalize(torch.cat([z1, z2])), len(z1)
    logits = (rows @ rows.T / TAU).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * n, device=rows.device).roll(n))


def textbook_cross(z1: Tensor, z2: Tensor) -> Tensor:
    logits = F.normalize(z1) @ F.normalize(z2).T / TAU
    labels = torch.arange(len(z1), device=z1.device)
    return (F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)) / 2


def textbook_rank(z1: Tensor, z2: Tensor, others: Tensor) -> Tensor:
    query, keys = F.normalize(z1), F.normalize(others)
    positive = (query * F.normalize(z2)).sum(1, keepdim=True)
    logits = torch.cat([positive, query @ keys.T], 1) / TAU
    return F.cross_entropy(logits, torch.zeros(len(z1), dtype=torch.long, device=z1.device))


def ours_rank() -> Loss:
    criterion = macl.InfoNCE(temperature=TAU, negatives="cross", symmetric=False)
    return lambda z1, z2, others: criterion(z1, z2, bank=others)


def open_clip() -> Loss:
    from open_clip.loss import ClipLoss

    loss = ClipLoss()
    return lambda z1, z2: loss(F.normalize(z1), F.normalize(z2), 1 / TAU)


def sentence_transformers() -> Loss:
    from sentence_transformers.losses import MultipleNegativesRankingLoss

    loss = MultipleNegativesRankingLoss(
        nn.Module(),
        scale=1 / TAU,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    return lambda z1, z2: loss.compute_loss_from_embeddings([z1, z2], None)


def lightly() -> Loss:
    from lightly.loss import NTXentLoss

    return NTXentLoss(temperature=TAU)


def inf_cl() -> Loss:
    from inf_cl import cal_flash_loss

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        a, b = F.normalize(z1), F.normalize(z2)
        width = min(a.shape[1], 256)
        both = cal_flash_loss(a / TAU, b, head_dim=width) + cal_flash_loss(
            b / TAU, a, head_dim=width
        )
        return both.mean() / 2

    return loss


def flex_attention() -> Loss:
    """The logsumexp of attention scores is that of the logits; values are not needed."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    attend = torch.compile(flex_attention)

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        rows, n = F.normalize(torch.cat([z1, z2])), len(z1)
        rows = rows.to(torch.get_autocast_dtype(rows.device.type))
        mask = create_block_mask(lambda b, h, i, j: i != j, None, None, 2 * n, 2 * n)
        x = rows[None, None]
        _, lse = attend(x, x, x, block_mask=mask, scale=1 / TAU, return_lse=True)
        positive = (rows * rows.roll(n, 0)).sum(1).float() / TAU
        return (lse.flatten() - positive).mean()

    return loss


CANDIDATES = [
    Candidate("both", "macl.NTXent", lambda: macl.NTXent(temperature=TAU)),
    Candidate("both", "macl.MACL", lambda: macl.MACL(temperature=TAU)),
    Candidate("both", "cross-entropy, materialized", lambda: textbook_both),
    Candidate("both", "cross-entropy, torch.compile", lambda: torch.compile(textbook_both)),
    Candidate("both", "FlexAttention", flex_attention),
    Candidate("both", "lightly NTXentLoss", lightly, "lightly"),
    Candidate(
        "cross", "macl.InfoNCE", lambda: macl.InfoNCE(temperature=TAU, negatives="cross")
    ),
    Candidate("cross", "cross-entropy, materialized", lambda: textbook_cross),
    Candidate("cross", "open_clip ClipLoss", open_clip, "open_clip"),
    Candidate(
        "cross", "sentence-transformers", sentence_transformers, "sentence_transformers"
    ),
    Candidate("cross", "inf-cl", inf_cl, "inf_cl"),
    Candidate("rank", "macl.InfoNCE", ours_rank),
    Candidate("rank", "cross-entropy, materialized", lambda: textbook_rank),
]  # fmt: skip


class Trainer:
    """A ResNet with a projection to `dim`, two views of N images, SGD, bf16 autocast."""

    def __init__(
        self, loss: Loss, n: int, dim: int, side: int, name: str, device: torch.device
    ) -> None:
        import torchvision

        torch.manual_seed(0)
        encoder = getattr(torchvision.models, name)(num_classes=dim)
        self.encoder = encoder.to(device, memory_format=torch.channels_last)
        self.optimizer = torch.optim.SGD(self.encoder.parameters(), 0.1, momentum=0.9)
        self.views = torch.randn(2 * n, 3, side, side, device=device)
        self.views = self.views.contiguous(memory_format=torch.channels_last)
        self.loss, self.device = loss, device

    def step(self) -> Tensor:
        """Forward, backward, update; the loss."""
        self.optimizer.zero_grad()
        with torch.autocast(self.device.type, torch.bfloat16):
            value = self.loss(*self.encoder(self.views).chunk(2))
        value.backward()
        self.optimizer.step()
        return value.detach()
