"""What benchmarks/temperatures.py runs: each loss beside its published form in plain torch.

The published forms hold the matrix of similarities, as the published code does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from macl import (
    DySTreSS,
    FastCLIP,
    InfoNCE,
    ISogCLR,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)

Step = Callable[[], object]
Loss = Callable[[Tensor, Tensor], Tensor]
TAU, CLASSES = 0.1, 10


def prepared(build: Callable[[int, int], Loss]) -> Callable[[int, int], Step]:
    """`step(n, dim)` prepares one forward and backward of n pairs."""

    def prepare(n: int, dim: int) -> Step:
        torch.manual_seed(0)
        z1, z2 = (torch.randn(n, dim, requires_grad=True) for _ in range(2))
        loss = build(n, dim)

        def step() -> None:
            z1.grad = z2.grad = None
            loss(z1, z2).backward()

        return step

    return prepare


def ours(build: Callable[[int, int], Any], argument: str = "") -> Callable[[int, int], Step]:
    def make(n: int, dim: int) -> Loss:
        criterion = build(n, dim)
        values = {"indices": torch.arange(n), "labels": torch.arange(n) % CLASSES}
        extra = {argument: values[argument]} if argument else {}
        return lambda z1, z2: criterion(z1, z2, **extra)

    return prepared(make)


def both(z1: Tensor, z2: Tensor) -> tuple[Tensor, Tensor]:
    """(2N, 2N) similarities and the mask of a row itself."""
    z = F.normalize(torch.cat([z1, z2]), dim=1)
    return z @ z.T, torch.eye(len(z), dtype=torch.bool)


def cross_entropy_of(logits: Callable[[Tensor], Tensor]) -> Callable[[int, int], Step]:
    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        s, itself = both(z1, z2)
        targets = torch.arange(len(s)).roll(len(z1))
        return F.cross_entropy(logits(s).masked_fill(itself, -torch.inf), targets)

    return prepared(lambda n, dim: loss)


def per_pair(s: Tensor) -> Tensor:
    tau = 0.1 + 0.05 * (1 + torch.cos(math.pi * (1 + s.detach())))
    return s / tau


def inverse_tanh(s: Tensor) -> Tensor:
    s = s.clamp(-1 + 1e-6, 1 - 1e-6)
    return torch.log((1 + s) / (1 - s))


def sigmoid_pairs(n: int, dim: int) -> Loss:
    scale = torch.tensor(math.log(10.0), requires_grad=True)
    bias = torch.tensor(-10.0, requires_grad=True)
    signs = 2 * torch.eye(n) - 1

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T * scale.exp() + bias
        return -F.logsigmoid(signs * logits).sum() / n

    return loss


def supervised(n: int, dim: int) -> Loss:
    labels = (torch.arange(n) % CLASSES).repeat(2)

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        s, itself = both(z1, z2)
        logits = s / TAU
        logits = logits - logits.max(1, keepdim=True).values.detach()
        mask = ((labels[:, None] == labels) & ~itself).float()
        exponentials = logits.exp() * ~itself
        log_p = logits - exponentials.sum(1, keepdim=True).log()
        return -((mask * log_p).sum(1) / mask.sum(1)).mean()

    return loss


def moving_average(individual: bool) -> Callable[[int, int], Loss]:
    """SogCLR for both views; with `individual`, iSogCLR's temperatures."""

    def build(n: int, dim: int) -> Loss:
        u, m = torch.zeros(2 * n, 1), torch.zeros(2 * n, 1)
        tau = torch.full((2 * n, 1), TAU)

        def loss(z1: Tensor, z2: Tensor) -> Tensor:
            s, itself = both(z1, z2)
            own = itself | itself.roll(n, 1)
            with torch.no_grad():
                e = torch.exp(s / tau) * ~own
                gamma = 0.9 if bool(u.sum()) else 1.0
                u.mul_(1 - gamma).add_(gamma * e.sum(1, keepdim=True) / (2 * n - 2))
                weights = e / u
                if individual:
                    mean = (weights * s / tau).sum(1, keepdim=True) / (2 * n - 2)
                    gradient = (u.log() + 0.4 - mean).clamp(-3, 3)
                    m.mul_(0.5).add_(0.5 * gradient)
            value = (weights * s).sum(1) / (2 * n - 2) - s.diagonal(n).repeat(2)
            if individual:
                tau.sub_(0.03 * m).clamp_(0.05, 1.0)
            return value.mean()

        return loss

    return build


