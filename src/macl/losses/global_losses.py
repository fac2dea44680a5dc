"""SogCLR, iSogCLR, FastCLIP and TempNet: the global objective with rules for γ and τ."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl.losses.base import PairOptions
from macl.losses.global_objective import GlobalObjective, StoredTemperature, check_rho
from macl.losses.temperature import (
    Bounds,
    Fixed,
    LearnedTemperature,
    Mapped,
    StepInfo,
    Temperature,
    TrainingContext,
    check,
    check_positive,
    renamed,
)

PROTOTYPES, SHARPNESS = 256, 0.01
"""TempNet's M and the start of e^φ."""
ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


class SogCLR(GlobalObjective):
    """SogCLR, Yuan et al. 2022: small batches estimate the loss of the whole data set.

        F = mean_i τ·log mean_j exp((s_ij − s_i⁺)/τ),   j over all other samples

    The mean over j is a moving average u_i per sample. γ = 1 gives the gradient of τ·DCL.

    Args:
        temperature: τ, a number or a schedule; for a learned one see `FastCLIP`.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch in u; 0.1 to 0.99 were tuned.
        options: as `ContrastiveLoss`; by default both views, which share u. With "cross" each
            direction has its own, and the positive is part of it.
    """

    def __init__(
        self,
        temperature: float | str | Temperature = 0.1,
        *,
        size: int | None = None,
        gamma: float = 0.9,
        **options: Unpack[PairOptions],
    ) -> None:
        if isinstance(temperature, LearnedTemperature | Mapped):
            raise ValueError(
                "SogCLR needs a τ that is not learned: give a number or a schedule. ISogCLR, "
                "FastCLIP and TempNet optimize τ."
            )
        super().__init__(temperature, size, gamma, {}, **options)


