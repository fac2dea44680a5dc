"""SogCLR, iSogCLR, FastCLIP and TempNet: value, gradients and state against float64 loops."""

from __future__ import annotations

import copy
import itertools
import math
from typing import Any

import pytest
import temperature_reference as truth
import torch
from reference import chained, similarities
from temperature_cases import FORMS, Case, case, close
from torch import Tensor

from macl import FastCLIP, ISogCLR, LearnedTemperature, SogCLR, TempNet
from macl.losses import TrainingContext
from macl.losses.global_objective import GlobalObjective

pytestmark = pytest.mark.filterwarnings("ignore:rho")
SIZE = 11
# Three batches: samples seen for the first time and again, one of them twice in a batch, a short
# last batch.
BATCHES = [[3, 0, 7, 10, 5], [7, 7, 3, 1, 2], [0, 7]]
TAU, ETA = 0.25, 0.03125  # exact in float32, the type in which state starts


def build(name: str, form: dict[str, Any], **more: Any) -> tuple[GlobalObjective, truth.Rule]:
    """A loss, and the same as a rule of the loops."""
    paired = form["negatives"] == "cross"
    common: dict[str, Any] = {"size": SIZE, **form, **more}
    criterion: GlobalObjective
    if name == "sogclr":
        criterion = SogCLR(TAU, gamma=0.7, **common)
        rule = truth.Rule(0.7, paired, TAU)
    elif name == "isogclr":
        criterion = ISogCLR(TAU, gamma=0.6, rho=0.3, tau_min=0.125, eta=ETA, **common)
        clip = 5.0 if paired else 3.0
        update = truth.momentum(TAU, 0.125, 1.0, 0.5, ETA, clip)
        rule = truth.Rule(0.6, paired, TAU, 0.3, update=update)
    elif name == "tempnet":
        criterion = TempNet(3, rho=0.5, gamma=0.6, tau_min=0.125, tau_max=0.5, **common)
        rule = truth.Rule(0.6, True, rho=0.5)
    else:
        version: Any = int(name[-1])
        rho = {"rho": 0.3} if version >= 2 else {}
        criterion = FastCLIP(TAU, version=version, gamma=0.6, gamma_epochs=0, eta=ETA,
                             epsilon=0.01, **rho, **common)  # fmt: skip
        update = truth.adam(TAU, 0.01, 1.0, ETA, 5.0) if version == 2 else None
        rule = truth.Rule(0.6, True, TAU, rho.get("rho", 0.0), version >= 2, 0.01, update)
    criterion.double()
    if isinstance(criterion.temperature, LearnedTemperature):  # its parameter starts in float32
        criterion.temperature.log_temperature.data.fill_(math.log(TAU))
    return criterion, rule


def numbers(values: list[float]) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


NAMES = ("sogclr", "isogclr", "fastclip-v0", "fastclip-v1", "fastclip-v2", "fastclip-v3", "tempnet")


def slots_of(criterion: GlobalObjective, indices: list[int], anchors: int) -> list[int]:
    views = anchors // len(indices)
    apart = criterion.state.sides == 2
    return [i + SIZE * side * apart for side in range(views) for i in indices]


def predicted(network: Any, z: Tensor) -> Tensor:
    """The published network, written out; z is (n, D) at length 1."""
    a = 1 / (1 + torch.exp(-(z @ network.project.weight.T + network.project.bias)))
    q = network.prototypes / network.prototypes.square().sum(1, keepdim=True).sqrt()
    p = a @ q.T
    w = torch.exp(p / torch.exp(network.log_sharpness))
    w = w / w.sum(1, keepdim=True)
    o = (network.weight * (w - 1 / 256) / (1 + torch.exp(-p))).sum(1) + network.offset
    return network.tau_min + (network.tau_max - network.tau_min) / (1 + torch.exp(-o))


def predicted_for(criterion: TempNet, batch: Case) -> Tensor:
    """(n,) τ of every anchor, with gradient to the networks."""
    n = batch.n
    z = torch.nn.functional.normalize(batch.rows.detach())
    first = predicted(criterion.temperature.networks[0], z[:n])
    if batch.form in ("one-direction", "bank"):
        return first
    return torch.cat([first, predicted(criterion.temperature.networks[-1], z[n : 2 * n])])


