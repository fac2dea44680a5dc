"""The family: InfoNCE, NT-Xent, DCL, DCLW, FlatNCE, Dual temperature, HCL, MACL; DySTreSS and the
temperature-free loss, with a map in place of s/τ; SupCon, with labels; SigLIP, pair by pair.
"""

from __future__ import annotations

import math
import warnings
from typing import Any, Literal, Unpack

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses import objectives
from macl.losses.base import ContrastiveLoss, PairOptions
from macl.losses.build import Inputs, Positives
from macl.losses.objectives import softplus
from macl.losses.ops.maps import (
    CosineTemperature,
    InverseTanh,
    LogitMap,
    Logits,
    ShiftedCosineTemperature,
    logit,
    sharpened,
)
from macl.losses.ops.tiled import Values
from macl.losses.output import ConfigWarning, LossBehavior, LossOutput, Terms
from macl.losses.pairs import Pairs
from macl.losses.temperature import (
    AlignmentAdaptive,
    Bounds,
    StepInfo,
    Temperature,
    as_temperature,
    check,
    check_positive,
    renamed,
)

AnyTemperature = float | str | Temperature | LogitMap
BALANCE = 10.0
"""Ratio of repulsion and attraction above which SigLIP's b is far from balance."""
MONOTONE = 4.5
"""s/τ(s) of DySTreSS' unshifted form increases everywhere only if tau_max < 4.5·tau_min."""


class InfoNCE(ContrastiveLoss):
    """InfoNCE, van den Oord et al. 2018 (Eq. 1): softplus(x) over the other view's rows."""

    pair_function: str | None = "softplus"

    def __init__(self, temperature: AnyTemperature = 0.1, **options: Unpack[PairOptions]) -> None:
        options.setdefault("negatives", "cross")
        super().__init__(temperature, **options)


class NTXent(ContrastiveLoss):
    """NT-Xent, Chen et al. 2020 (SimCLR): InfoNCE with negatives from both views."""

    pair_function: str | None = "softplus"


class DCL(ContrastiveLoss):
    """Decoupled contrastive learning, Yeh et al. 2022: x itself."""

    bounds_temperature = False
    pair_function: str | None = "identity"


class DCLW(ContrastiveLoss):
    """DCL with its positive term weighted by w_i = 2 − N·softmax_i(s⁺/σ), Yeh et al. 2022.

    Args:
        temperature: τ.
        sigma: σ of the von Mises–Fisher weight; 0.5 in the paper.
        options: as `ContrastiveLoss`.
    """

    bounds_temperature = False

    def __init__(
        self, temperature: AnyTemperature = 0.1, sigma: float = 0.5, **options: Unpack[PairOptions]
    ) -> None:
        super().__init__(temperature, **options)
        hint = "The DCL paper uses 0.5."
        self.sigma = check("sigma", sigma, sigma > 0, "must be positive", hint)

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """LSE − w·s⁺/τ, the mean of e^{s⁺/σ} being over the global batch."""
        raised = torch.exp((pairs.positive - 1) / self.sigma)
        weight = 2 - raised / distributed.global_mean(raised)
        assert values.positive is not None
        weighted = torch.addcmul(values.lse, weight, values.positive, value=-1)
        return objectives.objective("identity", weighted, pairs.complete)


class FlatNCE(ContrastiveLoss):
    """FlatNCE, Chen et al. 2021: value 1, gradient ∇x. Watch `contrast(...).info_nce`."""

    bounds_temperature = False
    pair_function: str | None = "one"


class DualTemperature(ContrastiveLoss):
    """Dual temperature, Zhang et al. 2022: InfoNCE with the gradient scale of τ_β.

    Args:
        temperature: τ.
        beta: τ_β = beta·τ; 10 in the paper.
        options: as `ContrastiveLoss`.
    """

    def __init__(
        self, temperature: AnyTemperature = 0.1, beta: float = 10.0, **options: Unpack[PairOptions]
    ) -> None:
        super().__init__(temperature, **options)
        hint = "The paper's ratio is 10."
        self.beta = check("beta", beta, beta > 0, "must be positive", hint)

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """sg[W(τ_β)/W(τ)]·softplus(x)."""
        with torch.no_grad():
            x_beta = pairs.margin(sharpened(logits, 1 / self.beta))
        return objectives.dual(values.margin, x_beta, pairs.complete)


