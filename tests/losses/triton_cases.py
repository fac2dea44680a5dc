"""The Triton kernels in the interpreter against float64, and mutants of them: a process of its own.

    TRITON_INTERPRET=1 python tests/losses/triton_cases.py

prints one line of JSON: {"kernels": {case: [[check, error, bound], …]}, "mutants": {name: …}}.
Triton reads the variable when it decorates a kernel, so the test suite starts this file.
"""

from __future__ import annotations

import importlib
import json
import math
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from triton_mutants import MUTANTS, PACKAGE, mutated
from triton_reference import (
    Dispatched,
    Exclusions,
    difference,
    exact,
    exact_pairs,
    groups,
    normal,
    relative,
    unit,
)

Check = tuple[str, float, float]
N, M, D = 70, 75, 20  # every kind of tile occurs, the last ones incomplete


def both_sides(
    kernels: Any,
    rows: Tensor,
    columns: Tensor,
    temperature: float | Tensor,
    exclude: Exclusions | None = None,
    map: Any = None,
    bounds: tuple[float, float] | None = None,
    precision: str = "tf32x3",
) -> Iterator[Check]:
    """lse of rows and columns, and the gradients of both, at one τ or one per row."""
    exclude, tau = exclude or Exclusions(), torch.as_tensor(temperature)
    lowest = float(tau.min())
    bounds = bounds or (1e-6 + 4e-7 / lowest, 1e-5 if lowest >= 0.05 else 5e-5)
    expanded = tau.double().expand(len(rows)).tolist()
    logits, slopes = exact(rows, columns, lambda i, j: expanded[i], exclude, map)
    lse, column_lse = logits.logsumexp(1), logits.logsumexp(0)
    swapped = exclude.transposed()
    options = {"map": map, "precision": precision}
    found = kernels.lse(rows, columns, tau, exclude, **options)
    yield "lse of rows", difference(found, lse), bounds[0]
    found = kernels.lse(columns, rows, tau, swapped, temperature_of="columns", **options)
    yield "lse of columns", difference(found, column_lse), bounds[0]
    weight, column_weight = normal(len(rows), 5), normal(len(columns), 6)
    shares = weight[:, None] * (logits - lse[:, None]).exp()
    shares = shares + column_weight * (logits - column_lse).exp()
    shares = torch.where(logits == -torch.inf, 0.0, shares) * slopes
    mine, other = (weight, lse.float()), (column_weight, column_lse.float())
    gradient = kernels.lse_grad(rows, columns, tau, exclude, *mine, *other, **options)
    yield "rows", relative(gradient, shares @ columns.double()), bounds[1]
    if map is None:
        slope = -(gradient * rows).sum(1) / tau
        closed = -(shares * (rows.double() @ columns.double().T)).sum(1) / tau.double()
        yield "temperature", relative(slope, closed), bounds[1]
    gradient = kernels.lse_grad(
        columns, rows, tau, swapped, *other, *mine, temperature_of="columns", **options
    )
    yield "columns", relative(gradient, shares.T @ rows.double()), bounds[1]
    gradient = kernels.lse_grad(rows, columns, tau, exclude, *mine, **options)
    shares = weight[:, None] * (logits - lse[:, None]).exp() * slopes
    shares = torch.where(logits == -torch.inf, 0.0, shares)
    yield "rows alone", relative(gradient, shares @ columns.double()), bounds[1]


def pairs(
    kernels: Any, function: str, offset: Tensor, exclude: Exclusions, dim: int = D
) -> Iterator[Check]:
    rows, columns, weight = unit(N, dim, 0), unit(M, dim, 1), normal(N, 2)
    scale = torch.tensor(9.0)
    values, slopes, s = exact_pairs(rows, columns, 9.0, offset, exclude, weight, function)
    found = kernels.pair_sum(rows, columns, scale, offset, exclude, function)
    yield "sum", relative(found, values.sum(1)), 2e-6
    parts = kernels.pair_sum_grad(rows, columns, scale, offset, exclude, weight, function)
    d_offset = slopes.sum() if offset.ndim == 0 else slopes.sum(1)
    expected = (9 * slopes @ columns.double(), 9 * slopes.T @ rows.double(), (slopes * s).sum())
    names = ("rows", "columns", "scale", "offset")
    for name, part, value in zip(names, parts, (*expected, d_offset), strict=True):
        assert part.shape == value.shape, name
        yield name, relative(part, value), 1e-5