@pytest.mark.parametrize(("grouped", "kernel"), [(False, None), (True, None), (False, "torch")])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", NAMES)
def test_value_gradients_and_state(name: str, form: str, grouped: bool, kernel: str | None) -> None:
    criterion, rule = build(name, case(form, 2, 0, False).settings(), kernel=kernel)
    tables = truth.Tables()
    for number, indices in enumerate(BATCHES):
        batch = case(form, len(indices), number, grouped)
        anchors = batch.anchors()
        weights = [(1 + i % batch.n) / len(anchors) for i in range(len(anchors))]
        taus = predicted_for(criterion, batch) if isinstance(criterion, TempNet) else None
        step = truth.global_step(
            rule, tables, slots_of(criterion, indices, len(anchors)),
            *similarities(batch.table(), anchors), None if taus is None else taus.tolist(),
        )  # fmt: skip
        criterion.zero_grad()
        got = criterion.contrast(*batch.views(), **batch.arguments(), indices=torch.tensor(indices))
        close(got.per_anchor, step.result.values)
        (got.per_anchor * numbers(weights)).sum().backward()
        close(batch.rows.grad, chained(batch.table(), anchors, step.result, weights))
        check_tau_gradient(criterion, step, weights, taus)
    check_state(criterion, tables)


def check_tau_gradient(
    criterion: GlobalObjective, step: truth.Step, weights: list[float], taus: Tensor | None
) -> None:
    """Of the learned τ (through log τ), or of the network that predicts it."""
    if taus is not None:
        expected = (numbers(step.gradients) * numbers(weights) * taus).sum()
        parameters = dict(criterion.named_parameters())
        truths = torch.autograd.grad(expected, list(parameters.values()), allow_unused=True)
        for parameter, gradient in zip(parameters.values(), truths, strict=True):
            if gradient is None:
                assert parameter.grad is None
            else:
                close(parameter.grad, gradient)
    elif isinstance(criterion, FastCLIP) and criterion.version in (0, 3):
        (parameter,) = criterion.parameters()
        tau = float(parameter.detach().exp())
        by_tau = math.fsum(w * g for w, g in zip(weights, step.gradients, strict=True))
        assert parameter.grad is not None
        close(parameter.grad, by_tau * tau)


def check_state(criterion: GlobalObjective, tables: truth.Tables) -> None:
    log_u = criterion.state.get_buffer("log_u").view(-1)
    assert set(log_u.isfinite().nonzero()[:, 0].tolist()) == set(tables.u)
    for slot, u in tables.u.items():
        close(log_u[slot], math.log(u))
    names = {"tau": tables.tau, "second": tables.second, "visits": tables.visits}
    names["momentum" if isinstance(criterion, ISogCLR) else "first"] = tables.first
    for name, _ in criterion.state.named_buffers():
        for slot, value in names.get(name, {}).items():
            close(criterion.state.get_buffer(name).view(-1)[slot], float(value))


@pytest.mark.parametrize("name", NAMES)
def test_evaluation_changes_nothing(name: str) -> None:
    criterion, _ = build(name, {"negatives": "both"})
    batch = case("both", 5, 0, False)
    indices = torch.tensor(BATCHES[0])
    criterion(*batch.views(), indices=indices)
    before = copy.deepcopy(criterion.state_dict())
    criterion.eval()
    first = criterion(*batch.views(), indices=indices)
    assert torch.equal(first, criterion(*batch.views(), indices=indices))
    for key, value in criterion.state_dict().items():
        assert torch.equal(value, before[key])
    criterion.train()
    criterion(*case("both", 5, 1, False).views(), indices=indices)
    assert not torch.equal(criterion.state.get_buffer("log_u"), before["state.log_u"])


@pytest.mark.parametrize("name", NAMES)
def test_a_state_dict_continues_bit_for_bit(name: str) -> None:
    settings = {"negatives": "cross"}
    whole, _ = build(name, settings)
    torch.manual_seed(1)
    part, _ = build(name, settings)
    part.load_state_dict(whole.state_dict())

    def run(criterion: GlobalObjective, number: int) -> tuple[Tensor, Tensor]:
        batch = case("cross", len(BATCHES[number]), number, False)
        loss = criterion(*batch.views(), indices=torch.tensor(BATCHES[number]))
        loss.backward()
        assert batch.rows.grad is not None
        return loss.detach(), batch.rows.grad

    run(whole, 0), run(whole, 1)
    run(part, 0)
    resumed, _ = build(name, settings)
    resumed.load_state_dict(part.state_dict())
    run(resumed, 1)
    for one, two in zip(run(whole, 2), run(resumed, 2), strict=True):
        assert torch.equal(one, two)
    for key, value in whole.state_dict().items():
        assert torch.equal(value, resumed.state_dict()[key]), key


