"""Losses of the whole data set: moving averages u_i of each sample's negatives.

With K negatives, g = (1/K)·Σ_j exp(s_j/τ) of the batch estimates the mean over the data set. Its
logarithm is biased, so a moving average u_i of g takes its place (Yuan et al. 2022):

    log u ← logaddexp(log(1−γ) + log u, log γ + log g),   u = g at a sample's first visit
    gradient:  (g/u)·τ·∇(log g) − ∇s⁺       value:  τ·log u − s⁺

Where the views are two modalities ("cross") the positive is part of g, exp((s_j − s⁺)/τ), and the
gradient is (g/u)·τ·∇x. g/u ≤ 1/γ, so nothing overflows.
"""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from macl.losses.concerns import Acting, Concern
from macl.losses.context import TrainingContext
from macl.losses.contrastive import ContrastiveLoss, Form
from macl.losses.global_state import SampleState, Visits
from macl.losses.inputs import Inputs, Terms
from macl.losses.known import known
from macl.losses.logits import Logits
from macl.losses.negative_sums import margin, parts
from macl.losses.pairs import Pairs
from macl.losses.temperature import Temperature

if TYPE_CHECKING:
    from typing_extensions import Unpack


AT_BOUND = 0.5
"""Share of anchors at a bound of τ from which on most temperatures are set by it."""


class Averages(NamedTuple):
    """What a batch says about its anchors, (n,) each, detached."""

    tau: Tensor
    """τ, a scalar or one per anchor."""
    mean: Tensor | None
    """Σ_j P̂_j·l_j, l = s_j/τ, or (s_j − s⁺)/τ where g has the positive; where τ moves by it."""
    log_u: Tensor
    """log(ε + u), with u after this batch."""
    price: Tensor
    """log(ε + u) + ρ."""
    ratio: Tensor
    """g/u."""
    counted: Tensor | None
    """1 where the anchor has negatives, else 0; None where all have."""


