"""Losses in one tile, in many, and from the held matrix: equal results; and their autograd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import HCL, MACL, ContrastiveLoss, InfoNCE, LearnedTemperature, NTXent
from macl.losses.ops import tiled

FORMS = ("both", "cross", "one-direction", "bank", "hard")
N, DIM, EXTRA = 10, 4, 13


@pytest.fixture
def two_threads() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


def table(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2 * N + EXTRA, DIM, generator=generator, dtype=dtype).requires_grad_()


def form_of(form: str) -> dict[str, str | bool]:
    return {
        "negatives": "both" if form == "both" else "cross",
        "symmetric": form in ("cross", "hard"),
    }


def evaluate(criterion: ContrastiveLoss, rows: Tensor, form: str, grouped: bool = False) -> Tensor:
    groups = torch.arange(N) % 4 if grouped else None
    return criterion(
        rows[:N],
        rows[N : 2 * N],
        bank=rows[2 * N :] if form == "bank" else None,
        hard=rows[2 * N :] if form == "hard" else None,
        groups=groups,
        bank_groups=torch.arange(EXTRA) % 5 if grouped and form == "bank" else None,
    )


def value_and_gradient(
    form: str, grouped: bool, tau: float, kernel: str = "tiled"
) -> tuple[Tensor, Tensor]:
    rows = table()
    value = evaluate(MACL(tau, kernel=kernel, **form_of(form)), rows, form, grouped)
    (gradient,) = torch.autograd.grad(value, rows)
    return value.detach(), gradient


@pytest.mark.parametrize("tau", [0.1, 0.001])
@pytest.mark.parametrize("tile", [1, 3, 7])
@pytest.mark.parametrize("form", FORMS)
def test_any_tiling_gives_the_result_of_the_held_matrix(
    form: str, tile: int, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    for grouped in (False, True):
        expected = value_and_gradient(form, grouped, tau, "dense")
        tolerance = 1e-13 if tau == 0.1 else 1e-9
        torch.testing.assert_close(
            value_and_gradient(form, grouped, tau), expected, rtol=1e-12, atol=tolerance
        )
        with monkeypatch.context() as patch:
            patch.setattr(tiled, "CPU_TILE", tile)
            got = value_and_gradient(form, grouped, tau)
            again = value_and_gradient(form, grouped, tau)
        torch.testing.assert_close(got, expected, rtol=1e-12, atol=tolerance)
        assert torch.equal(got[0], again[0])
        assert torch.equal(got[1], again[1])


@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize("form", FORMS)
def test_a_maximum_is_subtracted_without_changing_the_result(
    form: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = value_and_gradient(form, True, 0.05, kernel)
    monkeypatch.setattr(tiled, "_LARGEST_EXPONENT", {torch.float64: 0.0})
    torch.testing.assert_close(
        value_and_gradient(form, True, 0.05, kernel), expected, rtol=1e-11, atol=1e-12
    )


@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize("form", FORMS)
def test_backward_twice_gives_the_same(
    form: str, kernel: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "CPU_TILE", 3)
    for tau in (0.1, 0.001):
        rows = table()
        value = evaluate(MACL(tau, kernel=kernel, **form_of(form)), rows, form)
        (first,) = torch.autograd.grad(value, rows, retain_graph=True)
        (second,) = torch.autograd.grad(value, rows)
        assert torch.equal(first, second)


def plain_margins(rows: Tensor, form: str, tau: Tensor) -> Tensor:
    """Margins from one dense, masked matrix: plain torch, differentiable in everything."""
    unit = F.normalize(rows, dim=1)
    z1, z2, more = unit[:N], unit[N : 2 * N], unit[2 * N :]
    own = torch.eye(N, dtype=torch.bool)
    if form == "both":
        anchors, keys, masked = torch.cat([z1, z2]), torch.cat([z1, z2]), own.repeat(2, 2)
    elif form == "bank":
        anchors, keys, masked = z1, more, torch.zeros(N, EXTRA, dtype=torch.bool)
    else:
        anchors, keys, masked = z1, z2, own
    positive = (z1 * z2).sum(1)
    logits = (anchors @ keys.T / tau).masked_fill(masked, -torch.inf)
    if form == "hard":
        logits = torch.cat([logits, z1 @ more.T / tau], dim=1)
    x = torch.logsumexp(logits, 1)
    if form in ("cross", "hard"):
        back = (z2 @ z1.T / tau).masked_fill(own, -torch.inf)
        x = torch.cat([x, torch.logsumexp(back, 1)])
    return x - positive.repeat(len(x) // N) / tau


@pytest.mark.parametrize("tau", [0.1, 0.001])
@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize("form", FORMS)
def test_a_learned_temperature_gets_its_gradient(
    form: str, kernel: str, tau: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tiled, "CPU_TILE", 3)
    learned = LearnedTemperature(tau, tau_min=1e-4).double()
    parameter = learned.log_temperature
    rows = table()
    # Unequal weights of the anchors: with equal ones a mistake between directions can cancel.
    value = evaluate(InfoNCE(learned, reduction="none", kernel=kernel, **form_of(form)), rows, form)
    weights = torch.linspace(0.5, 2, len(value), dtype=torch.float64)
    got = torch.autograd.grad((weights * value).sum(), (rows, parameter))
    truth = (weights * F.softplus(plain_margins(rows, form, parameter.exp()))).sum()
    expected = torch.autograd.grad(truth, (rows, parameter))
    torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)

    step = 1e-6
    moved = [
        (weights * F.softplus(plain_margins(rows, form, (parameter + sign * step).exp()))).sum()
        for sign in (1, -1)
    ]
    slope = (moved[0] - moved[1]) / (2 * step)
    torch.testing.assert_close(got[1], slope, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("form", FORMS)
def test_hcl_learns_its_temperature_too(form: str) -> None:
    learned = LearnedTemperature(0.3).double()
    rows = table()
    criterion = HCL(learned, **form_of(form))
    (got,) = torch.autograd.grad(evaluate(criterion, rows, form), learned.log_temperature)
    step = 1e-6
    moved = []
    for sign in (1, -1):
        nudged = LearnedTemperature(0.3).double()
        with torch.no_grad():
            nudged.log_temperature.copy_(learned.log_temperature + sign * step)
        moved.append(evaluate(HCL(nudged, **form_of(form)), rows, form).detach())
    torch.testing.assert_close(got, (moved[0] - moved[1]) / (2 * step), rtol=1e-5, atol=1e-7)


def test_a_second_derivative_is_refused() -> None:
    for tau in (0.1, 0.001):
        rows = table()
        value = evaluate(NTXent(tau), rows, "both")
        with pytest.raises(RuntimeError, match="from_similarities"):
            torch.autograd.grad(value, rows, create_graph=True)


def test_similarities_can_be_differentiated_twice() -> None:
    pos = torch.rand(3, 1, dtype=torch.float64, requires_grad=True)
    neg = torch.rand(3, 4, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradgradcheck(NTXent(0.5).from_similarities, (pos, neg))


def test_a_bank_without_gradient_changes_nothing_for_the_query() -> None:
    rows = table()
    z1, z2, bank = (part.detach() for part in rows.split([N, N, EXTRA]))
    z1.requires_grad_()
    (got,) = torch.autograd.grad(MACL()(z1, z2, bank=bank), z1)
    (expected,) = torch.autograd.grad(MACL()(z1, z2, bank=bank.clone().requires_grad_()), z1)
    torch.testing.assert_close(got, expected, rtol=1e-13, atol=1e-14)
    assert not bank.requires_grad


def test_only_the_bank_may_ask_for_a_gradient() -> None:
    rows = table()
    z1, z2, bank = rows.split([N, N, EXTRA])
    (expected,) = torch.autograd.grad(MACL()(z1, z2, bank=bank), rows)
    alone = bank.detach().requires_grad_()
    (got,) = torch.autograd.grad(MACL()(z1.detach(), z2.detach(), bank=alone), alone)
    torch.testing.assert_close(got, expected[2 * N :], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_evaluation_without_autograd(
    mode: type, monkeypatch: pytest.MonkeyPatch, two_threads: None
) -> None:
    monkeypatch.setattr(tiled, "CPU_TILE", 3)
    for kernel in ("dense", "tiled"):
        expected = evaluate(MACL(kernel=kernel), table(), "both").detach()
        with mode():
            got = evaluate(MACL(kernel=kernel), table().detach() * 1.0, "both")
        torch.testing.assert_close(got, expected, rtol=1e-13, atol=0)


def test_compiled_as_part_of_a_model() -> None:
    torch.manual_seed(0)
    model, criterion = nn.Linear(5, 4), MACL()
    x = torch.randn(2, 6, 5)

    def step(x: Tensor) -> Tensor:
        return criterion(model(x[0]), model(x[1]))

    expected = step(x)
    truth = torch.autograd.grad(expected, list(model.parameters()))
    value = torch.compile(step, backend="eager")(x)
    torch.testing.assert_close(value, expected)
    got = torch.autograd.grad(value, list(model.parameters()))
    torch.testing.assert_close(got, truth)
