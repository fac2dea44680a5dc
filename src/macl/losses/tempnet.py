"""TempNet: a small network predicts each anchor's temperature from its embedding."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl.losses.contrastive import Form
from macl.losses.global_objective import GlobalObjective
from macl.losses.pairs import Pairs
from macl.losses.sogclr import at_bounds, check_rho, check_start

if TYPE_CHECKING:
    from typing_extensions import Unpack

PROTOTYPES = 256
SHARPNESS = 0.01


class TemperatureNetwork(nn.Module):
    """(n, D) unit rows → (n,) τ between `lowest` and `highest`.

        a = dropout(σ(Az + c)),  p = a·Q̂ᵀ,  w = softmax(p/e^φ),  τ = lowest + Δ·σ(o)
        o = Σ_m v_m·(w_m − 1/M)·σ(p_m) + d

    Q̂ holds M prototypes of length 1. v starts at 1, d at 0 and e^φ at 0.01.

    Args:
        dim: D.
        lowest: lower bound of τ.
        highest: upper bound of τ.
        prototypes: M.
        dropout: probability of dropping an entry of a in training.
    """

    def __init__(
        self,
        dim: int,
        lowest: float,
        highest: float,
        prototypes: int = PROTOTYPES,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.lowest, self.highest = lowest, highest
        self.project = nn.Linear(dim, dim)
        self.dropout = nn.Dropout(dropout)
        self.prototypes = nn.Parameter(torch.randn(prototypes, dim))
        self.log_sharpness = nn.Parameter(torch.tensor(math.log(SHARPNESS)))
        self.weight = nn.Parameter(torch.ones(prototypes))
        self.offset = nn.Parameter(torch.zeros(()))

    def forward(self, z: Tensor) -> Tensor:
        """(n,) τ, with gradient to the network alone."""
        rows = z.detach().to(self.weight.dtype)
        a = self.dropout(torch.sigmoid(self.project(rows)))
        p = a @ F.normalize(self.prototypes, dim=1).T
        w = torch.softmax(p / self.log_sharpness.exp(), dim=1)
        o = ((w - 1 / len(self.weight)) * torch.sigmoid(p)) @ self.weight + self.offset
        tau = self.lowest + (self.highest - self.lowest) * torch.sigmoid(o)
        return tau.to(z.dtype)


class TempNet(GlobalObjective):
    """TempNet, Qiu et al. 2024: iSogCLR's objective with τ_i predicted from the embedding.

        F = mean_i τ_i·(log u_i + ρ),   τ_i = network(sg z_i)

    One backward pass gives both gradients: the embeddings get τ·(g/u)·∇x as if τ were fixed, the
    network that of mean(sg[G_i]·τ_i), G_i = ∂F/∂τ_i. Give `criterion.parameters()` to the
    optimiser (published: Adam, learning rate 3e-5·0.9^epoch).

    Args:
        dim: D, the width of the embeddings.
        size: number of samples in the data set, for the moving averages u; None takes it from
            `setup`.
        rho: ρ ≥ 0. It must lie below log K of K negatives, or every τ falls to `lowest`.
        gamma: γ in (0, 1], the weight of the new batch in u.
        lowest: lower bound of τ.
        highest: upper bound of τ.
        dropout: published with 0.5, which makes τ random in training; 0 here.
        form: as `ContrastiveLoss`; by default "cross" in both directions, with one network and one
            u each. With negatives="both" the views share them.
    """

    temperature_keys = ("lowest", "highest")

    def __init__(
        self,
        dim: int,
        *,
        size: int | None = None,
        rho: float = 7.0,
        gamma: float = 0.8,
        lowest: float = 0.005,
        highest: float = 0.05,
        dropout: float = 0.0,
        **form: Unpack[Form],
    ) -> None:
        if not (isinstance(dim, int) and dim >= 1):
            raise ValueError(f"dim is the width D of the embeddings, 1 or more, got {dim!r}.")
        if not 0 <= dropout < 1:
            raise ValueError(f"dropout is a probability below 1, got {dropout}.")
        form.setdefault("negatives", "cross")
        super().__init__(check_start(lowest, lowest, highest), size, gamma, {}, **form)
        self.paired, self.rho, self.dim = True, check_rho(rho), dim
        self.lowest, self.highest = float(lowest), float(highest)
        self.temperature_range = self.lowest, self.highest
        self.networks = nn.ModuleList(
            TemperatureNetwork(dim, self.lowest, self.highest, dropout=dropout)
            for _ in range(self.state.sides)
        )

    def _temperatures(self, pairs: Pairs, slots: Tensor, alignment: Tensor) -> Tensor:
        anchors = [side[0].rows for side in pairs.sides()]
        if anchors[0].shape[1] != self.dim:
            raise ValueError(
                f"TempNet was built for embeddings of width {self.dim}, got {anchors[0].shape[1]}: "
                f"use TempNet({anchors[0].shape[1]}, …)."
            )
        nets = [self.networks[min(k, len(self.networks) - 1)] for k in range(len(anchors))]
        return torch.cat([net(rows) for net, rows in zip(nets, anchors, strict=True)])

    def _bounds(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        return at_bounds(tau, self.lowest, self.highest)