def ragged(kernels: Any) -> Iterator[Check]:
    """τ = 1 and no diagonals: a column past the end would weigh as much as the others."""
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 1.0)


def opposite(kernels: Any) -> Iterator[Check]:
    """All s ≈ −1 at τ = 0.005: a column past the end (s = 0) would have e^200 in the backward."""
    direction = torch.ones(1, D) / D**0.5
    rows = F.normalize(direction + 0.02 * unit(N, D, 0), dim=1)
    columns = F.normalize(-direction + 0.02 * unit(M, D, 1), dim=1)
    return both_sides(kernels, rows, columns, 0.005, Exclusions((0,)))


def views(kernels: Any) -> Iterator[Check]:
    """Both views: rows are the columns, a row and its positive are excluded."""
    rows = unit(2 * 36, D, 0)
    return both_sides(kernels, rows, rows, 0.1, Exclusions((0, 36, -36)))


def cold(kernels: Any) -> Iterator[Check]:
    """τ = 0.005, and the largest logit in the first tile of one row, the last of another."""
    rows, columns = unit(N, D, 0), unit(M, D, 1)
    columns[0], columns[-1] = rows[3], rows[4]
    return both_sides(kernels, rows, columns, 0.005)


def special_rows(kernels: Any) -> Iterator[Check]:
    """A row of NaN stays NaN; a row without entries has −∞ and gradient 0."""
    rows, columns = unit(N, D, 0), unit(M, D, 1)
    rows[2] = math.nan
    mine, others = torch.arange(N), torch.arange(M) + 1000
    mine[5], others[:] = 7, 7
    exclude = Exclusions((), mine, others)  # row 5 has no entry; so does row 7, of group 7
    tau = torch.tensor(0.1)
    logits, slopes = exact(rows.nan_to_num(), columns, lambda i, j: 0.1, exclude, None)
    expected = logits.logsumexp(1)
    expected[2] = math.nan
    found = kernels.lse(rows, columns, tau, exclude)
    yield "lse", difference(found, expected), 5e-6
    gradient = kernels.lse_grad(rows, columns, tau, exclude, torch.ones(N), found)
    shares = torch.where(logits == -torch.inf, 0.0, (logits - expected[:, None]).exp() * slopes)
    yield "gradient", relative(gradient, shares @ columns.double()), 1e-5
    empty = kernels.lse(rows, columns[:0], tau, Exclusions())
    yield "no columns", float((empty != -torch.inf).sum()), 0.0
    none = kernels.lse_grad(rows, columns[:0], tau, Exclusions(), torch.ones(N), empty)
    yield "no columns, gradient", float(none.abs().max()), 0.0
    yield "no rows", float(kernels.lse(rows[:0], columns, tau, Exclusions()).numel()), 0.0


def grouped(kernels: Any) -> Iterator[Check]:
    """Groups, and a diagonal whose sign matters."""
    exclude = Exclusions((3,), groups(N, 2), groups(M, 3))
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 0.1, exclude)


def only_groups(kernels: Any) -> Iterator[Check]:
    exclude = Exclusions((-2,), groups(N, 2), groups(M, 3), only_groups=True)
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 0.1, exclude)


def per_row(kernels: Any) -> Iterator[Check]:
    """One τ per row, from memory that is not contiguous."""
    taus = torch.linspace(0.05, 1, 2 * N)[::2]
    rows = unit(D, N, 0).T  # columns of length 1; not contiguous
    return both_sides(kernels, rows, unit(M, D, 1), taus, Exclusions((1,)))


