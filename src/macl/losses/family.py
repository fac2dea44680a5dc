"""The family: InfoNCE, NT-Xent, DCL, DCLW, FlatNCE, Dual temperature, HCL, MACL."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from macl import distributed
from macl.losses import objectives
from macl.losses.contrastive import ContrastiveLoss, Form
from macl.losses.inputs import Inputs, Terms
from macl.losses.kernels.interface import LogitMap
from macl.losses.logits import Logits, logit, sharpened
from macl.losses.pairs import Pairs
from macl.losses.temperature import AlignmentAdaptive, Temperature

if TYPE_CHECKING:
    from typing_extensions import Unpack


class InfoNCE(ContrastiveLoss):
    """InfoNCE, van den Oord et al. 2018 (Eq. 1): softplus(x) over the other view's rows."""

    pair_function: str | None = "softplus"

    def __init__(
        self,
        temperature: float | Temperature | LogitMap = 0.1,
        **form: Unpack[Form],
    ) -> None:
        form.setdefault("negatives", "cross")
        super().__init__(temperature, **form)

    @objectives.of_one_pair
    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(x)."""
        return objectives.info_nce(x, pairs.complete)


class NTXent(ContrastiveLoss):
    """NT-Xent, Chen et al. 2020 (SimCLR): InfoNCE with negatives from both views."""

    pair_function: str | None = "softplus"

    @objectives.of_one_pair
    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(x)."""
        return objectives.info_nce(x, pairs.complete)


class DCL(ContrastiveLoss):
    """Decoupled contrastive learning, Yeh et al. 2022: x itself."""

    bounds_temperature = False
    pair_function: str | None = "identity"

    @objectives.of_one_pair
    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """x."""
        return objectives.dcl(x, pairs.complete)


class DCLW(ContrastiveLoss):
    """DCL with its positive term weighted by w_i = 2 − N·softmax_i(s⁺/σ), Yeh et al. 2022.

    Args:
        temperature: τ.
        sigma: σ of the von Mises–Fisher weight; 0.5 in the paper.
        form: as `ContrastiveLoss`.
    """

    bounds_temperature = False

    def __init__(
        self,
        temperature: float | Temperature | LogitMap = 0.1,
        sigma: float = 0.5,
        **form: Unpack[Form],
    ) -> None:
        super().__init__(temperature, **form)
        if not sigma > 0:
            raise ValueError(f"sigma must be positive, got {sigma}. The DCL paper uses 0.5.")
        self.sigma = float(sigma)

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """LSE − w·s⁺/τ = x + (1 − w)·s⁺/τ, the mean of e^{s⁺/σ} being over the global batch."""
        raised = torch.exp((pairs.positive.detach() - 1) / self.sigma)
        missing = raised / distributed.global_mean(raised) - 1  # 1 − w
        weighted = torch.addcmul(x, missing, logit(pairs.positive, logits))
        return objectives.dcl(weighted, pairs.complete)


class FlatNCE(ContrastiveLoss):
    """FlatNCE, Chen et al. 2021: value 1, gradient ∇x. Watch `contrast(...).info_nce`."""

    bounds_temperature = False
    pair_function: str | None = "one"

    @objectives.of_one_pair
    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """exp(x − sg x)."""
        return objectives.flat_nce(x, pairs.complete)


class DualTemperature(ContrastiveLoss):
    """Dual temperature, Zhang et al. 2022: InfoNCE with the gradient scale of τ_β.

    Args:
        temperature: τ.
        beta: τ_β = beta·τ; 10 in the paper.
        form: as `ContrastiveLoss`.
    """

    def __init__(
        self,
        temperature: float | Temperature | LogitMap = 0.1,
        beta: float = 10.0,
        **form: Unpack[Form],
    ) -> None:
        super().__init__(temperature, **form)
        if not beta > 0:
            raise ValueError(f"beta must be positive, got {beta}. The paper's ratio is 10.")
        self.beta = float(beta)

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """sg[W(τ_β)/W(τ)]·softplus(x)."""
        with torch.no_grad():
            x_beta = pairs.margin(sharpened(logits, 1 / self.beta))
        return objectives.dual(x, x_beta, pairs.complete)


