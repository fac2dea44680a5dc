"""The operator in autograd: per-anchor temperatures, maps, pair sums, banks, selection."""

from __future__ import annotations

import every_loss
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl import DCL, MACL, ContrastiveLoss, DualTemperature, InfoNCE, NTXent
from macl.losses import objectives
from macl.losses.build import Inputs
from macl.losses.ops import (
    CosineTemperature,
    Exclusions,
    InverseTanh,
    LogitMap,
    Relation,
    dense,
    operator,
    selected,
    tiled,
)
from macl.losses.ops.maps import logit
from macl.losses.ops.operator import logsumexp, pair_sum
from macl.losses.ops.tiled import Plan
from macl.losses.ops.triton import check

N, DIM, EXTRA = 7, 4, 9
KERNELS = ["dense", "tiled"]


def table(dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(2 * N + EXTRA, DIM, generator=generator, dtype=dtype).requires_grad_()


def dense_margins(rows: Tensor, form: str, logits: Tensor | LogitMap) -> Tensor:
    """Margins from dense masked matrices, in plain torch; one τ per anchor or a map."""
    z1, z2, more = F.normalize(rows, dim=1).split([N, N, EXTRA])
    own, none = torch.eye(N, dtype=torch.bool), torch.zeros(N, EXTRA, dtype=torch.bool)
    views = {
        "both": [(z1, z2, torch.cat([z1, z2]), own.repeat(1, 2))] * 1
        + [(z2, z1, torch.cat([z1, z2]), own.repeat(1, 2))],
        "cross": [(z1, z2, z2, own), (z2, z1, z1, own)],
        "one-direction": [(z1, z2, z2, own)],
        "bank": [(z1, z2, more, none)],
        "hard": [(z1, z2, torch.cat([z2, more]), torch.cat([own, none], 1)), (z2, z1, z1, own)],
    }[form]
    margins = []
    for k, (anchors, positives, keys, masked) in enumerate(views):
        part = logits[k * N : (k + 1) * N] if isinstance(logits, Tensor) else logits
        negatives = logit(anchors @ keys.T, part).masked_fill(masked, -torch.inf)
        positive = logit((anchors * positives).sum(1), part)
        margins.append(torch.logsumexp(negatives, 1) - positive)
    return torch.cat(margins)


def evaluate(criterion: ContrastiveLoss, rows: Tensor, form: str) -> Tensor:
    z1, z2, more = rows.split([N, N, EXTRA])
    return criterion(
        z1, z2, bank=more if form == "bank" else None, hard=more if form == "hard" else None
    )


def criterion_of(
    kind: type[ContrastiveLoss], logits: object, form: str, kernel: str | None
) -> ContrastiveLoss:
    return kind(
        logits,  # type: ignore[arg-type]
        negatives="both" if form == "both" else "cross",
        symmetric=form in ("cross", "hard"),
        reduction="none",
        kernel=kernel,
    )


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("form", every_loss.FORMS)
def test_one_temperature_per_anchor(form: str, kernel: str | None) -> None:
    temperature = every_loss.per_anchor(form, N).double()
    taus, rows = temperature.temperatures, table()
    value = evaluate(criterion_of(NTXent, temperature, form, kernel), rows, form)
    weights = torch.linspace(0.5, 2, len(value), dtype=torch.float64)
    got = torch.autograd.grad((weights * value).sum(), (rows, taus))
    expected = F.softplus(dense_margins(rows, form, taus))
    torch.testing.assert_close(value, expected)
    truth = torch.autograd.grad((weights * expected).sum(), (rows, taus))
    torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("form", every_loss.FORMS)
def test_equal_temperatures_are_one_temperature(form: str) -> None:
    taus = torch.full((every_loss.anchors(form, N),), 0.2, dtype=torch.float64)
    same = every_loss.PerAnchor(taus)
    rows = table()
    for kind in (MACL, DCL, DualTemperature):
        one = kind(0.2, alpha=0) if kind is MACL else kind(0.2)
        one.negatives = "both" if form == "both" else "cross"
        one.symmetric = form in ("cross", "hard")
        value = evaluate(one, rows, form)
        expected = torch.autograd.grad(value, rows)
        one.temperature = same
        torch.testing.assert_close(evaluate(one, rows, form), value)
        got = torch.autograd.grad(evaluate(one, rows, form), rows)
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("map", [CosineTemperature(0.1, 0.3), InverseTanh()], ids=lambda m: m.name)
@pytest.mark.parametrize("form", every_loss.FORMS)
def test_maps(form: str, map: LogitMap, kernel: str | None) -> None:
    rows = table()
    value = evaluate(criterion_of(NTXent, map, form, kernel), rows, form)
    weights = torch.linspace(0.5, 2, len(value), dtype=torch.float64)
    got = torch.autograd.grad((weights * value).sum(), rows)
    expected = F.softplus(dense_margins(rows, form, map))
    torch.testing.assert_close(value, expected)
    truth = torch.autograd.grad((weights * expected).sum(), rows)
    torch.testing.assert_close(got, truth, rtol=1e-9, atol=1e-10)


def test_maps_and_their_derivatives() -> None:
    s = torch.linspace(-0.99, 0.99, 67, dtype=torch.float64, requires_grad=True)
    dystress = CosineTemperature(0.1, 0.3)
    tau = dystress.temperature(torch.tensor([0.0, 0.5, 1.0, -1.0], dtype=torch.float64))
    torch.testing.assert_close(tau, torch.tensor([0.1, 0.2, 0.3, 0.3], dtype=torch.float64))
    for map in (dystress, InverseTanh(), dystress.scaled(3.0), InverseTanh().scaled(2.0)):
        again = LogitMap.known[map.name](*map.parameters())
        assert again == map
        (slope,) = torch.autograd.grad(map.value(s).sum(), s)
        torch.testing.assert_close(slope, map.derivative(s.detach()))
        torch.testing.assert_close(map.scaled(2.0).value(s), 2 * map.value(s))
    torch.testing.assert_close(InverseTanh().value(s), 2 * torch.atanh(s))
    torch.testing.assert_close(
        CosineTemperature(0.2, 0.2).value(s), s / 0.2
    )  # equal bounds: an ordinary temperature


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_artanh_is_finite_at_one_and_keeps_its_gradient(dtype: torch.dtype) -> None:
    edge = torch.tensor([1.0, -1.0, 1.0001], dtype=dtype, requires_grad=True)
    value = InverseTanh().value(edge)
    (slope,) = torch.autograd.grad(value.sum(), edge)
    assert bool(value.isfinite().all())
    bound = 1 - torch.finfo(dtype).eps / 2
    torch.testing.assert_close(
        slope, torch.full_like(slope, 2 / (1 - bound * bound)), rtol=1e-2, atol=0
    )


def test_a_map_needs_a_name_of_its_own() -> None:
    with pytest.raises(TypeError, match="name"):
        type("Nameless", (LogitMap,), {})
    with pytest.raises(TypeError, match="name"):
        type("Second", (LogitMap,), {"name": "artanh"})


def test_the_temperature_of_a_contrast() -> None:
    z1, z2, _ = table().split([N, N, EXTRA])
    positive = F.cosine_similarity(z1, z2).detach().repeat(2)
    found = NTXent(CosineTemperature(0.1, 0.3)).contrast(z1, z2).temperature
    torch.testing.assert_close(found, 0.1 + 0.2 * torch.sin(torch.pi * positive / 2) ** 2)
    taus = torch.linspace(0.1, 0.2, 2 * N).double()
    assert torch.equal(NTXent(every_loss.PerAnchor(taus)).contrast(z1, z2).temperature, taus)


def test_temperatures_of_another_length_are_refused() -> None:
    z1, z2, _ = table().split([N, N, EXTRA])
    with pytest.raises(ValueError, match=r"shape \(14,\)"):
        NTXent(every_loss.PerAnchor(torch.ones(N)))(z1, z2)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("logits", ["tau", "tiny-tau", "per-anchor", "map"])
def test_a_bank_may_change_before_the_backward_pass(logits: str, kernel: str | None) -> None:
    z1, z2, more = (part.detach() for part in table().split([N, N, EXTRA]))
    bank = F.normalize(more, dim=1)
    temperature = {
        "tau": 0.1,
        "tiny-tau": 1e-4,
        "per-anchor": every_loss.per_anchor("bank", N).double(),
        "map": InverseTanh(),
    }[logits]
    criterion = criterion_of(NTXent, temperature, "bank", kernel)
    z1.requires_grad_()
    leaves = [z1, *criterion.parameters()]
    expected = torch.autograd.grad(criterion(z1, z2, bank=more).sum(), leaves)
    value = criterion(z1, z2, bank=bank, bank_is_unit=True).sum()
    bank.zero_()
    torch.testing.assert_close(torch.autograd.grad(value, leaves), expected)


def test_a_unit_bank_is_used_as_it_is() -> None:
    z1, z2, bank = (part.detach() for part in table().split([N, N, EXTRA]))
    pairs = NTXent().pairs(Inputs(z1, z2, bank, bank_is_unit=True))
    assert pairs.sides[0].blocks[0].columns is bank


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("function", ["softplus", "identity", "nll_over_scale", "one"])
def test_several_positives_per_anchor(function: str, kernel: str | None) -> None:
    """Σ_p f(lse_neg − s_p/τ) over the rows of an anchor's group; one group is alone."""
    rows = table()
    unit = F.normalize(rows, dim=1)
    groups = torch.arange(len(rows)) % 5
    groups[3] = 99  # no positive
    tau = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)
    same_group = Relation(groups, groups)
    negatives = logsumexp(unit, unit, tau, Plan(Exclusions((), same_group), kernel=kernel)).lse
    positives = Exclusions((0,), classes=same_group, only_classes=True)
    got = pair_sum(
        unit, unit, -1 / tau, negatives, Plan(positives, function=function, kernel=kernel)
    )
    same = groups[:, None] == groups
    s = unit @ unit.T / tau
    x = torch.logsumexp(s.masked_fill(same, -torch.inf), 1)[:, None] - s
    counted = same & ~torch.eye(len(rows), dtype=torch.bool)
    expected = (objectives.objective(function, x) * counted).sum(1)
    torch.testing.assert_close(got, expected)
    assert got[3] == 0
    weights = torch.linspace(-1, 2, len(got), dtype=torch.float64)
    torch.testing.assert_close(
        torch.autograd.grad((weights * got).sum(), (rows, tau), retain_graph=True),
        torch.autograd.grad((weights * expected).sum(), (rows, tau)),
        rtol=1e-9,
        atol=1e-9,
    )


