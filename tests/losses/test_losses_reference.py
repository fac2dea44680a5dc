"""Every loss, form, mask, weight and reduction against the triple loop of reference.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import product

import pytest
import reference
import torch
from hypothesis import given, note, settings
from hypothesis import strategies as st
from torch import Tensor

from macl import (
    DCL,
    DCLW,
    HCL,
    MACL,
    ContrastiveLoss,
    DualTemperature,
    FlatNCE,
    InfoNCE,
    LossOutput,
    NTXent,
)

TAUS = (0.05, 0.1, 0.3, 1.0)
LOSSES: dict[str, tuple[Callable[..., ContrastiveLoss], Callable[[float], reference.Loss]]] = {
    "info-nce": (InfoNCE, lambda tau: reference.Loss("info_nce", tau)),
    "nt-xent": (NTXent, lambda tau: reference.Loss("info_nce", tau)),
    "dcl": (DCL, lambda tau: reference.Loss("dcl", tau)),
    "dclw": (DCLW, lambda tau: reference.Loss("dclw", tau)),
    "flat-nce": (FlatNCE, lambda tau: reference.Loss("flat_nce", tau)),
    "dual": (DualTemperature, lambda tau: reference.Loss("dual", tau, beta=10.0)),
    "hcl": (HCL, lambda tau: reference.Loss("hcl", tau)),
    "hcl-biased": (
        lambda tau, **form: HCL(tau, beta=0.5, tau_plus=0.0, **form),
        lambda tau: reference.Loss("hcl", tau, beta=0.5, tau_plus=0.0),
    ),
    "debiased": (
        lambda tau, **form: HCL(tau, beta=0.0, **form),
        lambda tau: reference.Loss("hcl", tau, beta=0.0),
    ),
    "macl": (
        lambda tau, **form: MACL(tau, 0.5, 0.2, **form),
        lambda tau: reference.Loss("reweighted", tau, alpha=0.5, threshold=0.2),
    ),
    "macl-no-reweight": (
        lambda tau, **form: MACL(tau, 2.0, 0.8, reweight=False, **form),
        lambda tau: reference.Loss("info_nce", tau, alpha=2.0, threshold=0.8),
    ),
}
FORMS = ("both", "cross", "one-direction", "bank", "hard", "hard-one-direction")


@pytest.fixture(params=["auto", "torch"], autouse=True)
def kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MACL_KERNEL", request.param)


def tables(rows: int, dim: int) -> st.SearchStrategy[list[list[float]]]:
    """Rows of floats, or of small integers: the latter make equal, opposite and zero rows."""
    plain = st.floats(-2, 2, width=32).filter(lambda v: v == 0 or abs(v) > 1e-6)
    whole = st.integers(-2, 2).map(float)
    row = st.one_of(
        st.lists(plain, min_size=dim, max_size=dim), st.lists(whole, min_size=dim, max_size=dim)
    )
    return st.lists(row, min_size=rows, max_size=rows)


def labels(rows: int) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(0, 2), min_size=rows, max_size=rows)


def close(got: Tensor, expected: list[float] | list[list[float]]) -> None:
    truth = torch.tensor(expected, dtype=torch.float64)
    scale = max(1.0, float(truth.abs().max()))
    torch.testing.assert_close(got, truth, rtol=1e-10, atol=1e-10 * scale)


@dataclass(frozen=True)
class Case:
    """Two views of n rows, then a bank's or the hard negatives' rows, in one table."""

    form: str
    n: int
    rows: list[list[float]]
    groups: list[int] | None
    more_groups: list[int] | None
    weights: list[float] | None

    @property
    def symmetric(self) -> bool:
        return self.form in ("cross", "hard")

    def anchors(self) -> list[reference.Anchor]:
        extra = len(self.rows) - 2 * self.n
        if self.form == "both":
            return reference.both_views(self.n, self.groups)
        if self.form == "bank":
            return reference.bank_view(self.n, extra, self.groups, self.more_groups)
        return reference.cross_view(self.n, self.groups, self.symmetric, extra, self.more_groups)

    def contrast(self, criterion: ContrastiveLoss, table: Tensor) -> LossOutput:
        more = table[2 * self.n :]
        more_groups = None if self.more_groups is None else torch.tensor(self.more_groups)
        return criterion.contrast(
            table[: self.n],
            table[self.n : 2 * self.n],
            bank=more if self.form == "bank" else None,
            hard=more if self.form.startswith("hard") else None,
            groups=None if self.groups is None else torch.tensor(self.groups),
            bank_groups=more_groups if self.form == "bank" else None,
            hard_groups=more_groups if self.form.startswith("hard") else None,
            weights=None if self.weights is None else torch.tensor(self.weights),
        )


@st.composite
def cases(draw: st.DrawFn, form: str) -> Case:
    n, dim = draw(st.integers(2, 4)), draw(st.integers(1, 4))
    extra = draw(st.integers(1, 4)) if form.startswith(("bank", "hard")) else 0
    groups = draw(st.none() | labels(n))
    with_more = groups is not None and (form == "bank" or (extra and draw(st.booleans())))
    return Case(
        form,
        n,
        rows=draw(tables(2 * n + extra, dim)),
        groups=groups,
        more_groups=draw(labels(extra)) if with_more else None,
        weights=draw(
            st.none() | st.lists(st.sampled_from((0.25, 1.0, 3.0)), min_size=n, max_size=n)
        ),
    )


@pytest.mark.parametrize("form", FORMS)
@settings(max_examples=20)
@given(data=st.data(), tau=st.sampled_from(TAUS), reduction=st.sampled_from(("mean", "none")))
def test_value_and_gradient_equal_the_loops(
    form: str, data: st.DataObject, tau: float, reduction: str
) -> None:
    case = data.draw(cases(form))
    anchors = case.anchors()
    weights = (case.weights or [1.0] * case.n) * (len(anchors) // case.n)
    # "none" hands one value per anchor to the caller, who may weigh them: here by 1, 2, 3, ...
    outer = [1.0 + i for i in range(len(anchors))]
    coefficients = [
        w / sum(weights) if reduction == "mean" else w * o
        for w, o in zip(weights, outer, strict=True)
    ]
    for name, (build, describe) in LOSSES.items():
        note(name)
        try:
            values, gradient = reference.loss_and_gradient(
                describe(tau), case.rows, anchors, coefficients
            )
        except reference.NearKink:
            continue
        table = torch.tensor(case.rows, dtype=torch.float64, requires_grad=True)
        criterion = build(
            tau,
            negatives="both" if form == "both" else "cross",
            symmetric=case.symmetric,
            reduction=reduction,
        )
        told = case.contrast(criterion, table)
        close(told.per_anchor, values)
        if reduction == "mean":
            close(told.loss, sum(c * v for c, v in zip(coefficients, values, strict=True)))
            told.loss.backward()
        else:
            close(told.loss, [w * v for w, v in zip(weights, values, strict=True)])
            (told.loss * torch.tensor(outer)).sum().backward()
        assert table.grad is not None
        close(table.grad, gradient)


@settings(max_examples=25)
@given(data=st.data(), tau=st.sampled_from(TAUS), n=st.integers(1, 4), k=st.integers(1, 5))
def test_explicit_similarities_equal_the_loops(
    data: st.DataObject, tau: float, n: int, k: int
) -> None:
    similarities = st.lists(st.floats(-1, 1), min_size=n, max_size=n)
    pos = data.draw(similarities)
    neg = [list(row) for row in zip(*[data.draw(similarities) for _ in range(k)], strict=True)]
    for name, (build, describe) in LOSSES.items():
        note(name)
        try:
            expected = reference.by_similarity(describe(tau), pos, neg)
        except reference.NearKink:
            continue
        positive = torch.tensor(pos, dtype=torch.float64)[:, None].requires_grad_()
        negative = torch.tensor(neg, dtype=torch.float64, requires_grad=True)
        value = build(tau).from_similarities(positive, negative)
        value.backward()
        assert positive.grad is not None
        assert negative.grad is not None
        close(value, sum(expected.values) / n)
        close(positive.grad[:, 0], [d / n for d in expected.d_positive])
        close(negative.grad, [[d / n for d in row] for row in expected.d_negatives])


def test_the_story_of_a_contrast() -> None:
    torch.manual_seed(0)
    table = torch.randn(10, 3, dtype=torch.float64)
    z1, z2 = table[:5], table[5:]
    told = MACL(0.1, 0.5, 0.2).contrast(z1, z2)
    units = [reference.unit(row) for row in table.tolist()]
    positives = [reference.dot(units[i], units[i + 5]) for i in range(5)]
    alignment = sum(positives) / 5
    tau = 0.1 * (1 + 0.5 * (alignment - 0.2))
    margins = [
        reference.margin(
            tau,
            reference.dot(units[a.row], units[a.positive]),
            [reference.dot(units[a.row], units[j]) for j in a.negatives],
        )
        for a in reference.both_views(5, None)
    ]
    x = torch.tensor(margins, dtype=torch.float64)
    close(told.alignment, alignment)
    close(told.temperature, tau)
    close(told.margin, margins)
    close(told.gradient_scale, (1 / (1 + torch.exp(-x))).tolist())
    close(told.info_nce, float(torch.log1p(torch.exp(x)).mean()))
    assert not told.floored


def test_an_anchor_without_negatives_costs_nothing() -> None:
    z1 = torch.randn(3, 4, generator=torch.Generator().manual_seed(0), requires_grad=True)
    z2 = torch.randn(3, 4, generator=torch.Generator().manual_seed(1))
    same = torch.zeros(3, dtype=torch.int64)
    for build, _ in LOSSES.values():
        for negatives, tau in product(("both", "cross"), (0.1, 0.001)):
            value = build(tau, negatives=negatives)(z1, z2, groups=same)
            (gradient,) = torch.autograd.grad(value, z1)
            assert value == 0
            assert bool((gradient == 0).all())


def test_hcl_s_clamp_stops_the_negatives_gradient() -> None:
    """Far negatives and a far positive: debiasing leaves something, but less than K·e^{−1/τ}."""
    pos, neg = [-0.9, 0.3], [[-1.0, -1.0], [0.2, -0.4]]
    expected = reference.by_similarity(reference.Loss("hcl", 0.5), pos, neg)
    positive = torch.tensor(pos, dtype=torch.float64, requires_grad=True)
    negative = torch.tensor(neg, dtype=torch.float64, requires_grad=True)
    HCL(0.5, reduction="none").from_similarities(positive, negative).sum().backward()
    assert expected.d_negatives[0] == [0.0, 0.0]
    assert positive.grad is not None
    assert negative.grad is not None
    close(positive.grad, expected.d_positive)
    close(negative.grad, expected.d_negatives)
