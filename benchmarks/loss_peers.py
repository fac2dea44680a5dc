"""What benchmarks/losses.py runs: ours, its peers, and the floor of bare matrix products."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import MACL, InfoNCE
from macl.losses.ops import tiled
from macl.losses.ops.exclusions import Tile

Step = Callable[[], object]
Loss = Callable[[Tensor, Tensor], Tensor]
TAU = 0.1


@dataclass(frozen=True)
class Candidate:
    """`step(n, dim)` prepares one forward and backward of n pairs.

    Ratios are taken to the first candidate of the same form.
    """

    form: str
    step: Callable[[int, int], Step]
    package: str = "torch"
    largest: int = 16384


def of_loss(build: Callable[[], Loss]) -> Callable[[int, int], Step]:
    def prepare(n: int, dim: int) -> Step:
        torch.manual_seed(0)
        z1, z2 = (torch.randn(n, dim, requires_grad=True) for _ in range(2))
        loss = build()

        def step() -> None:
            z1.grad = z2.grad = None
            loss(z1, z2).backward()

        return step

    return prepare


def lightly(name: str) -> Callable[[int, int], Step]:
    def build() -> Loss:
        import lightly.loss

        return getattr(lightly.loss, name)(temperature=TAU)

    return of_loss(build)


def metric_learning() -> Loss:
    from pytorch_metric_learning.losses import NTXentLoss, SelfSupervisedLoss

    return SelfSupervisedLoss(NTXentLoss(TAU))


def ranking() -> Loss:
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss

    loss = MultipleNegativesRankingLoss(nn.Identity(), scale=1 / TAU)
    return lambda z1, z2: loss.compute_loss_from_embeddings([z1, z2], None)


def both_similarities(z1: Tensor, z2: Tensor) -> Tensor:
    rows = F.normalize(torch.cat([z1, z2]), dim=1)
    return rows @ rows.T


def algorithm_1(z1: Tensor, z2: Tensor) -> Tensor:
    """The paper's pseudocode, on the 2N anchors and 2N−2 negatives of both views."""
    n = len(z1)
    s = both_similarities(z1, z2)
    own = torch.eye(n, dtype=torch.bool).repeat(2, 2)
    pos = torch.cat([s.diagonal(n), s.diagonal(-n)])[:, None]
    neg = s[~own].view(2 * n, 2 * n - 2)
    t = TAU * (1 + 0.5 * pos.detach().mean())
    p = torch.softmax(torch.cat([pos, neg], dim=1) / t, dim=1)[:, 0]
    v = 1 / (1 - p)
    return (-v.detach() * torch.log(p)).mean()


def textbook(z1: Tensor, z2: Tensor) -> Tensor:
    n = len(z1)
    logits = both_similarities(z1, z2) / TAU
    logits.fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, (torch.arange(2 * n) + n) % (2 * n))


def cross_entropy(z1: Tensor, z2: Tensor) -> Tensor:
    logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / TAU
    return F.cross_entropy(logits, torch.arange(len(z1)))


def floor(n: int, dim: int) -> Step:
    """What any symmetric, recomputing kernel must do: half a GEMM, then half and a whole one."""
    rows = F.normalize(torch.randn(2 * n, dim), dim=1)
    tiles = tiled.tiles(2 * n, 2 * n, rows.device, mirror=True)

    scratch, out = rows.new_empty(tiled.CPU_TILE**2), torch.zeros_like(rows)

    def product(tile: Tile) -> Tensor:
        shape = (tile.bottom - tile.top, tile.right - tile.left)
        room = scratch[: shape[0] * shape[1]].view(shape)
        return torch.mm(rows[tile.top : tile.bottom], rows[tile.left : tile.right].T, out=room)

    def step() -> None:
        for tile in tiles:
            product(tile)
        for tile in tiles:
            e = product(tile)
            out[tile.top : tile.bottom].addmm_(e, rows[tile.left : tile.right])
            if tile.top != tile.left:
                out[tile.left : tile.right].addmm_(e.T, rows[tile.top : tile.bottom])

    return step


OURS = {"both views": "macl.MACL", "cross-view": "macl.InfoNCE, one direction"}
FLOOR = "symmetric-GEMM floor"
CANDIDATES = {
    "macl.MACL": Candidate("both views", of_loss(lambda: MACL(TAU, 0.5)), largest=65536),
    FLOOR: Candidate("both views", floor),
    "lightly MACLLoss": Candidate("both views", lightly("MACLLoss"), "lightly"),
    "lightly NTXentLoss": Candidate("both views", lightly("NTXentLoss"), "lightly"),
    "lightly DCLLoss": Candidate("both views", lightly("DCLLoss"), "lightly"),
    "the paper's Algorithm 1": Candidate("both views", of_loss(lambda: algorithm_1)),
    "textbook masked cross-entropy": Candidate("both views", of_loss(lambda: textbook)),
    "pytorch-metric-learning NTXentLoss": Candidate(
        "both views", of_loss(metric_learning), "pytorch_metric_learning", largest=32
    ),
    "macl.InfoNCE, one direction": Candidate(
        "cross-view", of_loss(lambda: InfoNCE(TAU, symmetric=False))
    ),
    "plain cross-entropy": Candidate("cross-view", of_loss(lambda: cross_entropy)),
    "sentence-transformers ranking loss": Candidate(
        "cross-view", of_loss(ranking), "sentence_transformers"
    ),
}
INSTALLED = {n: c for n, c in CANDIDATES.items() if importlib.util.find_spec(c.package)}