def test_siglip_is_a_pair_sum() -> None:
    rows = table()
    z1, z2, _ = F.normalize(rows, dim=1).split([N, N, EXTRA])
    t, b = (torch.tensor(v, dtype=torch.float64, requires_grad=True) for v in (10.0, -10.0))
    got = (
        pair_sum(z1, z2, t, b, Plan(Exclusions(), function="softplus")) - (t * (z1 * z2).sum(1) + b)
    ).mean()
    sign = 2 * torch.eye(N, dtype=torch.float64) - 1
    expected = -F.logsigmoid(sign * (t * z1 @ z2.T + b)).sum() / N
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got, (rows, t, b), retain_graph=True),
        torch.autograd.grad(expected, (rows, t, b)),
    )


def test_an_offset_of_minus_infinity_adds_nothing() -> None:
    z1, z2, _ = table().split([N, N, EXTRA])
    offset = torch.zeros(N).double()
    offset[2] = -torch.inf
    offset.requires_grad_()
    value = pair_sum(
        z1, z2, torch.tensor(1.0).double(), offset, Plan(Exclusions(), function="identity")
    )
    gradients = torch.autograd.grad(value.sum(), (z1, offset))
    assert value[2] == 0
    assert all(bool(g.isfinite().all()) and bool((g[2] == 0).all()) for g in gradients)
    with pytest.raises(ValueError, match="softplus"):
        pair_sum(z1, z2, offset[0], offset, Plan(Exclusions(), function="cubic"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kernel", KERNELS)
def test_half_precision_rows_get_their_own_type_back(
    kernel: str | None, dtype: torch.dtype
) -> None:
    z1, z2, _ = F.normalize(table().detach(), dim=1).to(dtype).split([N, N, EXTRA])
    z1, z2 = z1.clone().requires_grad_(), z2.clone().requires_grad_()
    for logits in (torch.tensor(0.1), torch.full((N,), 0.1), InverseTanh()):
        value = logsumexp(z1, z2, logits, Plan(Exclusions((0,)), kernel=kernel)).lse
        assert value.dtype == torch.float32
        gradients = torch.autograd.grad(value.sum(), (z1, z2))
        assert all(g.dtype == dtype for g in gradients)
    sums = pair_sum(
        z1,
        z2,
        torch.tensor(2.0),
        torch.tensor(0.0),
        Plan(Exclusions(), function="softplus", kernel=kernel),
    )
    assert sums.dtype == torch.float32
    assert all(g.dtype == dtype for g in torch.autograd.grad(sums.sum(), (z1, z2)))


@pytest.mark.parametrize("kernel", KERNELS)
def test_second_derivatives_are_refused(kernel: str | None) -> None:
    rows = table()
    for logits in (0.1, 1e-4, every_loss.per_anchor("both", N), InverseTanh()):
        value = evaluate(criterion_of(NTXent, logits, "both", kernel), rows, "both").sum()
        with pytest.raises(RuntimeError, match="from_similarities"):
            torch.autograd.grad(value, rows, create_graph=True)
    z1, z2, _ = rows.split([N, N, EXTRA])
    one = torch.tensor(1.0).double()
    value = pair_sum(z1, z2, one, one, Plan(Exclusions(), function="softplus", kernel=kernel)).sum()
    with pytest.raises(RuntimeError, match="second derivative"):
        torch.autograd.grad(value, rows, create_graph=True)


@pytest.mark.parametrize("kernel", KERNELS)
def test_diagonals_of_both_views_hold_in_every_tile(kernel: str) -> None:
    """The one-operation fill for (0, n, −n) must not touch tiles elsewhere in a larger matrix."""
    rows = F.normalize(table().detach(), dim=1)
    exclude = Exclusions((0, 2, -2))
    got = logsumexp(rows, rows, torch.tensor(0.1).double(), Plan(exclude, kernel=kernel)).lse
    i = torch.arange(len(rows))
    gap = i - i[:, None]
    logits = (rows @ rows.T / 0.1).masked_fill((gap.abs() == 2) | (gap == 0), -torch.inf)
    expected = torch.logsumexp(logits, 1)
    torch.testing.assert_close(got, expected)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(tiled, "CPU_TILE", 4)
        got = logsumexp(rows, rows, torch.tensor(0.1).double(), Plan(exclude, kernel=kernel)).lse
    torch.testing.assert_close(got, expected)


def test_selection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MACL_KERNEL", raising=False)
    assert selected(2048, 2048) == ("dense", "4,194,304 similarities are at most 4,194,304")
    assert selected(1024) == ("dense", "1,048,576 similarities are at most 1,048,576")
    assert selected(1025) == ("tiled", "1,050,625 similarities are more than 1,048,576")
    assert selected(2048, 2049) == ("tiled", "4,196,352 similarities are more than 4,194,304")
    assert selected(4096, device="xpu").name == "dense"
    check._reasons.clear()
    with pytest.warns(UserWarning, match="not used on xpu: they are written and compiled for NV"):
        assert selected(4096, 4097, device="xpu").name == "tiled"
    # Half-precision rows go to the kernels earlier; where these cannot run, the matrix is held.
    for dtype, name in ((torch.float16, "triton"), (torch.float32, "dense")):
        check._reasons["cuda"] = ""
        assert selected(1024, device="cuda", dtype=dtype).name == "dense"
        assert selected(1025, device="cuda", dtype=dtype).name == name
        check._reasons["cuda"] = "no driver"
        assert selected(1025, device="cuda", dtype=dtype).name == "dense"
        assert selected(4097, device="cuda", dtype=dtype) == ("tiled", "no driver")
    check._reasons.clear()
    assert selected(9000, kernel="dense") == ("dense", "kernel='dense' was asked for")
    assert selected(9, kernel="torch").name == "tiled"  # as earlier versions called it
    monkeypatch.setenv("MACL_KERNEL", "tiled")
    assert selected(9).name == "tiled"
    assert selected(9, kernel="auto").name == "dense"  # the argument wins
    monkeypatch.setenv("MACL_KERNEL", "fast")
    with pytest.raises(ValueError, match=r"MACL_KERNEL.*auto, dense, tiled, triton"):
        MACL()(torch.eye(3), torch.eye(3))
    with pytest.raises(ValueError, match="kernel"):
        MACL(kernel="cpu")
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    with pytest.raises(ValueError, match="CUDA"):
        selected(9, kernel="triton")


def test_the_selected_implementation_is_the_one_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    closed, forward = dense.closed, tiled.forward

    def recorded(*given: object, hold: bool = False) -> object:
        called.append("dense" if hold else "tiled")
        return forward(*given, hold=hold)

    monkeypatch.setattr(dense, "closed", lambda *given: called.append("dense") or closed(*given))
    monkeypatch.setattr(tiled, "forward", recorded)
    z1, z2, _ = table().split([N, N, EXTRA])
    for criterion, expected in (
        (InfoNCE(), "dense"),
        (InfoNCE(kernel="dense"), "dense"),
        (InfoNCE(kernel="tiled"), "tiled"),
    ):
        called.clear()
        criterion(z1, z2)
        criterion.contrast(z1, z2)
        assert called == [expected, expected]
    monkeypatch.setenv("MACL_KERNEL", "tiled")
    called.clear()
    InfoNCE()(z1, z2)
    assert called == ["tiled"]
    monkeypatch.delenv("MACL_KERNEL")
    for name in ("CPU_LIMIT", "CPU_MIRROR_LIMIT"):
        monkeypatch.setattr(operator, name, N * N - 1)
    called.clear()
    InfoNCE()(z1, z2)
    assert called == ["tiled"]


def test_effective_anchors() -> None:
    z1, z2, _ = table().split([N, N, EXTRA])
    story = NTXent(0.1).contrast(z1, z2)
    w = story.gradient_scale
    torch.testing.assert_close(story.effective_anchors, w.sum() ** 2 / (2 * N * (w**2).sum()))
    easy = NTXent(0.001).contrast(z1, z1)  # every W underflows
    assert 0 < easy.effective_anchors <= 1
    nothing = NTXent().contrast(z1, z2, groups=torch.zeros(N, dtype=torch.int64))
    assert nothing.effective_anchors == 0