class HCL(ContrastiveLoss):
    """Hard-negative sampling with debiasing, Robinson et al. 2021.

    Args:
        temperature: τ; 0.5 in the paper.
        beta: concentration on hard negatives; 0 gives debiased InfoNCE.
        tau_plus: τ⁺, the share of false negatives to subtract; 0 for none.
        form: as `ContrastiveLoss`.
    """

    def __init__(
        self,
        temperature: float | Temperature | LogitMap = 0.5,
        beta: float = 1.0,
        tau_plus: float = 0.1,
        **form: Unpack[Form],
    ) -> None:
        super().__init__(temperature, **form)
        if not beta >= 0:
            raise ValueError(f"beta must be 0 or more, got {beta}. The paper uses 0.5 to 2.")
        if not 0 <= tau_plus < 1:
            raise ValueError(
                f"tau_plus is a probability below 1, got {tau_plus}. The paper uses 0.1."
            )
        self.beta, self.tau_plus = float(beta), float(tau_plus)

    def _terms(self, pairs: Pairs, alignment: Tensor, inputs: Inputs, figures: bool) -> Terms:
        """x is a figure only, one more pass over the similarities: without gradient, if at all."""
        logits = self.temperature(alignment)
        x = None
        if figures:
            with torch.no_grad():
                x = pairs.margin(logits)
        return Terms(logits, x, self._objective(pairs, logits))

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(log Ng − s⁺/τ) with HCL's reweighted, debiased negative term Ng."""
        return self._objective(pairs, logits)

    def _objective(self, pairs: Pairs, logits: Logits) -> Tensor:
        found = pairs.hardened(logits, self.beta)
        if found is not None and pairs.number:
            log_count = math.log(pairs.number)
            if isinstance(logits, Tensor):
                floor = log_count - logits.reciprocal()
            else:
                floor = log_count + logits.value(found[1].new_full((), -1.0))
            x = objectives.hardened_known(*found, pairs.number, self.tau_plus, floor)
            return objectives.info_nce(x, complete=True)
        positive = logit(pairs.positive, logits)
        sharp = pairs.logsumexp(sharpened(logits, 1 + self.beta))
        soft = (
            pairs.count.log() if self.beta == 0 else pairs.logsumexp(sharpened(logits, self.beta))
        )
        least = logit(torch.full((), -1.0, dtype=positive.dtype, device=positive.device), logits)
        x = objectives.hardened(sharp, soft, positive, pairs.count, self.tau_plus, least)
        if not pairs.complete:
            x = torch.where(pairs.count > 0, x, -math.inf)
        return objectives.info_nce(x, pairs.complete)


class MACL(ContrastiveLoss):
    """Model-aware contrastive learning, Huang et al. 2023: adaptive temperature and reweighting.

        τ_a = τ₀·[1 + α·(A − A₀)],   L_i = −sg[1/W_i]·log P_i   at τ_a

    Args:
        temperature: τ₀.
        alpha: α, how strongly τ follows the alignment A; 0 fixes it.
        threshold: A₀, the alignment at which τ_a = τ₀.
        reweight: divide by the gradient scale W_i (the answer to gradient reduction).
        floor: lower bound of τ_a; default τ₀/10. It acts only for α > 1 or thresholds near 1.
        form: as `ContrastiveLoss`.
    """

    def __init__(
        self,
        temperature: float = 0.1,
        alpha: float = 0.5,
        threshold: float = 0.0,
        *,
        reweight: bool = True,
        floor: float | None = None,
        **form: Unpack[Form],
    ) -> None:
        super().__init__(AlignmentAdaptive(temperature, alpha, threshold, floor), **form)
        self.reweight = reweight
        self.pair_function = "nll_over_scale" if reweight else "softplus"

    @objectives.of_one_pair
    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """softplus(x)/sg[σ(x)], or softplus(x) without reweighting."""
        chosen = objectives.reweighted if self.reweight else objectives.info_nce
        return chosen(x, pairs.complete)
