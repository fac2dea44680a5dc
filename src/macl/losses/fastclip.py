"""FastCLIP: the global objective with a schedule of γ and four rules for the temperature."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import torch
from torch import Tensor

from macl.losses.context import TrainingContext
from macl.losses.contrastive import Form
from macl.losses.global_objective import Averages, GlobalObjective
from macl.losses.global_state import Visits
from macl.losses.pairs import Pairs
from macl.losses.sogclr import at_bounds, check_rho, check_start
from macl.losses.temperature import Fixed, LearnedTemperature, Temperature, check_positive

if TYPE_CHECKING:
    from typing_extensions import Unpack

ADAM_BETAS, ADAM_EPSILON = (0.9, 0.999), 1e-8


class FastCLIP(GlobalObjective):
    """FastCLIP, Wei et al. 2024: g_i = mean_j exp((s_ij − s_i⁺)/τ), u_i its moving average.

        v0: log(ε + u_i), one τ learned through g       v1: the same with τ fixed
        v2: τ_i·(log(ε + u_i) + ρ), τ_i per sample      v3: τ·(log(ε + u_i) + ρ), one τ learned
        γ(e) = γ + ½(1 − γ)(1 + cos(πe/E)): 1 in epoch 0, γ from epoch E on

    The gradient is (g/u)·∇x, times τ in v2 and v3. The τ of v0 and v3 is a parameter,
    log τ: give `criterion.parameters()` to the optimiser. v0 has nothing that keeps τ from its
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
        lowest: lower bound of τ.
        highest: upper bound of τ.
        epsilon: ε ≥ 0.
        eta: Adam's step size in v2.
        clip: bound of |∂F/∂τ_i| in v2.
        form: as `ContrastiveLoss`; by default "cross" in both directions, each with its own u.
    """

    epoch: Tensor
    log_gammas: Tensor
    """log γ and log(1 − γ) of this epoch."""

    def __init__(
        self,
        temperature: float = 0.07,
        *,
        size: int | None = None,
        version: Literal[0, 1, 2, 3] = 3,
        rho: float | None = None,
        gamma: float = 0.2,
        gamma_epochs: int | None = None,
        lowest: float = 0.01,
        highest: float = 1.0,
        epsilon: float = 0.0,
        eta: float = 0.0133,
        clip: float = 5.0,
        **form: Unpack[Form],
    ) -> None:
        if version not in (0, 1, 2, 3):
            raise ValueError(f"version is 0, 1, 2 or 3, got {version!r}.")
        start = check_start(temperature, lowest, highest)
        learned = version in (0, 3)
        module: Temperature = (
            LearnedTemperature(start, lowest, highest) if learned else Fixed(start)
        )
        state = {"tau": start, "first": 0.0, "second": 0.0, "visits": 0.0} if version == 2 else {}
        form.setdefault("negatives", "cross")
        super().__init__(module, size, gamma, state, **form)
        self.paired, self.version, self.moves_temperature = True, version, version == 2
        if version >= 2:
            self.rho = check_rho({2: 7.0, 3: 6.5}[version] if rho is None else rho)
        elif rho is not None:
            raise ValueError(f"rho belongs to versions 2 and 3, not to {version}: leave it out.")
        if gamma_epochs is not None and gamma_epochs < 0:
            raise ValueError(
                f"gamma_epochs counts epochs, 0 or more, got {gamma_epochs}. 0 fixes gamma."
            )
        if not (epsilon >= 0 and math.isfinite(epsilon)):
            raise ValueError(f"epsilon must be 0 or more, got {epsilon}.")
        if not eta >= 0:
            raise ValueError(f"eta is a step size, 0 or more, got {eta}.")
        self.lowest, self.highest, self.epsilon = float(lowest), float(highest), float(epsilon)
        self.temperature_range = self.lowest, self.highest
        self.eta, self.clip = float(eta), check_positive("clip", clip)
        self.gamma_epochs = 18 if gamma_epochs is None else gamma_epochs
        self._follows_setup, self._steps_per_epoch = gamma_epochs is None, 0
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64))
        self.register_buffer("log_gammas", torch.zeros(2, dtype=torch.float64), persistent=False)
        self.register_load_state_dict_post_hook(_follow_loaded)
        self._follow_epoch()

    def setup(self, context: TrainingContext) -> None:
        """Take the number of samples and the lengths of an epoch and of the training."""
        super().setup(context)
        self._steps_per_epoch = context.steps_per_epoch
        if self._follows_setup:
            self.gamma_epochs = max(1, context.epochs // 2)
        self._follow_epoch()

    def advance(self, step: int) -> None:
        """Set the epoch from the number of optimiser steps taken; needs `setup`."""
        super().advance(step)
        if self._steps_per_epoch:
            self.set_epoch(step // self._steps_per_epoch)

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, from 0, in a loop of your own."""
        self.epoch.fill_(epoch)
        self._follow_epoch()

    def current_gamma(self) -> Tensor:
        """Scalar γ of this epoch."""
        if self.gamma_epochs == 0:
            return torch.full((), self.gamma, dtype=torch.float64, device=self.epoch.device)
        share = self.epoch.to(torch.float64).clamp(max=self.gamma_epochs) / self.gamma_epochs
        return self.gamma + 0.5 * (1 - self.gamma) * (1 + torch.cos(math.pi * share))

    def _follow_epoch(self) -> None:
        """log γ and log(1 − γ): once per epoch, not in every step."""
        gamma = self.current_gamma()
        self.log_gammas.copy_(torch.stack([gamma, (1 - gamma).clamp(min=0)]).log())

    def _log_gammas(self, like: Tensor) -> tuple[Tensor, Tensor]:
        log_new, log_old = self.log_gammas.to(like.dtype).unbind(0)
        return log_new, log_old

    def _temperatures(self, pairs: Pairs, slots: Tensor, alignment: Tensor) -> Tensor:
        if self.version == 2:
            return self.state.read("tau", slots, alignment)
        return super()._temperatures(pairs, slots, alignment)

    def _bounds(self, tau: Tensor) -> tuple[Tensor, Tensor] | None:
        return None if self.version == 1 else at_bounds(tau, self.lowest, self.highest)

    def _loss_of(self, averages: Averages) -> tuple[Tensor, Tensor, Tensor | None]:
        if self.version >= 2:
            return super()._loss_of(averages)
        return averages.log_u, averages.ratio, None

    def _update(self, visits: Visits, averages: Averages) -> None:
        if self.version != 2:
            return
        gradient, valid = self._mean_gradients(visits, averages)
        slots = visits.slots
        gradient = gradient.clamp(-self.clip, self.clip)
        tau, first, second, before = (
            self.state.read(name, slots, gradient) for name in ("tau", "first", "second", "visits")
        )
        one, two = ADAM_BETAS
        steps = before + 1
        m = torch.lerp(first, gradient, 1 - one)
        v = torch.addcmul(two * second, gradient, gradient, value=1 - two)
        unbiased, scale = m / (1 - one**steps), (v / (1 - two**steps)).sqrt_()
        moved = torch.addcdiv(tau, unbiased, scale.add_(ADAM_EPSILON), value=-self.eta)
        moved.clamp_(self.lowest, self.highest)
        new = {"tau": (moved, tau), "first": (m, first), "second": (v, second)}
        for name, (after, old) in {**new, "visits": (steps, before)}.items():
            self.state.replace(name, slots, after, old, valid)


def _follow_loaded(loss: FastCLIP, _: object) -> None:
    loss._follow_epoch()