class ISogCLR(GlobalObjective):
    """iSogCLR, Qiu et al. 2023: SogCLR with a temperature for each sample.

        F = mean_i τ_i·log mean_j exp((s_ij − s_i⁺)/τ_i) + ρ·τ_i
        G_i = ∂F/∂τ_i,   m_i ← (1−β)·m_i + β·clip(G_i),   τ_i ← clip(τ_i − η·m_i)

    At u = g, G = ρ − KL(P̂ ‖ uniform): samples with few hard negatives get a low τ, and ρ ≥ log K
    drives every τ to its lower bound. τ is updated in the forward pass, after the loss, by no
    optimizer. That takes one more pass over the similarities of large batches.

    Args:
        temperature: every τ_i at the start.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch in u.
        rho: ρ ≥ 0. Published: 0.4 for CIFAR-100 with 254 negatives, 6 for CC3M.
        tau_min: lower bound of τ_i.
        tau_max: upper bound of τ_i.
        beta: β in (0, 1], the weight of the new gradient.
        eta: η ≥ 0, the step size; 0 gives SogCLR.
        clip: bound of |G_i|; default 3 for both views, 5 for "cross".
        options: as `ContrastiveLoss`; by default both views, which share τ_i.
    """

    moves_temperature = True
    temperature_keys = ("tau_min", "tau_max")

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self,
        temperature: float = 0.1,
        *,
        size: int | None = None,
        gamma: float = 0.8,
        rho: float = 0.4,
        tau_min: float = 0.05,
        tau_max: float = 1.0,
        beta: float = 0.5,
        eta: float = 0.03,
        clip: float | None = None,
        **options: Unpack[PairOptions],
    ) -> None:
        bounds, start = Bounds.checked(tau_min, tau_max, temperature), float(temperature)
        super().__init__(start, size, gamma, {"tau": start, "momentum": 0.0}, **options)
        self.temperature = StoredTemperature(self.state)
        self.rho, self.bounds, self.temperature_range = check_rho(rho), bounds, bounds
        rule = "is the weight of the new gradient, above 0 and at most 1"
        self.beta = check("beta", beta, 0 < beta <= 1, rule, "The published values: 0.5 and 0.9.")
        self.eta = check("eta", eta, eta >= 0, "is a step size, 0 or more", "Published: 0.03.")
        self.clip = (5.0 if self.paired else 3.0) if clip is None else check_positive("clip", clip)

    def _next_state(self, old: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        momentum = torch.lerp(old["momentum"], gradient, self.beta)
        moved = torch.add(old["tau"], momentum, alpha=-self.eta)
        return {"tau": moved, "momentum": momentum}


class FastCLIP(GlobalObjective):
    """FastCLIP, Wei et al. 2024: g_i = mean_j exp((s_ij − s_i⁺)/τ), u_i its moving average.

        v0: log(ε + u_i), one τ learned through g       v1: the same with τ fixed
        v2: τ_i·(log(ε + u_i) + ρ), τ_i per sample      v3: τ·(log(ε + u_i) + ρ), one τ learned
        γ(e) = γ + ½(1 − γ)(1 + cos(πe/E)): 1 in epoch 0, γ from epoch E on

    The gradient is (g/u)·∇x, times τ in v2 and v3. The τ of v0 and v3 is a parameter,
    log τ: give `criterion.parameters()` to the optimizer. v0 has nothing that keeps τ from its
    lower bound once positives are nearer than negatives. v2 updates τ_i in the forward pass by
    Adam, with the number of the sample's visits as Adam's step; this takes one more pass over the
    similarities of large batches.

    Args:
        temperature: τ, or τ_i, at the start.
        size: number of samples in the data set; None takes it from `setup`.
        version: 0 to 3.
        rho: ρ ≥ 0 of v2 and v3; default 7 and 6.5. It must lie below log K of K negatives.
        gamma: γ in (0, 1] after the schedule.
        gamma_epochs: E; default half of the epochs that `setup` gives, or 18. 0 for no schedule.
        tau_min: lower bound of τ.
        tau_max: upper bound of τ.
        epsilon: ε ≥ 0.
        eta: Adam's step size in v2.
        clip: bound of |∂F/∂τ_i| in v2.
        options: as `ContrastiveLoss`; by default "cross" in both directions, each with its own u.
    """

    epoch: Tensor

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self,
        temperature: float = 0.07,
        *,
        size: int | None = None,
        version: Literal[0, 1, 2, 3] = 3,
        rho: float | None = None,
        gamma: float = 0.2,
        gamma_epochs: int | None = None,
        tau_min: float = 0.01,
        tau_max: float = 1.0,
        epsilon: float = 0.0,
        eta: float = 0.0133,
        clip: float = 5.0,
        **options: Unpack[PairOptions],
    ) -> None:
        if version not in (0, 1, 2, 3):
            raise ValueError(f"version is 0, 1, 2 or 3, got {version!r}.")
        bounds, start = Bounds.checked(tau_min, tau_max, temperature), float(temperature)
        learned = version in (0, 3)
        module: Temperature = (
            LearnedTemperature(start, tau_min, tau_max) if learned else Fixed(start)
        )
        state = {"tau": start, "first": 0.0, "second": 0.0, "visits": 0.0} if version == 2 else {}
        options.setdefault("negatives", "cross")
        super().__init__(module, size, gamma, state, **options)
        self.paired, self.version = True, version
        self.has_factor, self.moves_temperature = version >= 2, version == 2
        if version >= 2:
            self.rho = check_rho({2: 7.0, 3: 6.5}[version] if rho is None else rho)
        elif rho is not None:
            raise ValueError(f"rho belongs to versions 2 and 3, not to {version}: leave it out.")
        self.gamma_epochs = 18 if gamma_epochs is None else gamma_epochs
        rule = "counts epochs, 0 or more"
        check("gamma_epochs", self.gamma_epochs, self.gamma_epochs >= 0, rule, "0 fixes gamma.")
        self.epsilon = check("epsilon", epsilon, 0 <= epsilon < math.inf, "must be 0 or more")
        self.eta = check("eta", eta, eta >= 0, "is a step size, 0 or more")
        if version == 2:
            self.temperature = StoredTemperature(self.state)
        self.bounds, self.temperature_range = None if version == 1 else bounds, bounds
        self.clip = check_positive("clip", clip)
        self._follows_setup, self._steps_per_epoch = gamma_epochs is None, 0
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))

    def setup(self, context: TrainingContext) -> None:
        """Take the number of samples and the lengths of an epoch and of the training."""
        super().setup(context)
        self._steps_per_epoch = context.steps_per_epoch
        if self._follows_setup:
            self.gamma_epochs = max(1, context.epochs // 2)

    def advance(self, step: int) -> None:
        """Set the epoch from the number of optimizer steps taken; needs `setup`."""
        super().advance(step)
        if self._steps_per_epoch:
            self.set_epoch(step // self._steps_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, in a loop of your own."""
        self.epoch.fill_(epoch)

    def current_gamma(self) -> Tensor:
        """Scalar γ of this epoch."""
        if self.gamma_epochs == 0:
            return torch.full((), self.gamma, dtype=torch.float64, device=self.epoch.device)
        share = self.epoch.to(torch.float64).clamp(max=self.gamma_epochs) / self.gamma_epochs
        return self.gamma + 0.5 * (1 - self.gamma) * (1 + torch.cos(math.pi * share))

    def _log_gammas(self, like: Tensor) -> tuple[Tensor, Tensor]:
        gamma = self.current_gamma()
        return gamma.log().to(like.dtype), (1 - gamma).clamp(min=0).log().to(like.dtype)

    def _next_state(self, old: dict[str, Tensor], gradient: Tensor) -> dict[str, Tensor]:
        (one, two), steps = ADAM_BETAS, old["visits"] + 1
        m = torch.lerp(old["first"], gradient, 1 - one)
        v = torch.addcmul(two * old["second"], gradient, gradient, value=1 - two)
        unbiased, scale = m / (1 - one**steps), (v / (1 - two**steps)).sqrt_()
        moved = torch.addcdiv(old["tau"], unbiased, scale.add_(ADAM_EPSILON), value=-self.eta)
        return {"tau": moved, "first": m, "second": v, "visits": steps}


class TemperatureNetwork(nn.Module):
    """(n, D) unit rows → (n,) τ between `tau_min` and `tau_max`.

        a = dropout(σ(Az + c)),  p = a·Q̂ᵀ,  w = softmax(p/e^φ),  τ = tau_min + Δ·σ(o)
        o = Σ_m v_m·(w_m − 1/M)·σ(p_m) + d

    Q̂ holds M prototypes of length 1. v starts at 1, d at 0 and e^φ at 0.01.
    """

    def __init__(
        self,
        dim: int,
        tau_min: float,
        tau_max: float,
        prototypes: int = PROTOTYPES,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.tau_min, self.tau_max = tau_min, tau_max
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
        tau = self.tau_min + (self.tau_max - self.tau_min) * torch.sigmoid(o)
        return tau.to(z.dtype)


class PredictedTemperature(Temperature):
    """τ_i of each anchor, predicted from its (D,) embedding by one network, or that of its side."""

    def __init__(self, networks: list[TemperatureNetwork], dim: int) -> None:
        super().__init__()
        self.networks, self.dim = nn.ModuleList(networks), dim

    def forward(self, step: StepInfo) -> Tensor:
        """(n,) τ, with gradient to the networks."""
        rows = step.rows
        if rows.shape[1] != self.dim:
            raise ValueError(
                f"TempNet was built for embeddings of width {self.dim}, got {rows.shape[1]}: "
                f"use TempNet({rows.shape[1]}, …)."
            )
        runs = 1 if step.indices is None else step.anchors // len(step.indices)
        parts = rows.chunk(runs) if len(self.networks) > 1 else [rows]
        return torch.cat([net(part) for net, part in zip(self.networks, parts, strict=False)])


class TempNet(GlobalObjective):
    """TempNet, Qiu et al. 2024: iSogCLR's objective with τ_i predicted from the embedding.

        F = mean_i τ_i·(log u_i + ρ),   τ_i = network(sg z_i)

    One backward pass gives both gradients: the embeddings get τ·(g/u)·∇x as if τ were fixed, the
    network that of mean(sg[G_i]·τ_i), G_i = ∂F/∂τ_i. Give `criterion.parameters()` to the
    optimizer (published: Adam, learning rate 3e-5·0.9^epoch).

    Args:
        dim: D, the width of the embeddings.
        size: number of samples in the data set, for the moving averages u; None takes it from
            `setup`.
        rho: ρ ≥ 0. It must lie below log K of K negatives, or every τ falls to `tau_min`.
        gamma: γ in (0, 1], the weight of the new batch in u.
        tau_min: lower bound of τ.
        tau_max: upper bound of τ.
        dropout: published with 0.5, which makes τ random in training; 0 here.
        options: as `ContrastiveLoss`; by default "cross" in both directions, with one network
            and one u each. With negatives="both" the views share them.
    """

    temperature_keys = ("tau_min", "tau_max")

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self,
        dim: int,
        *,
        size: int | None = None,
        rho: float = 7.0,
        gamma: float = 0.8,
        tau_min: float = 0.005,
        tau_max: float = 0.05,
        dropout: float = 0.0,
        **options: Unpack[PairOptions],
    ) -> None:
        if not (isinstance(dim, int) and dim >= 1):
            raise ValueError(f"dim is the width D of the embeddings, 1 or more, got {dim!r}.")
        check("dropout", dropout, 0 <= dropout < 1, "is a probability below 1")
        options.setdefault("negatives", "cross")
        bounds = Bounds.checked(tau_min, tau_max)
        super().__init__(bounds.tau_min, size, gamma, {}, **options)
        self.paired, self.rho, self.dim = True, check_rho(rho), dim
        self.bounds, self.temperature_range = bounds, bounds
        networks = [
            TemperatureNetwork(dim, *bounds, dropout=dropout) for _ in range(self.state.sides)
        ]
        self.temperature = PredictedTemperature(networks, dim)