class GlobalObjective(ContrastiveLoss):
    """Base of the losses with a moving average per sample.

    State changes in training mode only, once per call, after the loss was computed; it is the same
    on every rank. A sample that occurs more than once in a batch counts with the mean.

    Args:
        temperature: τ or the module that gives it.
        size: number of samples in the data set; None takes it from `setup`.
        gamma: γ in (0, 1], the weight of the new batch.
        state: further numbers per sample and their start.
        form: as `ContrastiveLoss`.
    """

    takes_indices: ClassVar[bool] = True
    scales_with_temperature: ClassVar[bool] = True
    moves_temperature: bool = False
    """Whether `_update` needs `_mean_gradients`."""
    rho: float = 0.0
    """ρ, the price of a high temperature where τ is optimised."""
    epsilon: float = 0.0
    """ε added to u. In logarithms nothing needs it."""

    def __init__(
        self,
        temperature: float | Temperature,
        size: int | None,
        gamma: float,
        state: dict[str, float],
        **form: Unpack[Form],
    ) -> None:
        super().__init__(temperature, **form)
        name = type(self).__name__
        if size is not None and not (isinstance(size, int) and size >= 1):
            raise ValueError(
                f"size is the number of samples in the data set, 1 or more, got {size!r}: use "
                f"{name}(size=len(dataset))."
            )
        if not 0 < gamma <= 1:
            raise ValueError(
                f"gamma is the weight of the new batch in the moving average, above 0 and at most "
                f"1, got {gamma}. Published values: 0.2 to 0.9; 1 keeps no average."
            )
        self.paired = self.negatives == "cross"
        sides = 2 if self.paired and self.symmetric else 1
        self.gamma = float(gamma)
        self.state = SampleState(size or 0, sides, log_u=-math.inf, **state)
        self._compared = False

    def setup(self, context: TrainingContext) -> None:
        """Take the number of samples, or compare it with the given one."""
        super().setup(context)
        if self.state.size == 0:
            self.state.resize(context.samples)
        elif self.state.size != context.samples:
            raise ValueError(
                f"the loss was built for size={self.state.size} samples and the data set has "
                f"{context.samples}: set size={context.samples}, or leave it out."
            )

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """τ·(x − log K), the loss of samples that are seen for the first time."""
        assert isinstance(logits, Tensor)
        alone = pairs.count == 0
        value = logits * (x - pairs.count.clamp(min=1).log())
        return value.masked_fill(alone, 0.0)

    def _temperatures(self, pairs: Pairs, slots: Tensor, alignment: Tensor) -> Tensor:
        """τ, a scalar or (n,) one per anchor."""
        tau = self.temperature(alignment)
        assert isinstance(tau, Tensor)
        return tau

    def _log_gammas(self, like: Tensor) -> tuple[Tensor | float, Tensor | float]:
        """log γ and log(1 − γ)."""
        rest = 1 - self.gamma
        return math.log(self.gamma), math.log(rest) if rest > 0 else -math.inf

    def _loss_of(self, averages: Averages) -> tuple[Tensor, Tensor, Tensor | None]:
        """(n,) value without −s⁺, (n,) its derivative to log g and, where τ is learned, to τ.

        Here τ·(log u + ρ). The embeddings get τ·(g/u)·∇log g, and a τ that needs a gradient
        G = log u + ρ − (g/u)·Σ_j P̂_j·l_j, whose last part comes through log g(τ).
        """
        return averages.price * averages.tau, averages.ratio * averages.tau, averages.price

    def _update(self, visits: Visits, averages: Averages) -> None:
        """Store what else changes with a batch; called in training mode, without autograd."""

    def _bounds(self, tau: Tensor) -> tuple[Tensor, Tensor] | None:
        """Which anchors' τ lie at the lower and at either bound; None where there is none."""
        return None

    def concerns(self, acting: Acting) -> list[Concern]:
        """ρ that is not below log K; most of the temperatures at a bound."""
        bounds = self._bounds(acting.temperature)
        if bounds is None or not acting.negatives.any():
            return []
        low, either = (share.double().mean().item() for share in bounds)
        log_k = math.log(acting.negatives.median().item())
        evidence = {"rho": self.rho, "log_k": log_k, "at_lowest": low, "at_bound": either}
        if self.rho > 0 and self.rho >= log_k:
            return [
                Concern(
                    f"ρ = {self.rho:g} is not below log K = {log_k:.2f}, which drives every τ to "
                    f"its lower bound; {low:.0%} of the anchors are there",
                    f"Lower loss.rho below {log_k:.2f}, or contrast with more negatives.",
                    "∂F/∂τ = ρ − KL(P̂ ‖ uniform) at u = g, and KL is at most log K.",
                    evidence,
                )
            ]
        if either > AT_BOUND:
            return [
                Concern(
                    f"τ is at one of its bounds for {either:.0%} of the anchors",
                    "Change loss.lowest and loss.highest, or loss.rho: a higher ρ lowers τ.",
                    "There the bound, and not the sample, sets the temperature.",
                    evidence,
                )
            ]
        return []

    def _terms(self, pairs: Pairs, alignment: Tensor, inputs: Inputs, figures: bool) -> Terms:
        indices, distinct = self._indices(inputs)
        anchors = sum(len(side[0].rows) for side in pairs.sides())
        slots = self.state.slots(indices, anchors)
        tau = self._temperatures(pairs, slots, alignment)
        self._warn_of_rho(pairs, inputs)
        positive, mean, moves = None, None, self.training and self.moves_temperature
        if self.paired and not moves:
            inner = margin(pairs, tau)
        else:
            lse, positive, mean = parts(pairs, tau, moves)
            inner = lse - positive if self.paired else lse
        with torch.no_grad():
            counted = None if pairs.complete else (pairs.count > 0).to(inner.dtype)
            log_g = inner - pairs.log_count()
            if counted is not None:
                log_g = log_g.masked_fill(counted == 0, 0.0)
            log_u = self._moved(slots, log_g)
            raised = log_u
            if self.epsilon > 0:
                raised = torch.logaddexp(log_u, torch.full_like(log_u, math.log(self.epsilon)))
            if self.paired and mean is not None and positive is not None:
                mean = mean - positive
            price, ratio = raised + self.rho if self.rho else raised, torch.exp(log_g - raised)
            averages = Averages(tau.detach(), mean, raised, price, ratio, counted)
            value, slope, slope_of_tau = self._loss_of(averages)
            slopes = [(inner, slope)]
            if not self.paired and positive is not None:  # −s⁺ = −τ·l⁺
                value = torch.addcmul(value, averages.tau, positive, value=-1)
                slopes.append((positive, -averages.tau))
            if tau.requires_grad and slope_of_tau is not None:
                slopes.append((tau, slope_of_tau))
        per_anchor = known(value, *slopes)
        if counted is not None:
            per_anchor = per_anchor * counted
        if self.training:
            with torch.no_grad():
                per_slot = self.state.anchors_per_slot(indices, anchors) if distinct else 0
                visits = Visits(slots, per_slot)
                self._store_log_u(visits, log_u, counted)
                self._update(visits, averages)
        own, floored, x = {}, None, None
        if figures:
            x = inner.detach() if self.paired or positive is None else (inner - positive).detach()
            own = {"log_u": averages.log_u.mean(), "negative_ratio": averages.ratio.mean()}
            if (bounds := self._bounds(tau.detach())) is not None:
                floored = bounds[0].any()
                own["at_bound"] = bounds[1].to(x.dtype).mean()
        return Terms(tau, x, per_anchor, floored=floored, own=own)

    def _moved(self, slots: Tensor, log_g: Tensor) -> Tensor:
        """(n,) log u of each anchor after this batch; log g at a sample's first visit."""
        before = self.state.read("log_u", slots, log_g)
        log_new, log_old = self._log_gammas(log_g)
        moved = torch.logaddexp(before + log_old, log_g + log_new)
        return torch.where(before > -math.inf, moved, log_g)

    def _store_log_u(self, visits: Visits, log_u: Tensor, counted: Tensor | None) -> None:
        new = visits.log_mean_exp(*visits.gathered(log_u, counted))
        if counted is not None:
            old = self.state.read("log_u", visits.slots, new)
            new = torch.where(new.isfinite(), new, old)
        self.state.write("log_u", visits.slots, new)

    def _mean_gradients(self, visits: Visits, averages: Averages) -> tuple[Tensor, Tensor | None]:
        """∂F/∂τ of each of the visited slots, and whether any anchor gave one; None: all did.

        G = log u + ρ − (g/u)·Σ_j P̂_j·l_j
        """
        assert averages.mean is not None
        gradient = torch.addcmul(averages.price, averages.ratio, averages.mean, value=-1)
        gradient, counted = visits.gathered(gradient, averages.counted)
        if counted is None:
            return visits.mean(gradient, None), None
        valid = visits.mean(torch.ones_like(counted), counted) > 0
        return visits.mean(gradient, counted), valid

    def _warn_of_rho(self, pairs: Pairs, inputs: Inputs) -> None:
        """Once, for the first batch: a short last one is no reason."""
        if self._compared or self.rho == 0 or not self.checks(inputs.z1):
            return
        self._compared = True
        most = float(pairs.count.max())
        if most > 0 and self.rho >= math.log(most):
            warnings.warn(
                f"rho = {self.rho:g} is not below log K = {math.log(most):.2f} of the batch's "
                f"K = {most:.0f} negatives, so every temperature falls to its lower bound. Lower "
                "rho, or use a larger batch.",
                stacklevel=2,
            )

    def _indices(self, inputs: Inputs) -> tuple[Tensor, bool]:
        """(N,) positions, checked, and whether they are known to be distinct."""
        name, indices, n = type(self).__name__, inputs.indices, len(inputs.z1)
        if indices is None:
            raise ValueError(
                f"{name} keeps state per sample: pass indices=(N,), the positions of the batch's "
                "samples in the data set."
            )
        if indices.shape != (n,) or indices.is_floating_point() or indices.dtype == torch.bool:
            raise ValueError(
                f"indices holds one integer per pair, ({n},), got {indices.dtype} "
                f"{tuple(indices.shape)}."
            )
        if self.state.size == 0:
            raise ValueError(
                f"{name} does not know the size of the data set: use {name}(size=len(dataset)), or "
                "call setup(context) before training."
            )
        distinct = False
        if self.checks(indices):
            order = indices.sort().values
            least, most = int(order[0]), int(order[-1])
            distinct = not bool((order[1:] == order[:-1]).any())
            if least < 0 or most >= self.state.size:
                raise ValueError(
                    f"indices go from {least} to {most}, outside the data set of "
                    f"{self.state.size} samples (0 to {self.state.size - 1}): use positions in the "
                    f"data set, or a larger size."
                )
        return indices.to(device=inputs.z1.device, dtype=torch.int64), distinct
