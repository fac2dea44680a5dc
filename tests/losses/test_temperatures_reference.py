"""DySTreSS, temperature-free, SigLIP, SupCon and several positives against float64 loops."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import temperature_reference as truth
import torch
from reference import Loss, by_similarity, dot, similarities, unit
from temperature_cases import FORMS, Case, case, close
from torch import Tensor

from macl import (
    DCL,
    MACL,
    ContrastiveLoss,
    DySTreSS,
    FlatNCE,
    InfoNCE,
    NTXent,
    SigLIP,
    SupCon,
    TemperatureFree,
)

T, B = math.exp(1.25), -1.75  # t' and b are exact in float32, the type in which they start
LOSSES: dict[str, tuple[Callable[..., ContrastiveLoss], truth.ByAnchor]] = {
    "dystress": (lambda **form: DySTreSS(0.15, 0.4, **form), truth.dystress(0.15, 0.4)),
    "shifted": (
        lambda **form: DySTreSS(0.2, 0.3, shift=0.4, width=0.7, **form),
        truth.shifted_dystress(0.2, 0.3, 0.4, 0.7),
    ),
    "shifted below 0": (
        lambda **form: DySTreSS(0.2, 0.21, shift=-0.3, width=0.5, **form),
        truth.shifted_dystress(0.2, 0.21, -0.3, 0.5),
    ),
    "temperature-free": (TemperatureFree, truth.temperature_free()),
    "siglip": (lambda **form: SigLIP(1 / T, B, **form).double(), truth.siglip(T, B)),
}


def check(name: str, batch: Case, kernel: str | None = None) -> None:
    build, formula = LOSSES[name]
    criterion = build(kernel=kernel, reduction="none", **batch.settings())
    if batch.n > 2 and name == "temperature-free" and batch.form != "bank":
        with torch.no_grad():  # equal rows have an infinite logit, tested elsewhere
            batch.rows[1] += 0.3
    anchors = batch.anchors()
    weights = [0.5 + 0.25 * (i % batch.n) for i in range(len(anchors))]
    values, gradient = truth.evaluate(formula, batch.table(), anchors, weights)
    got = criterion.contrast(*batch.views(), **batch.arguments())
    close(got.per_anchor, values)
    got.loss.mul(torch.tensor(weights)).sum().backward()
    close(batch.rows.grad, gradient)
    mean = build(kernel=kernel, **batch.settings())(*batch.views(), **batch.arguments())
    close(mean, math.fsum(values) / len(values))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_value_and_gradient(name: str, form: str) -> None:
    check(name, case(form, 7, 0, grouped=False))
    check(name, case(form, 5, 1, grouped=True))


@pytest.mark.parametrize("name", LOSSES)
def test_two_pairs(name: str) -> None:
    check(name, case("both", 2, 2, grouped=False))
    check(name, case("cross", 2, 3, grouped=False))


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_streamed_where_nothing_is_kept(name: str, form: str) -> None:
    """Large batches, and other devices than the CPU."""
    check(name, case(form, 5, 2, grouped=True), kernel="torch")


@pytest.mark.parametrize("form", FORMS)
def test_siglip_s_own_parameters(form: str) -> None:
    batch = case(form, 5, 4, grouped=True)
    criterion = SigLIP(1 / T, B, **batch.settings()).double()
    criterion(*batch.views(), **batch.arguments()).backward()
    positives, negatives = similarities(batch.table(), batch.anchors())
    weights = [1 / len(positives)] * len(positives)
    by_scale, by_bias = truth.siglip_parameters(T, B, positives, negatives, weights)
    parameters = dict(criterion.named_parameters())
    assert set(parameters) == {"temperature.log_scale", "bias"}
    close(parameters["temperature.log_scale"].grad, by_scale)
    close(parameters["bias"].grad, by_bias)


def several(
    batch: Case, classes: list[int], cross: bool, symmetric: bool
) -> list[tuple[int, list[int], list[int]]]:
    """Anchor, its positives and its negatives, as indices into the 2n rows."""
    n = batch.n
    found = []
    for row in range(n if cross and not symmetric else 2 * n):
        candidates = [j for j in range(2 * n) if (j // n != row // n if cross else j != row)]
        same = [j for j in candidates if classes[j % n] == classes[row % n]]
        found.append((row, same, [j for j in candidates if j not in same]))
    return found


def by_rows(
    batch: Case, parts: list[tuple[int, dict[int, float]]], weight: float
) -> list[list[float]]:
    """The chain rule from derivatives by similarities to the rows."""
    rows = batch.table()
    units = [unit(row) for row in rows]
    d_units = torch.zeros(len(rows), len(rows[0]), dtype=torch.float64)
    table = torch.tensor(units, dtype=torch.float64)
    for row, slopes in parts:
        for other, slope in slopes.items():
            d_units[row] += weight * slope * table[other]
            d_units[other] += weight * slope * table[row]
    lengths = batch.rows.detach().norm(dim=1, keepdim=True)
    radial = (d_units * table).sum(1, keepdim=True)
    return ((d_units - radial * table) / lengths).tolist()


@pytest.mark.parametrize("kernel", [None, "torch"])
@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("shape", ["both", "cross", "one-direction"])
def test_sup_con(form: Any, shape: str, kernel: str | None) -> None:
    batch = case(shape, 7, 5, grouped=False)
    classes = [0, 1, 0, 2, 1, 0, 3]
    cross = shape != "both"
    settings = {**batch.settings(), "kernel": kernel}
    units = [unit(row) for row in batch.table()]
    anchors = several(batch, classes, cross, shape == "cross")
    parts, values = [], []
    for row, positives, others in anchors:
        value, slopes = truth.sup_con(form, 0.3, units, row, positives, others)
        values.append(value)
        parts.append((row, slopes))
    got = SupCon(0.3, form, **settings).contrast(*batch.views(), labels=torch.tensor(classes))
    close(got.per_anchor, values)
    got.loss.backward()
    close(batch.rows.grad, by_rows(batch, parts, 1 / len(values)))
    assert float(got.metrics()["positives_per_anchor"]) == pytest.approx(
        sum(len(p) for _, p, _ in anchors) / len(anchors)
    )


@pytest.mark.parametrize("form", ["out", "in"])
def test_sup_con_of_one_view_leaves_out_anchors_without_positives(form: Any) -> None:
    batch = case("both", 7, 6, grouped=False)
    z = batch.rows[:7]
    classes = [0, 1, 0, 2, 1, 0, 3]  # 2 and 3 occur once
    units = [unit(row) for row in batch.table()]
    parts, values = [], []
    for row in range(7):
        positives = [j for j in range(7) if j != row and classes[j] == classes[row]]
        others = [j for j in range(7) if classes[j] != classes[row]]
        if positives:
            value, slopes = truth.sup_con(form, 0.3, units, row, positives, others)
            values.append(value)
            parts.append((row, slopes))
    assert len(values) == 5
    loss = SupCon(0.3, form)(z, labels=torch.tensor(classes))
    close(loss, math.fsum(values) / 5)
    loss.backward()
    close(batch.rows.grad, by_rows(batch, parts, 1 / 5))


OBJECTIVES: dict[str, tuple[Callable[..., ContrastiveLoss], Loss]] = {
    "info-nce": (InfoNCE, Loss("info_nce", 0.3)),
    "nt-xent": (NTXent, Loss("info_nce", 0.3)),
    "dcl": (DCL, Loss("dcl", 0.3)),
    "flat-nce": (FlatNCE, Loss("flat_nce", 0.3)),
    "macl": (lambda tau, **form: MACL(tau, 0.0, **form), Loss("reweighted", 0.3)),
    "macl-plain": (
        lambda tau, **form: MACL(tau, 0.0, reweight=False, **form),
        Loss("info_nce", 0.3),
    ),
}


@pytest.mark.parametrize("shape", ["both", "cross", "one-direction"])
@pytest.mark.parametrize("kernel", [None, "torch"])
@pytest.mark.parametrize("name", OBJECTIVES)
def test_several_positives_are_a_mean_over_them(name: str, shape: str, kernel: str | None) -> None:
    build, loss = OBJECTIVES[name]
    batch = case(shape, 5, 7, grouped=False)
    classes = [0, 1, 0, 2, 1]
    units = [unit(row) for row in batch.table()]
    values, parts = [], []
    for row, positives, others in several(batch, classes, shape != "both", shape == "cross"):
        value = 0.0
        for p in positives:
            s = dot(units[row], units[p])
            negatives = [dot(units[row], units[j]) for j in others]
            found = by_similarity(loss, [s], [negatives])
            value += found.values[0] / len(positives)
            slopes = {p: found.d_positive[0] / len(positives)}
            slopes |= {
                j: d / len(positives) for j, d in zip(others, found.d_negatives[0], strict=True)
            }
            parts.append((row, slopes))
        values.append(value)
    criterion = build(0.3, kernel=kernel, **batch.settings())
    got = criterion.contrast(*batch.views(), positives=torch.tensor(classes))
    close(got.per_anchor, values)
    got.loss.backward()
    close(batch.rows.grad, by_rows(batch, parts, 1 / len(values)))


def test_distinct_positives_are_the_ordinary_loss() -> None:
    batch = case("both", 5, 8, grouped=False)
    alone = torch.arange(5)
    for criterion in (NTXent(0.2), DCL(0.2), MACL(0.2), InfoNCE(0.2)):
        one = criterion.contrast(*batch.views())
        two = criterion.contrast(*batch.views(), positives=alone)
        for name in ("loss", "per_anchor", "margin", "alignment", "temperature"):
            close(getattr(two, name), getattr(one, name).detach())


def test_from_similarities() -> None:
    generator = torch.Generator().manual_seed(9)
    pos, neg = torch.rand(4, 1, generator=generator), torch.rand(4, 6, generator=generator)
    pos, neg = pos.double(), neg.double()

    def expected(formula: truth.ByAnchor) -> float:
        rows = zip(pos[:, 0].tolist(), neg.tolist(), strict=True)
        return math.fsum(formula(s, others)[0] for s, others in rows) / 4

    for build, formula in LOSSES.values():
        got: Tensor = build().from_similarities(pos, neg)
        close(got, expected(formula))
    torch.testing.assert_close(
        SupCon(0.2).from_similarities(pos, neg), NTXent(0.2).from_similarities(pos, neg)
    )