def dystress(kernels: Any) -> Iterator[Check]:
    map = SimpleNamespace(name="dystress", lowest=0.1, highest=0.2)
    columns = unit(M, D, 1)
    columns[0], columns[1] = unit(N, D, 0)[0], -unit(N, D, 0)[1]  # s = 1 and −1
    return both_sides(kernels, unit(N, D, 0), columns, 0.1, map=map)


def artanh(kernels: Any) -> Iterator[Check]:
    """2 artanh s; its slope grows without bound, so no s close to 1 here."""
    map = SimpleNamespace(name="artanh")
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 1.0, map=map)


def artanh_at_one(kernels: Any) -> Iterator[Check]:
    """Equal and opposite rows give large finite logits, NaN stays NaN."""
    rows = torch.eye(4)
    rows[3] = math.nan
    columns = torch.stack([rows[0], -rows[0]])
    found = kernels.lse(rows, columns, None, Exclusions(), SimpleNamespace(name="artanh"))
    limit = math.log(2**25 - 1)
    expected = torch.tensor([limit, math.log(2), math.log(2), math.nan]).double()
    yield "lse", difference(found, expected), 1e-5


def softplus(kernels: Any) -> Iterator[Check]:
    """A bias of −10: each term is small, log(1 + y) would lose it."""
    return pairs(kernels, "softplus", torch.tensor(-10.0), Exclusions((0,)))


def softplus_per_row(kernels: Any) -> Iterator[Check]:
    exclude = Exclusions((2,), groups(N, 2), groups(M, 3))
    return pairs(kernels, "softplus", torch.linspace(-9, 2, N), exclude)


def identity(kernels: Any) -> Iterator[Check]:
    exclude = Exclusions((2,), groups(N, 2), groups(M, 3), only_groups=True)
    return pairs(kernels, "identity", torch.linspace(-1, 2, N), exclude, dim=150)


def bfloat16(kernels: Any) -> Iterator[Check]:
    rows, columns = unit(N, 60, 0).bfloat16(), unit(M, 60, 1).bfloat16()
    return both_sides(kernels, rows, columns, 0.1, Exclusions((1,)), bounds=(5e-5, 1e-2))


def float16(kernels: Any) -> Iterator[Check]:
    rows, columns = unit(N, 60, 0).half(), unit(M, 60, 1).half()
    return both_sides(kernels, rows, columns, 0.1, Exclusions((1,)), bounds=(5e-5, 1e-3))


def small_weights(kernels: Any) -> Iterator[Check]:
    """float16 inputs with weights below the smallest float16."""
    rows, columns, weight = unit(N, D, 0).half(), unit(M, D, 1).half(), torch.full((N,), 1e-9)
    logits, _ = exact(rows, columns, lambda i, j: 0.1, Exclusions(), None)
    lse = logits.logsumexp(1)
    found = kernels.lse_grad(rows, columns, torch.tensor(0.1), Exclusions(), weight, lse.float())
    yield "rows", relative(found, 1e-8 * (logits - lse[:, None]).exp() @ columns.double()), 1e-3


def tf32(kernels: Any) -> Iterator[Check]:
    """The error is that of inputs rounded to 11 bits; the products themselves need a GPU."""
    rows, columns = unit(N, 60, 0), unit(M, 60, 1)
    yield from both_sides(kernels, rows, columns, 0.1, bounds=(1e-3, 2e-3), precision="tf32")
    rounded = kernels._ready(torch.cat([rows, torch.full((1, 60), math.nan)]), "tf32")
    yield "rounding", relative(rounded[:-1], rows.double()), 2**-11
    yield "11 bits", float((rounded[:-1].view(torch.int32) & 0x1FFF).count_nonzero()), 0.0
    yield "NaN", float((~rounded[-1].isnan()).sum()), 0.0


def wide(kernels: Any) -> Iterator[Check]:
    """Rows longer than a program accumulates: three parts, the last incomplete."""
    return both_sides(kernels, unit(20, 300, 0), unit(37, 300, 1), 0.1)


