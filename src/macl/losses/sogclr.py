"""SogCLR and iSogCLR: the global contrastive objective, with one τ or one per sample."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from macl.losses.contrastive import Form
from macl.losses.global_objective import Averages, GlobalObjective
from macl.losses.global_state import Visits
from macl.losses.pairs import Pairs
from macl.losses.temperature import LearnedTemperature, Mapped, Temperature, check_positive

if TYPE_CHECKING:
    from typing_extensions import Unpack


class SogCLR(GlobalObjective):
    """SogCLR, Yuan et al. 2022: small batches estimate the loss of the whole data set.

        F = mean_i τ·log mean_j exp((s_ij − s_i⁺)/τ),   j over all other samples

    The mean over j is a moving average u_i per sample. γ = 1 gives the gradient of τ·DCL.

    Args:
        temperature: τ, a number or a schedule; for a learned one see `FastCLIP`.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch in u; 0.1 to 0.99 were tuned.
        form: as `ContrastiveLoss`; by default both views, which share u. With "cross" each
            direction has its own, and the positive is part of it.
    """

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        *,
        size: int | None = None,
        gamma: float = 0.9,
        **form: Unpack[Form],
    ) -> None:
        if isinstance(temperature, LearnedTemperature | Mapped):
            raise ValueError(
                "SogCLR needs a τ that is not learned: give a number or a schedule. ISogCLR, "
                "FastCLIP and TempNet optimise τ."
            )
        super().__init__(temperature, size, gamma, {}, **form)


class ISogCLR(GlobalObjective):
    """iSogCLR, Qiu et al. 2023: SogCLR with a temperature for each sample.

        F = mean_i τ_i·log mean_j exp((s_ij − s_i⁺)/τ_i) + ρ·τ_i
        G_i = ∂F/∂τ_i,   m_i ← (1−β)·m_i + β·clip(G_i),   τ_i ← clip(τ_i − η·m_i)

    At u = g, G = ρ − KL(P̂ ‖ uniform): samples with few hard negatives get a low τ, and ρ ≥ log K
    drives every τ to its lower bound. τ is updated in the forward pass, after the loss, by no
    optimiser. That takes one more pass over the similarities of large batches.

    Args:
        temperature: every τ_i at the start.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch in u.
        rho: ρ ≥ 0. Published: 0.4 for CIFAR-100 with 254 negatives, 6 for CC3M.
        lowest: lower bound of τ_i.
        highest: upper bound of τ_i.
        beta: β in (0, 1], the weight of the new gradient.
        eta: η ≥ 0, the step size; 0 gives SogCLR.
        clip: bound of |G_i|; default 3 for both views, 5 for "cross".
        form: as `ContrastiveLoss`; by default both views, which share τ_i.
    """

    moves_temperature = True
    temperature_keys = ("lowest", "highest")

    def __init__(
        self,
        temperature: float = 0.1,
        *,
        size: int | None = None,
        gamma: float = 0.8,
        rho: float = 0.4,
        lowest: float = 0.05,
        highest: float = 1.0,
        beta: float = 0.5,
        eta: float = 0.03,
        clip: float | None = None,
        **form: Unpack[Form],
    ) -> None:
        start = check_start(temperature, lowest, highest)
        super().__init__(start, size, gamma, {"tau": start, "momentum": 0.0}, **form)
        self.rho = check_rho(rho)
        self.lowest, self.highest = float(lowest), float(highest)
        self.temperature_range = self.lowest, self.highest
        if not 0 < beta <= 1:
            raise ValueError(
                f"beta is the weight of the new gradient, above 0 and at most 1, got {beta}. The "
                "published values are 0.5 and 0.9."
            )
        if not eta >= 0:
            raise ValueError(f"eta is a step size, 0 or more, got {eta}. Published: 0.03.")
        self.beta, self.eta = float(beta), float(eta)
        self.clip = (5.0 if self.paired else 3.0) if clip is None else check_positive("clip", clip)

    def _temperatures(self, pairs: Pairs, slots: Tensor, alignment: Tensor) -> Tensor:
        return self.state.read("tau", slots, alignment)

    def _bounds(self, tau: Tensor) -> tuple[Tensor, Tensor]:
        return at_bounds(tau, self.lowest, self.highest)

    def _update(self, visits: Visits, averages: Averages) -> None:
        gradient, valid = self._mean_gradients(visits, averages)
        slots = visits.slots
        tau = self.state.read("tau", slots, gradient)
        before = self.state.read("momentum", slots, gradient)
        momentum = torch.lerp(before, gradient.clamp(-self.clip, self.clip), self.beta)
        moved = torch.add(tau, momentum, alpha=-self.eta).clamp_(self.lowest, self.highest)
        self.state.replace("momentum", slots, momentum, before, valid)
        self.state.replace("tau", slots, moved, tau, valid)


def check_start(temperature: float, lowest: float, highest: float) -> float:
    """The first τ, if it lies within its bounds."""
    lowest, highest = check_positive("lowest", lowest), check_positive("highest", highest)
    if not lowest <= check_positive("temperature", temperature) <= highest:
        raise ValueError(
            f"the initial temperature {temperature} must lie between lowest ({lowest}) and highest "
            f"({highest})."
        )
    return float(temperature)


def check_rho(rho: float) -> float:
    """ρ, if it is 0 or more."""
    if not 0 <= rho < float("inf"):
        raise ValueError(
            f"rho is the price of a high temperature, 0 or more, got {rho}. Published values: 0.4 "
            "for small batches, 6 to 16 for large ones; it must lie below log K of K negatives."
        )
    return float(rho)


def at_bounds(tau: Tensor, lowest: float, highest: float) -> tuple[Tensor, Tensor]:
    """Which τ lie at the lower bound, and which at either; to float32's precision."""
    low = tau <= lowest * (1 + 1e-6)
    return low, low | (tau >= highest * (1 - 1e-6))