def fast_clip(n: int, dim: int) -> Loss:
    """v3 in one process: both directions from one matrix of differences each."""
    u = torch.zeros(2, n)
    log_tau = torch.tensor(math.log(0.07), requires_grad=True)
    own = torch.eye(n, dtype=torch.bool)

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        s = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T
        positive, tau = s.diagonal(), log_tau.exp()
        terms = []
        for k, h in enumerate((s - positive[:, None], s.T - positive[:, None])):
            g = (torch.exp(h / tau) * ~own).sum(1) / (n - 1)
            gamma = 0.2 if bool(u[k].sum()) else 1.0
            average = (1 - gamma) * u[k] + gamma * g.detach()
            u[k] = average
            terms.append(tau.detach() * g / average + tau * (average.log() + 6.5))
        return torch.cat(terms).mean()

    return loss


def predicted(n: int, dim: int) -> Loss:
    """TempNet in one process, on the networks of ours."""
    nets = TempNet(dim, size=n).networks
    u, own = torch.zeros(2, n), torch.eye(n, dtype=torch.bool)

    def loss(z1: Tensor, z2: Tensor) -> Tensor:
        one, two = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
        s = one @ two.T
        positive, terms = s.diagonal(), []
        for k, h in enumerate((s - positive[:, None], s.T - positive[:, None])):
            tau = nets[k]((one, two)[k])
            scaled = h / tau.detach()[:, None]
            with torch.no_grad():
                e = torch.exp(scaled) * ~own
                g = e.sum(1) / (n - 1)
                gamma = 0.8 if bool(u[k].sum()) else 1.0
                u[k] = (1 - gamma) * u[k] + gamma * g
                weights = e / u[k][:, None]
                gradient = u[k].log() + 7 - (weights * scaled).sum(1) / (n - 1)
            terms.append((weights * h).sum(1) / (n - 1) + gradient * tau)
        return torch.cat(terms).mean()

    return loss


CANDIDATES: dict[str, dict[str, Callable[[int, int], Step]]] = {
    "NTXent": {
        "macl": ours(lambda n, dim: NTXent(TAU)),
        "published": cross_entropy_of(lambda s: s / TAU),
    },
    "InfoNCE": {"macl": ours(lambda n, dim: InfoNCE(TAU))},
    "DySTreSS": {
        "macl": ours(lambda n, dim: DySTreSS()),
        "published": cross_entropy_of(per_pair),
    },
    "TemperatureFree": {
        "macl": ours(lambda n, dim: TemperatureFree()),
        "published": cross_entropy_of(inverse_tanh),
    },
    "SigLIP": {"macl": ours(lambda n, dim: SigLIP()), "published": prepared(sigmoid_pairs)},
    "SupCon": {
        "macl": ours(lambda n, dim: SupCon(TAU), "labels"),
        "published": prepared(supervised),
    },
    "SogCLR": {
        "macl": ours(lambda n, dim: SogCLR(TAU, size=n), "indices"),
        "published": prepared(moving_average(individual=False)),
    },
    "ISogCLR": {
        "macl": ours(lambda n, dim: ISogCLR(TAU, size=n), "indices"),
        "published": prepared(moving_average(individual=True)),
    },
    "FastCLIP v3": {
        "macl": ours(lambda n, dim: FastCLIP(size=n), "indices"),
        "published": prepared(fast_clip),
    },
    "FastCLIP v2": {"macl": ours(lambda n, dim: FastCLIP(size=n, version=2), "indices")},
    "TempNet": {
        "macl": ours(lambda n, dim: TempNet(dim, size=n), "indices"),
        "published": prepared(predicted),
    },
}