def wide_bfloat16(kernels: Any) -> Iterator[Check]:
    rows, columns = unit(20, 300, 0).bfloat16(), unit(37, 300, 1).bfloat16()
    return both_sides(kernels, rows, columns, 0.1, bounds=(5e-5, 1e-2))


def self_check(kernels: Any) -> Iterator[Check]:
    """What decides on a real device whether these kernels are used."""
    module = importlib.import_module(kernels.__name__ + "_check")
    return module.comparisons(torch.device("cpu"))


def row_kernels(kernels: Any) -> Iterator[Check]:
    """Rows of length 1, the mean over the anchors of both views, the gradient to the views."""
    step = importlib.import_module(kernels.__name__ + "_step")
    tau = torch.tensor(0.2)
    z = 3 * torch.stack([normal(18 * 150, seed).view(18, 150) for seed in (0, 1)])
    z[0, 4] = 0
    rows = z.double().flatten(0, 1).requires_grad_()
    units = rows / rows.norm(dim=1, keepdim=True).clamp(min=1e-9)
    positive = (units[:18] * units[18:]).sum(1).repeat(2)
    # One negative each, in the other view: the row that follows the positive.
    other = torch.cat([units[18:].roll(-1, 0), units[:18].roll(-1, 0)])
    negative = (units * other).sum(1)
    unit = step.normalised(*z)
    yield "rows", relative(unit.rows, units.detach()), 1e-6
    yield "positives", relative(unit.positive, positive[:18].detach()), 1e-6
    for function, f in (("softplus", F.softplus), ("identity", lambda x: x)):
        loss = f((negative - positive) / 0.2).mean()
        (gradient,) = torch.autograd.grad(loss, rows, retain_graph=True)
        gradient[4] = 0  # a row of zeros does not turn
        lse = (negative / 0.2).detach().float()
        mean, weights = step.anchors(lse, unit, tau, function)
        yield f"mean {function}", abs(float(mean - loss.detach())), 1e-6
        w, u = (weights / tau)[:, None], unit.rows
        pulls = w * other.detach().float()
        pulls[18:] += (w * u)[:18].roll(1, 0)
        pulls[:18] += (w * u)[18:].roll(1, 0)
        found = step.projected(pulls, unit, weights, tau, torch.tensor(1.0), torch.float32)
        yield f"gradient {function}", relative(found, gradient), 1e-5


def launches(kernels: Any) -> Iterator[Check]:
    """Both views, forward and backward: two kernels and nothing else."""
    launch = importlib.import_module(kernels.__name__ + "_launch").Launch
    run, counted = launch.run, []

    def count(self: Any) -> None:
        counted.append(len(dispatched.names))
        run(self)
        del dispatched.names[counted[-1] :]  # what the interpreter itself dispatches

    rows, tau, exclude = unit(20, D, 0), torch.tensor(0.1), Exclusions((0, 10, -10))
    weight, dispatched = torch.ones(20), Dispatched()
    launch.run = count
    try:
        with dispatched:
            lse = kernels.lse(rows, rows, tau, exclude)
            kernels.lse_grad(rows, rows, tau, exclude, weight, lse, weight, lse)
    finally:
        launch.run = run
    yield "kernels", float(len(counted)), 2.0
    yield "other operators", float(len(dispatched.names)), 0.0


CASES: dict[str, Callable[[Any], Iterator[Check]]] = {
    case.__name__: case
    for case in (
        ragged, opposite, views, cold, special_rows, grouped, only_groups, per_row, dystress,
        artanh, artanh_at_one, softplus, softplus_per_row, identity, bfloat16, float16,
        small_weights, row_kernels, launches, tf32, wide, wide_bfloat16, self_check,
    )
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    kernels = importlib.import_module(f"{PACKAGE}.triton")
    found: dict[str, dict[str, list[Check]]] = {"mutants": {}}
    found["kernels"] = {name: list(case(kernels)) for name, case in CASES.items()}
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for number, (name, mutant) in enumerate(MUTANTS.items()):
            changed = mutated(mutant, f"mutant_{number}", Path(folder))
            found["mutants"][name] = list(CASES[mutant.case](changed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
