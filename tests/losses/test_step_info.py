"""The contract of temperatures and outputs: a τ per anchor, statistics, metrics when read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import every_loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from macl import DCL, ContrastiveLoss, NTXent
from macl.losses import Statistics, StepInfo, Temperature
from macl.losses.ops import tiled

N, DIM, EXTRA = 6, 4, 5


class ByDifficulty(Temperature):
    """A higher τ for positives that are far apart, learned, and by sample."""

    def __init__(self, samples: int) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.tensor(0.05))
        self.register_buffer("start", torch.linspace(0.1, 0.3, samples))

    def forward(self, step: StepInfo) -> Tensor:
        start = self.start[step.indices].repeat(step.anchors // len(step.indices))
        return start + self.slope * (1 - step.positive)


class Watching(Temperature):
    """A fixed τ, scalar or per anchor, that keeps the statistics of its steps."""

    wants_statistics = True

    def __init__(self, tau: Tensor) -> None:
        super().__init__()
        self.tau, self.seen = tau, []

    def forward(self, step: StepInfo) -> Tensor:
        return self.tau

    def observe(self, statistics: Statistics) -> None:
        self.seen.append(statistics)


def views() -> tuple[Tensor, Tensor, Tensor]:
    z = torch.randn(2 * N + EXTRA, DIM, generator=torch.Generator().manual_seed(0)).double()
    z1, z2, more = z.split([N, N, EXTRA])
    return z1.requires_grad_(), z2.requires_grad_(), more


def negatives(form: str) -> list[tuple[Tensor, Tensor]]:
    """Similarities of each anchor: its positive's, and those of its negatives."""
    z1, z2, more = (F.normalize(z, dim=1) for z in views())
    found = []
    for one, two in ((z1, z2), (z2, z1)):
        for i in range(N):
            others = [k for k in range(N) if k != i]
            columns = [two[others]]
            if form == "both":
                columns.append(one[others])
            if form == "hard" and one is z1:
                columns.append(more)
            if form == "bank":
                columns = [more]
            found.append((one[i] @ two[i], torch.cat(columns) @ one[i]))
    return found[:N] if form in ("bank", "one-direction") else found


def keywords(form: str, more: Tensor) -> dict[str, Tensor]:
    return {form: more} if form in ("bank", "hard") else {}


def options(form: str) -> dict[str, Any]:
    return {
        "negatives": "both" if form == "both" else "cross",
        "symmetric": form in ("cross", "hard"),
    }


@pytest.mark.parametrize("form", every_loss.FORMS)
def test_a_temperature_per_anchor_of_the_user_s_own(form: str) -> None:
    temperature = ByDifficulty(20).double()
    indices = torch.tensor([3, 0, 19, 7, 8, 2])
    z1, z2, more = views()
    criterion = NTXent(temperature, reduction="none", **options(form))
    found = criterion.contrast(z1, z2, indices=indices, **keywords(form, more))
    taus, values = [], []
    for k, (positive, others) in enumerate(negatives(form)):
        tau = temperature.start[indices[k % N]] + temperature.slope * (1 - positive.detach())
        taus.append(tau)
        values.append(F.softplus(torch.logsumexp(others / tau, 0) - positive / tau))
    torch.testing.assert_close(found.temperature, torch.stack(taus).detach())
    expected = torch.stack(values)
    torch.testing.assert_close(found.loss, expected)
    # The loops use rows of their own, so gradients are compared through τ.
    weight = torch.linspace(0.5, 2, len(expected)).double()
    torch.testing.assert_close(
        torch.autograd.grad((found.loss * weight).sum(), temperature.slope),
        torch.autograd.grad((expected * weight).sum(), temperature.slope),
    )
    metrics = found.metrics()
    torch.testing.assert_close(metrics["temperature"], torch.stack(taus).mean().detach())
    spread = torch.stack(taus).detach().std(unbiased=False)
    torch.testing.assert_close(metrics["temperature_std"], spread)


