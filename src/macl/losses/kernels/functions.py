"""Functions f of a pair's logit x that `pair_sum` adds up, by name, with their derivatives.

name              f(x)                    f'(x)    objective with x = lse_neg − s_pos/τ
softplus          log(1 + eˣ)             σ(x)     InfoNCE, SigLIP, SupCon
identity          x                       1        DCL
nll_over_scale    softplus(x)/sg σ(x)     1        MACL
one               exp(x − sg x) = 1       1        FlatNCE
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor


class PairFunction(NamedTuple):
    """f and f', elementwise."""

    value: Callable[[Tensor], Tensor]
    derivative: Callable[[Tensor], Tensor] = torch.ones_like

    @property
    def rises_by_one(self) -> bool:
        """Whether f' is 1 everywhere."""
        return self.derivative is torch.ones_like


def softplus(x: Tensor) -> Tensor:
    """log(1 + eˣ), exact in double precision too."""
    # torch's default gives up the logarithm at 20, where it still counts in double precision.
    return F.softplus(x, threshold=50)


def nll_over_gradient_scale(x: Tensor) -> Tensor:
    """softplus(x)/σ(x), which tends to 1 as x → −∞ and to x as x → ∞.

    The ratio is 1 + eˣ/2 − e²ˣ/6 + …. Below −80 it is 1 and both parts are about to underflow.
    """
    near = x.clamp(min=-80.0)
    return softplus(near) / torch.sigmoid(near)


FUNCTIONS = {
    "softplus": PairFunction(softplus, torch.sigmoid),
    "identity": PairFunction(lambda x: x),
    "nll_over_scale": PairFunction(nll_over_gradient_scale),
    "one": PairFunction(lambda x: torch.exp(x - x)),
}
