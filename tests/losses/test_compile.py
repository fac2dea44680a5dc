"""Every loss under torch.compile(fullgraph=True), forward and backward: the eager result."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import every_loss
import pytest
import torch
from torch import Tensor

from macl import NTXent
from macl.losses.ops import CosineTemperature, Exclusions, Guide, Listed, Relation, compiled
from macl.losses.ops.operator import pair_sum
from macl.losses.ops.tiled import Plan

DIM, EXTRA = 5, 3
ALL = os.environ.get("MACL_COMPILE_ALL") == "1"


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


def check(name: str, form: str, backend: str, dynamic: bool) -> None:
    fixed = name.startswith("per-anchor")  # its parameter fixes the number of anchors
    criterion = every_loss.build(name, form, 6).double()

    def step(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        z1, z2, more, groups, more_groups = tensors
        story = criterion.contrast(z1, z2, **every_loss.keywords(form, more, groups, more_groups))
        return story.loss + criterion(z1, z2), story.info_nce

    compiled_step = torch.compile(step, fullgraph=True, backend=backend, dynamic=dynamic)
    for n in (6, 6) if fixed or not dynamic else (6, 8):
        generator = torch.Generator().manual_seed(n)
        rows = [torch.randn(k, DIM, generator=generator).double() for k in (n, n, n + EXTRA)]
        leaves = [r.requires_grad_() for r in rows]
        groups, more_groups = torch.arange(n) % 4, torch.arange(n + EXTRA) % 5
        wanted = [*leaves[: 3 if form in ("bank", "hard") else 2], *criterion.parameters()]
        results = []
        for function in (step, compiled_step):
            loss, figure = function(*leaves, groups, more_groups)
            results.append([loss, figure, *torch.autograd.grad(loss, wanted)])
        torch.testing.assert_close(results[1], results[0], rtol=1e-9, atol=1e-9)


QUICK = ("MACL", "HCL", "learned", "per-anchor")
"""A loss of each kind: one margin, two logsumexps, a parameter, a temperature per anchor."""


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else [pytest.mark.slow])
        for name in every_loss.LOSSES
    ],
)
def test_both_views(name: str) -> None:
    check(name, "both", "aot_eager", dynamic=not name.startswith("per-anchor"))


@pytest.mark.parametrize(
    "form",
    [
        "cross",
        pytest.param("bank", marks=pytest.mark.slow),
        pytest.param("hard", marks=pytest.mark.slow),
    ],
)
def test_forms(form: str) -> None:
    check("MACL", form, "aot_eager", dynamic=True)


@pytest.mark.parametrize(
    ("name", "form"), [("HCL", "hard"), ("learned", "bank"), ("artanh", "cross"), ("DCLW", "cross")]
)
def test_static_shapes(name: str, form: str) -> None:
    check(name, form, "aot_eager", dynamic=False)


@pytest.mark.slow
@pytest.mark.skipif(ALL, reason="all of them are compiled")
@pytest.mark.parametrize(
    ("name", "form", "dynamic"),
    [("MACL", "both", True), ("HCL", "bank", False), ("learned", "cross", False)],
)
def test_inductor(name: str, form: str, dynamic: bool) -> None:
    check(name, form, "inductor", dynamic)


@pytest.mark.slow
@pytest.mark.skipif(not ALL, reason="minutes of compiling C++: MACL_COMPILE_ALL=1")
@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", every_loss.LOSSES)
def test_inductor_takes_every_loss(name: str, dynamic: bool) -> None:
    check(name, "both", "inductor", dynamic)


def operators() -> dict[str, tuple[Callable[..., object], tuple[object, ...]]]:
    generator = torch.Generator().manual_seed(0)
    rows, columns = (
        torch.nn.functional.normalize(torch.randn(k, DIM, generator=generator), dim=1)
        .double()
        .requires_grad_()
        for k in (6, 8)
    )
    tau = torch.tensor(0.3).double().requires_grad_()
    taus = torch.linspace(0.2, 0.5, 6).double().requires_grad_()
    groups = Exclusions((1,), Relation(torch.arange(6) % 3, torch.arange(8) % 3))
    listed = Listed(torch.tensor([0, 4]), torch.tensor([7, 2]), torch.ones(2).double())
    guide = Guide(rows.detach(), columns.detach(), torch.zeros(6).double())
    labels = Relation(torch.eye(6, 3) + 1, torch.eye(8, 3))
    more = Exclusions((), None, labels, False, listed, guide)
    offset = torch.linspace(-1, 1, 6).double().requires_grad_()
    plans = {
        "both": (tau, Plan(groups, "both")),
        "statistics": (tau, Plan(more, statistics=True)),
        "per row": (taus, Plan(groups, kernel="tiled")),
        "map": (None, Plan(groups, "both", CosineTemperature(0.2, 0.4))),
    }
    logsumexps = {
        name: (compiled._reduce, (rows, columns, temperature, None, *compiled.parts_of(plan)))
        for name, (temperature, plan) in plans.items()
    }
    sum_of = (rows, columns, tau, offset, *compiled.parts_of(Plan(more, function="softplus")))
    return {**logsumexps, "sum": (compiled._reduce, sum_of)}


@pytest.mark.parametrize("name", operators())
def test_operators_keep_torch_s_contract(name: str) -> None:
    operator, arguments = operators()[name]
    torch.library.opcheck(operator, arguments)


def test_pair_sum_compiles() -> None:
    generator = torch.Generator().manual_seed(0)
    rows, columns = (torch.randn(k, DIM, generator=generator).double() for k in (6, 8))
    scale, offset = torch.tensor(2.0).double(), torch.linspace(-1, 1, 6).double()
    offset[3] = -torch.inf
    leaves = [t.requires_grad_() for t in (rows, columns, scale, offset)]

    def step(*tensors: Tensor) -> Tensor:
        classes = Relation(torch.arange(6) % 3, torch.arange(8) % 3)
        exclude = Exclusions((0,), classes=classes, only_classes=True)
        return pair_sum(*tensors, Plan(exclude, function="softplus")).sum()

    expected, got = (
        function(*leaves)
        for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager"))
    )
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves)
    )


@pytest.mark.parametrize("positives", ["labels", "several labels", "listed"])
def test_several_positives_and_a_guide_compile(positives: str) -> None:
    generator = torch.Generator().manual_seed(0)
    z1, z2, g1, g2 = torch.randn(4, 6, DIM, generator=generator).double().unbind(0)
    i = torch.arange(6)
    given = {
        "labels": i % 3,
        "several labels": torch.nn.functional.one_hot(i % 3, 4) | torch.tensor([0, 1, 0, 0]),
        "listed": (i, i.flip(0), torch.linspace(0.5, 2, 6).double()),
    }[positives]
    criterion = NTXent(0.3)
    leaves = [z1.requires_grad_(), z2.requires_grad_()]

    def step(*views: Tensor) -> Tensor:
        return criterion(*views, positives=given, guide=(g1, g2))

    expected, got = (
        function(*leaves)
        for function in (step, torch.compile(step, fullgraph=True, backend="aot_eager"))
    )
    torch.testing.assert_close(got, expected)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves), torch.autograd.grad(expected, leaves)
    )