class HCL(ContrastiveLoss):
    """Hard-negative sampling with debiasing, Robinson et al. 2021.

    Args:
        temperature: τ; 0.5 in the paper.
        beta: concentration on hard negatives; 0 gives debiased InfoNCE.
        tau_plus: τ⁺, the share of false negatives to subtract; 0 for none.
        options: as `ContrastiveLoss`.
    """

    shows_statistics = False

    def __init__(
        self,
        temperature: AnyTemperature = 0.5,
        beta: float = 1.0,
        tau_plus: float = 0.1,
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(temperature, **options)
        rule, hint = "is a probability below 1", "The paper uses 0.1."
        self.beta = check("beta", beta, beta >= 0, "must be 0 or more", "The paper uses 0.5 to 2.")
        self.tau_plus = check("tau_plus", tau_plus, 0 <= tau_plus < 1, rule, hint)

    def terms(self, pairs: Pairs, step: StepInfo, inputs: Inputs) -> Terms:
        """x at τ itself is a metric only, one more pass over the similarities: when asked for."""
        logits = self.temperature(step)
        return Terms(logits, self.objective_of(pairs, logits), lambda: pairs.margin(logits))

    def objective_of(self, pairs: Pairs, logits: Logits) -> Tensor:
        """(n,) from a pass at (1 + β)/τ, and one at β/τ."""
        return self.objective(pairs, logits, pairs.evaluate(sharpened(logits, 1 + self.beta)))

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """softplus(log Ng − s⁺/τ) with HCL's reweighted, debiased negative term Ng.

        `values` is at (1 + β)/τ.
        """
        assert values.positive is not None
        positive = values.positive / (1 + self.beta)
        soft = (
            pairs.count.log() if self.beta == 0 else pairs.logsumexp(sharpened(logits, self.beta))
        )
        least = logit(torch.full((), -1.0, dtype=positive.dtype, device=positive.device), logits)
        x = objectives.debiased_margin(
            values.lse, soft, positive, pairs.count, self.tau_plus, least
        )
        if not pairs.complete:
            x = torch.where(pairs.count > 0, x, -math.inf)
        return objectives.objective("softplus", x, pairs.complete)


class MACL(ContrastiveLoss):
    """Model-aware contrastive learning, Huang et al. 2023: adaptive temperature and reweighting.

        τ_a = τ₀·[1 + α·(A − A₀)],   L_i = −sg[1/W_i]·log P_i   at τ_a

    Args:
        temperature: τ₀; or a `Temperature` or "auto", in place of the rule with α and A₀.
        alpha: α, how strongly τ follows the alignment A; 0 fixes it.
        threshold: A₀, the alignment at which τ_a = τ₀.
        reweight: divide by the gradient scale W_i (the answer to gradient reduction).
        floor: lower bound of τ_a; default τ₀/10. It acts only for α > 1 or thresholds near 1.
        options: as `ContrastiveLoss`.
    """

    def __init__(
        self,
        temperature: float | str | Temperature = 0.1,
        alpha: float = 0.5,
        threshold: float = 0.0,
        *,
        reweight: bool = True,
        floor: float | None = None,
        **options: Unpack[PairOptions],
    ) -> None:
        if isinstance(temperature, Temperature | str):
            module = as_temperature(temperature, carries_w=not reweight)
        else:
            module = AlignmentAdaptive(temperature, alpha, threshold, floor)
        super().__init__(module, **options)
        self.reweight = reweight
        self.pair_function = "nll_over_scale" if reweight else "softplus"


class DySTreSS(NTXent):
    """DySTreSS, Manna et al. 2023: InfoNCE with a temperature for each pair, by its similarity.

        l = s / sg[τ(s)],   τ(s) = tau_min + (tau_max − tau_min)·sin²(πs/2)

    Positives too. τ is `tau_min` at s = 0 and `tau_max` at s = ±1.

    Args:
        tau_min: τ of unrelated pairs. Published: [0.1, 0.2] for ImageNet, [0.07, 0.2] for CIFAR.
        tau_max: τ of equal and of opposite pairs.
        shift: c of the shifted form, published for sentences with [0.04, 0.05], c = 0.4: τ is
            `tau_max` for s > c and tau_min + ½Δ(1 + cos(π(s − c)/k)) below.
        width: k of the shifted form; 0.7 if only `shift` is given.
        options: as `ContrastiveLoss`.
    """

    temperature_keys = ("tau_min", "tau_max")

    @renamed(lowest="tau_min", highest="tau_max")
    def __init__(
        self,
        tau_min: float = 0.1,
        tau_max: float = 0.2,
        *,
        shift: float | None = None,
        width: float | None = None,
        **options: Unpack[PairOptions],
    ) -> None:
        tau_min, tau_max = Bounds.checked(tau_min, tau_max)
        if shift is None:
            if width is not None:
                raise ValueError("width belongs to the shifted form: give shift too.")
            super().__init__(CosineTemperature(tau_min, tau_max), **options)
            monotone = tau_max < MONOTONE * tau_min
        else:
            width = 0.7 if width is None else width
            rule, hint = "is a cosine similarity between -1 and 1", "The published one is 0.7."
            shift = check("shift", shift, -1 <= shift <= 1, rule)
            width = check("width", width, width > 0, "must be positive", hint)
            map = ShiftedCosineTemperature(tau_min, tau_max, shift, width)
            super().__init__(map, **options)
            logits = map.value(torch.linspace(-1, 1, 4001, dtype=torch.float64))
            monotone = bool((logits.diff() > 0).all())
        self.tau_min, self.tau_max, self.monotone = tau_min, tau_max, monotone
        self.temperature_range = tau_min, tau_max
        for warning in self.config_warnings(None):
            warnings.warn(f"{warning.state}. {warning.change}", stacklevel=2)

    def config_warnings(self, behavior: LossBehavior | None) -> list[ConfigWarning]:
        """Logits that do not increase with the similarity."""
        if self.monotone:
            return []
        return [
            ConfigWarning(
                "the logit s/τ(s) does not increase everywhere, so that a more similar pair can "
                "count as less similar",
                f"Bring loss.tau_min ({self.tau_min:g}) and loss.tau_max ({self.tau_max:g}) closer "
                f"together; unshifted, tau_max below {MONOTONE}·tau_min is enough.",
                "The order of the negatives' weights is then not that of their similarities.",
                {"tau_min": self.tau_min, "tau_max": self.tau_max},
            )
        ]


class TemperatureFree(NTXent):
    """Temperature-free InfoNCE, Kim and Kim 2025: l = log((1 + s)/(1 − s)) = 2·artanh s.

    There is nothing to tune. The slope of the logit, 2/(1 − s²), grows without bound near s = ±1:
    positives that are nearly equal keep their gradient, and so do negatives, so that embeddings
    that all start in one direction get very large gradients. At ±1 exactly, logit and gradient are
    those of the nearest number inside.

    Args:
        options: as `ContrastiveLoss`.
    """

    temperature_keys = ()
    temperature_range = 0.005, 0.5
    """1/g'(s) = (1 − s²)/2, from a similarity of 0.995 on."""

    def __init__(self, **options: Unpack[PairOptions]) -> None:
        super().__init__(InverseTanh(), **options)


class SupCon(ContrastiveLoss):
    """Supervised contrastive loss, Khosla et al. 2020, over the positives p of each anchor.

        out:  L_i = −(1/|P|)·Σ_p log P_ip = logsumexp_all − mean_p s_ip/τ
        in:   L_i = −log((1/|P|)·Σ_p P_ip) = log|P| + softplus(logsumexp_neg − logsumexp_pos)

    P_ip is the softmax over all other rows, positives included; in ≤ out. Without labels every
    pair is its own class, which gives NT-Xent. An anchor without positives (one view, a class with
    one row) does not enter the mean.

    Args:
        temperature: τ. The published code also multiplies the loss by τ/0.07; this one does not.
        variant: "out" (the paper's choice) or "in".
        options: as `ContrastiveLoss`; by default both views.
    """

    takes_labels = True
    pair_function = "softplus"
    shows_statistics = False

    @renamed(form="variant")
    def __init__(
        self,
        temperature: float | str | Temperature = 0.1,
        variant: Literal["out", "in"] = "out",
        **options: Unpack[PairOptions],
    ) -> None:
        super().__init__(temperature, **options)
        if variant not in ("out", "in"):
            raise ValueError(f'variant is "out" or "in", got {variant!r}.')
        self.variant = variant

    def forward(
        self, z1: Tensor, z2: Tensor | None = None, *, labels: Tensor | None = None, **extra: Any
    ) -> Tensor:
        """The loss; see `contrast`."""
        return self.evaluate(_inputs(z1, z2, labels, **extra)).loss

    def contrast(
        self, z1: Tensor, z2: Tensor | None = None, *, labels: Tensor | None = None, **extra: Any
    ) -> LossOutput:
        """The loss with the metrics that it is made of.

        Args:
            z1: (N, D) rows of any scale; normalized inside.
            z2: (N, D) second view; without it, the rows of `z1` are contrasted with each other.
            labels: (N,) integers or (N, L) multi-hot, another name of `positives`; without labels,
                `groups` are the labels.
            extra: as in `ContrastiveLoss.contrast`.
        """
        return self.evaluate(_inputs(z1, z2, labels, **extra), per_anchor=True).synchronize()

    def terms(self, pairs: Pairs, step: StepInfo, inputs: Inputs) -> Terms:
        """See `ContrastiveLoss.terms`."""
        if not pairs.several:
            return super().terms(pairs, step, inputs)
        tau = self.temperature(step)
        alone = None if pairs.all_have_positives else pairs.positive_count == 0
        if self.variant == "in":
            negative, positive = self.pass_over(pairs, tau).lse, pairs.logsumexp_positives(tau)
            if alone is not None:
                positive = positive.masked_fill(alone, 0.0)
            count = pairs.positive_count if alone is None else pairs.positive_count.clamp(min=1)
            per_anchor = softplus(negative - positive) + count.log()
        else:
            per_anchor = pairs.logsumexp_all(tau) - pairs.mean_positive_logit(tau)
        if alone is not None:
            per_anchor = per_anchor.masked_fill(alone, 0.0)
        return self.terms_of_several(pairs, tau, per_anchor, lambda: pairs.margin(tau))


def _inputs(
    z1: Tensor,
    z2: Tensor | None,
    labels: Tensor | None,
    *,
    groups: Tensor | None = None,
    positives: Positives | None = None,
    **extra: Any,
) -> Inputs:
    """The arguments of a loss, `labels` (or `groups`) being classes of positives."""
    if labels is not None and positives is not None:
        raise ValueError("labels and positives both say which rows agree: give one of them.")
    classes = positives if labels is None else labels
    if classes is None:
        classes, groups = groups, None
    if classes is not None:
        return Inputs(z1, z2, positives=classes, groups=groups, **extra)
    if z2 is None:
        raise ValueError("one view has no positives without labels: give labels=(N,).")
    return Inputs(z1, z2, **extra)


class LogitScale(Temperature):
    """τ = exp(−t'), with t' trained and without bounds."""

    def __init__(self, temperature: float) -> None:
        super().__init__()
        start = -math.log(check_positive("temperature", temperature))
        self.log_scale = nn.Parameter(torch.tensor(start))

    def forward(self, step: StepInfo) -> Tensor:
        """exp(−t'), with gradient."""
        return self.log_scale.neg().exp().to(step.new(0.0).dtype)

    def scale(self, step: StepInfo) -> Tensor:
        """t = exp(t'), with gradient."""
        return self.log_scale.exp().to(step.new(0.0).dtype)


class SigLIP(ContrastiveLoss):
    """Sigmoid loss, Zhai et al. 2023: a positive pair should have t·s + b > 0, all others < 0.

        L_i = softplus(−(t·s⁺ + b)) + Σ_j softplus(t·s_j + b),   t = e^{t'}

    One mean over rows, not over pairs. With several positives, the first term is their sum.
    t' and b are parameters: give `criterion.parameters()` to the optimizer, without weight decay.
    `contrast` reports margins and InfoNCE's value at τ = 1/t.

    Args:
        temperature: 1/t at the start, trained in the form t' = log t; or a `Temperature`.
        bias: b at the start. At −10 the many negatives begin balanced with the one positive.
        options: as `ContrastiveLoss`; by default the first view's rows against the second's. The
            other direction holds the same pairs: symmetric=True costs twice as much for the same
            value (it differs with hard negatives, which belong to the first view). With `gather`,
            this rank's rows of the first view against every rank's of the second.
    """

    needs_negatives = False
    pair_function = "softplus"
    shows_statistics = False

    def __init__(
        self,
        temperature: float | Temperature = 0.1,
        bias: float = -10.0,
        **options: Unpack[PairOptions],
    ) -> None:
        if not isinstance(temperature, Temperature):
            temperature = LogitScale(temperature)
        options.setdefault("negatives", "cross")
        options.setdefault("symmetric", False)
        super().__init__(temperature, **options)
        hint = "The published start is -10."
        bias = check("bias", bias, math.isfinite(bias), "must be finite", hint)
        self.bias = nn.Parameter(torch.tensor(bias))

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """softplus(−(t·s⁺ + b)) + Σ_j softplus(t·s_j + b)."""
        if not isinstance(logits, Tensor) or logits.ndim:
            raise ValueError("SigLIP has one temperature for all pairs: give a number.")
        return self._per_anchor(pairs, logits.reciprocal())

    def _per_anchor(self, pairs: Pairs, scale: Tensor) -> Tensor:
        bias = self.bias.to(scale.dtype)
        if pairs.several:
            attraction = pairs.positive_sum("softplus", -bias, -scale)
        else:
            attraction = softplus(-torch.addcmul(bias, scale, pairs.positive_similarity()))
        return attraction + pairs.pair_sum(scale, bias)

    def terms(self, pairs: Pairs, step: StepInfo, inputs: Inputs) -> Terms:
        """The margin at τ = 1/t is a metric only, one more pass: when asked for."""
        if isinstance(self.temperature, LogitScale):
            scale = self.temperature.scale(step)
            tau, per_anchor = scale.detach().reciprocal(), self._per_anchor(pairs, scale)
        else:
            tau = self.temperature(step)
            per_anchor = self.objective(pairs, tau, Values(step.new(0.0)))
        return Terms(
            tau,
            per_anchor,
            lambda: pairs.margin(tau),
            extra_metrics={"bias": lambda: self.bias.detach()},
        )

    def config_warnings(self, behavior: LossBehavior) -> list[ConfigWarning]:
        """b at which attraction and repulsion are far from equal; ∂L/∂b = push − pull."""
        pull, push = behavior.pull.mean().item(), behavior.push.mean().item()
        if not behavior.negatives.any() or pull * push <= 0:
            return []
        if 1 / BALANCE <= push / pull <= BALANCE:
            return []
        bias, stronger = self.bias.item(), "repulsion" if push > pull else "attraction"
        times = max(push / pull, pull / push)
        # In the tail of the sigmoid the repulsion is proportional to e^b.
        balanced = bias - math.log(push / pull)
        return [
            ConfigWarning(
                f"b = {bias:.2f} is far from balance: the {stronger} is {times:,.0f} times the "
                "other",
                f"Start loss.bias at about {balanced:.1f}, or train b longer.",
                "Until b is in balance, all embeddings move together instead of by their pairs.",
                {"bias": bias, "pull": pull, "push": push, "balanced": balanced},
            )
        ]