def test_another_data_set_is_refused() -> None:
    with pytest.raises(RuntimeError, match="size mismatch"):
        SogCLR(size=12).load_state_dict(SogCLR(size=11).state_dict())


def test_the_size_comes_from_the_training() -> None:
    context = TrainingContext(samples=SIZE, batch_size=5, steps_per_epoch=3, epochs=8)
    criterion = FastCLIP()
    batch = case("cross", 5, 0, False)
    with pytest.raises(ValueError, match="size=len"):
        criterion(*batch.views(), indices=torch.tensor(BATCHES[0]))
    criterion.setup(context)
    criterion(*batch.views(), indices=torch.tensor(BATCHES[0]))
    assert criterion.state.size == SIZE
    assert criterion.gamma_epochs == 4
    with pytest.raises(ValueError, match=f"size={SIZE}"):
        SogCLR(size=3).setup(context)


def test_gamma_falls_from_one_with_the_epochs() -> None:
    criterion = FastCLIP(size=SIZE, gamma=0.2)
    criterion.setup(TrainingContext(samples=SIZE, batch_size=5, steps_per_epoch=3, epochs=8))
    seen = []
    for step in range(21):
        criterion.advance(step)
        seen.append(float(criterion.current_gamma()))
    expected = [0.2 + 0.4 * (1 + math.cos(math.pi * min(s // 3, 4) / 4)) for s in range(21)]
    assert seen == pytest.approx(expected)
    assert seen[0] == 1.0
    assert seen[12] == seen[20] == pytest.approx(0.2)
    kept = FastCLIP(size=SIZE)
    kept.load_state_dict(criterion.state_dict())
    assert int(kept.epoch) == 6


def test_frozen_inputs_let_u_approach_g() -> None:
    """|u − g| shrinks by 1 − γ with every visit."""
    criterion, _ = build("sogclr", {"negatives": "both"})
    indices = torch.tensor(BATCHES[0])
    criterion(*case("both", 5, 0, False).views(), indices=indices)
    batch = case("both", 5, 1, False)
    with torch.no_grad():
        fresh, _ = build("sogclr", {"negatives": "both"})
        fresh(*batch.views(), indices=indices)
        g = fresh.state.get_buffer("log_u")[0, indices].exp()
        gaps = []
        for _ in range(3):
            gaps.append((criterion.state.get_buffer("log_u")[0, indices].exp() - g).abs())
            criterion(*batch.views(), indices=indices)
    for before, after in itertools.pairwise(gaps):
        close(after, before * 0.3)


def test_the_mean_gradient_over_batches_is_that_of_the_data() -> None:
    """With u at its value over all the data, batches are unbiased: the reason for u."""
    n, tau = 6, 0.25
    rows = torch.randn(2 * n, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    z = torch.nn.functional.normalize(rows).requires_grad_()

    def surrogate(chosen: list[int], log_u: Tensor) -> Tensor:
        criterion = SogCLR(tau, size=n, gamma=1e-12, negatives="cross", symmetric=False).double()
        criterion.state.log_u = log_u[None].clone()
        picked = torch.tensor(chosen)
        return criterion(z[picked], z[n:][picked], indices=picked)

    everything = SogCLR(tau, size=n, gamma=1.0, negatives="cross", symmetric=False).double()
    (whole,) = torch.autograd.grad(everything(z[:n], z[n:], indices=torch.arange(n)), z)
    log_u = everything.state.get_buffer("log_u")[0]
    batches = [[i, j] for i in range(n) for j in range(n) if i < j]
    found = [torch.autograd.grad(surrogate(b, log_u), z)[0] for b in batches]
    close(torch.stack(found).mean(0), whole, 1e-9)


def test_anchors_without_negatives_keep_their_state() -> None:
    criterion, _ = build("isogclr", {"negatives": "both"})
    batch = case("both", 5, 0, False)
    same = torch.zeros(5, dtype=torch.int64)
    loss = criterion(*batch.views(), indices=torch.tensor(BATCHES[0]), groups=same)
    loss.backward()
    assert loss == 0
    assert bool((batch.rows.grad == 0).all())
    assert bool(criterion.state.get_buffer("log_u").isneginf().all())
    assert bool((criterion.state.get_buffer("tau") == TAU).all())