@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize("tau", [0.2, 0.002, "per anchor"])
@pytest.mark.parametrize("form", every_loss.FORMS)
def test_statistics_are_those_of_the_softmax(
    form: str, tau: float | str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "CPU_TILE", 4)
    pairs = negatives(form)
    taus = torch.full((len(pairs),), 0.2 if isinstance(tau, str) else tau).double()
    if isinstance(tau, str):
        taus = torch.linspace(0.1, 0.4, len(pairs)).double()
    temperature = Watching(taus if isinstance(tau, str) else taus[0])
    z1, z2, more = views()
    criterion = NTXent(temperature, kernel=kernel, **options(form))
    value = criterion(z1, z2, **keywords(form, more))
    (seen,) = temperature.seen
    entropies, variances, counts = [], [], []
    for (_, others), own in zip(pairs, taus, strict=True):
        p = torch.softmax(others.detach() / own, 0)
        entropies.append(-torch.special.xlogy(p, p).sum())
        variances.append((p * others.detach() ** 2).sum() - (p * others.detach()).sum() ** 2)
        counts.append(torch.tensor(float(len(others))).double().log())
    close = {"rtol": 1e-8, "atol": 1e-9}
    torch.testing.assert_close(seen.entropy, torch.stack(entropies).mean(), **close)
    torch.testing.assert_close(seen.variance, torch.stack(variances).mean(), **close)
    torch.testing.assert_close(seen.log_count, torch.stack(counts).mean(), **close)
    torch.testing.assert_close(seen.temperature, taus.mean(), **close)
    assert not seen.entropy.requires_grad
    expected = NTXent(Watching(temperature.tau), kernel=kernel, **options(form)).eval()
    torch.testing.assert_close(expected(z1, z2, **keywords(form, more)), value)
    assert expected.temperature.seen == []  # not in evaluation


def test_anchors_without_negatives_are_not_in_the_statistics() -> None:
    z1, z2, _ = views()
    groups = torch.zeros(N, dtype=torch.int64)
    alone = Watching(torch.tensor(0.2).double())
    NTXent(alone)(z1, z2, groups=groups)
    assert float(alone.seen[0].entropy) == 0
    some = Watching(torch.tensor(0.2).double())
    NTXent(some, negatives="cross", symmetric=False)(z1, z2, groups=torch.arange(N) // 3)
    assert float(some.seen[0].log_count) == pytest.approx(float(torch.tensor(3.0).log()))


class Recorded(TorchDispatchMode):
    """The names of all operators that run."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func._schema.name)
        return func(*args, **(kwargs or {}))


def recorded(compute: Callable[[], Any]) -> list[str]:
    with Recorded() as names:
        compute()
    return names.names


def criteria() -> dict[str, ContrastiveLoss]:
    torch.manual_seed(0)
    own = {name: every_loss.build(name, "both", N).double() for name in every_loss.LOSSES}
    return own | {
        name: build(N, DIM, negatives="both").double() for name, build in every_loss.OTHERS.items()
    }


# The logsumexp of the negatives, of which the margin is made, is not in the loss of these; SupCon's
# takes the mean positive as well.
PRODUCTS = {"SigLIP": 2, "HCL": 1, "per-anchor-hcl": 1, "SupCon": 3, "SupCon-in": 3}


@pytest.mark.filterwarnings("ignore:rho")
@pytest.mark.parametrize("name", [*every_loss.LOSSES, *every_loss.OTHERS])
def test_metrics_cost_nothing_until_they_are_read(name: str) -> None:
    z1, z2, _ = (z.detach() for z in views())
    first, second = criteria()[name], criteria()[name]
    second.load_state_dict(first.state_dict())
    about = every_loss.about_samples(first, N, "cpu")
    outputs = []
    bare = recorded(lambda: first(z1, z2, **about))
    whole = recorded(lambda: outputs.append(second.contrast(z1, z2, **about)))
    assert len(whole) <= len(bare)
    reading = recorded(lambda: outputs[0].metrics())
    assert reading
    products = sum(op in ("aten::mm", "aten::addmm", "aten::addmm_") for op in reading)
    assert products <= PRODUCTS.get(name, 0)
    assert recorded(lambda: outputs[0].margin) == []  # computed once


def test_metrics_of_an_output_read_late_are_those_of_its_step() -> None:
    z1, z2, _ = (z.detach() for z in views())
    criterion = DCL(0.2)
    early, late = criterion.contrast(z1, z2), criterion.contrast(z1, z2)
    expected = early.metrics()
    criterion.contrast(z2, z1.flip(0)).metrics()
    assert {k: float(v) for k, v in late.metrics().items()} == {
        k: float(v) for k, v in expected.items()
    }


def test_a_temperature_knows_the_step() -> None:
    class Falling(Temperature):
        def forward(self, step: StepInfo) -> Tensor:
            return step.new(1.0 / (1 + step.number))

    loss = NTXent(Falling())
    z1, z2 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0))
    assert loss.contrast(z1, z2).temperature == 1
    loss.advance(3)
    assert loss.contrast(z1, z2).temperature == 0.25
