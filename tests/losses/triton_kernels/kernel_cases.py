"""The Triton kernels in the interpreter against float64, and mutants of them: a process of its own.

    TRITON_INTERPRET=1 python tests/losses/triton_kernels/kernel_cases.py [CASE …] [--mutants]

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
from typing import Any

import torch
import torch.nn.functional as F
from kernel_inputs import (
    ARTANH,
    DYSTRESS,
    difference,
    exact,
    exact_pairs,
    excluding,
    groups,
    normal,
    relative,
    unit,
)
from kernel_mutants import MUTANTS, PACKAGE, mutated
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from macl.losses.ops.exclusions import Exclusions

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
    **options: Any,
) -> Iterator[Check]:
    """lse of rows and columns, statistics, and the gradients of both, at one τ or one per row."""
    exclude, tau = exclude or excluding(), torch.as_tensor(temperature)
    lowest = float(tau.min())
    bounds = bounds or (1e-6 + 4e-7 / lowest, 1e-5 if lowest >= 0.05 else 5e-5)
    logits, slopes, s = exact(rows, columns, tau, exclude, map)
    lse, column_lse = logits.logsumexp(1), logits.logsumexp(0)
    swapped = exclude.transposed()
    options["map"] = map
    found = kernels.lse(rows, columns, tau, exclude, **options)
    yield "lse of rows", difference(found, lse), bounds[0]
    whole = kernels.lse(columns, rows, tau, swapped, temperature_of="columns", **options)
    yield "lse of columns", difference(whole, column_lse), bounds[0]
    again, mean, square = kernels.lse(rows, columns, tau, exclude, stats=True, **options)
    yield "lse with statistics", difference(again, lse), bounds[0]
    share = (logits - lse[:, None]).exp()
    yield "mean logit", relative(mean, (share * logits.nan_to_num(neginf=0)).sum(1)), bounds[1]
    yield "mean square", relative(square, (share * s**2).sum(1)), bounds[1]
    weight, column_weight = normal(len(rows), 5), normal(len(columns), 6)
    mine, other = (weight, lse.float()), (column_weight, column_lse.float())
    own = weight[:, None] * share * slopes
    shares = own + column_weight * (logits - column_lse).exp() * slopes
    gradient = kernels.lse_grad(rows, columns, tau, exclude, *mine, *other, **options)
    yield "rows", relative(gradient, shares @ columns.double()), bounds[1]
    if map is None:
        slope = -(gradient * rows).sum(1) / tau
        yield "temperature", relative(slope, -(shares * s).sum(1) / tau.double()), bounds[1]
    gradient = kernels.lse_grad(
        columns, rows, tau, swapped, *other, *mine, temperature_of="columns", **options
    )
    yield "columns", relative(gradient, shares.T @ rows.double()), bounds[1]
    gradient = kernels.lse_grad(rows, columns, tau, exclude, *mine, **options)
    yield "rows alone", relative(gradient, own @ columns.double()), bounds[1]


def pairs(
    kernels: Any, function: str, offset: Tensor, exclude: Exclusions, dim: int = D
) -> Iterator[Check]:
    rows, columns, weight = unit(N, dim, 0), unit(M, dim, 1), normal(N, 2)
    scale, s = torch.tensor(9.0), rows.double() @ columns.double().T
    values, slopes = exact_pairs(s, 9.0, offset, exclude, weight, function)
    found = kernels.pair_sum(rows, columns, scale, offset, exclude, function)
    yield "sum", relative(found, values.sum(1)), 2e-6
    parts = kernels.pair_sum_grad(rows, columns, scale, offset, exclude, weight, function)
    d_offset = slopes.sum() if offset.ndim == 0 else slopes.sum(1)
    expected = (9 * slopes @ columns.double(), 9 * slopes.T @ rows.double(), (slopes * s).sum())
    names = ("rows", "columns", "scale", "offset")
    for name, part, value in zip(names, parts, (*expected, d_offset), strict=True):
        yield name, relative(part, value), 1e-5


def ragged(kernels: Any) -> Iterator[Check]:
    """τ = 1 and no diagonals: a column past the end would weigh as much as the others."""
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 1.0)


def opposite(kernels: Any) -> Iterator[Check]:
    """All s ≈ −1 at τ = 0.005: a column past the end (s = 0) would have e^200 in the backward."""
    direction = torch.ones(1, D) / D**0.5
    rows = F.normalize(direction + 0.02 * unit(N, D, 0), dim=1)
    columns = F.normalize(-direction + 0.02 * unit(M, D, 1), dim=1)
    return both_sides(kernels, rows, columns, 0.005, excluding((0,)))


def views(kernels: Any) -> Iterator[Check]:
    """Both views: rows are the columns, a row and its positive are excluded."""
    rows = unit(2 * 36, D, 0)
    return both_sides(kernels, rows, rows, 0.1, excluding((0, 36, -36)))


def cold(kernels: Any) -> Iterator[Check]:
    """τ = 0.01, and the largest logit in the first tile of one row, the last of another."""
    rows, columns = unit(N, D, 0), unit(M, D, 1)
    columns[0], columns[-1] = rows[3], rows[4]
    return both_sides(kernels, rows, columns, 0.01)


def special_rows(kernels: Any) -> Iterator[Check]:
    """A row of NaN stays NaN; a row without entries has −∞ and gradient 0."""
    rows, columns = unit(N, D, 0), unit(M, D, 1)
    rows[2] = math.nan
    mine, others = torch.arange(N), torch.arange(M) + 1000
    mine[5], others[:] = 7, 7
    exclude = excluding((), mine, others)  # row 5 has no entry; so does row 7, of group 7
    tau = torch.tensor(0.1)
    logits, slopes, _ = exact(rows.nan_to_num(), columns, tau, exclude, None)
    expected = logits.logsumexp(1)
    expected[2] = math.nan
    found = kernels.lse(rows, columns, tau, exclude)
    yield "lse", difference(found, expected), 5e-6
    stats = kernels.lse(rows, columns, tau, exclude, stats=True)
    yield "statistics of no entries", float(stats[1:, [5, 7]].abs().max()), 0.0
    yield "statistics of NaN", float(3 - stats[:, 2].isnan().sum()), 0.0
    gradient = kernels.lse_grad(rows, columns, tau, exclude, torch.ones(N), found)
    shares = torch.where(logits == -torch.inf, 0.0, (logits - expected[:, None]).exp() * slopes)
    yield "gradient", relative(gradient, shares @ columns.double()), 1e-5
    empty = kernels.lse(rows, columns[:0], tau, excluding())
    yield "no columns", float((empty != -torch.inf).sum()), 0.0
    none = kernels.lse_grad(rows, columns[:0], tau, excluding(), torch.ones(N), empty)
    yield "no columns, gradient", float(none.abs().max()), 0.0
    yield "no rows", float(kernels.lse(rows[:0], columns, tau, excluding()).numel()), 0.0


def grouped(kernels: Any) -> Iterator[Check]:
    """Groups, and a diagonal whose sign matters."""
    exclude = excluding((3,), groups(N, 2), groups(M, 3))
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 0.1, exclude)


def only_groups(kernels: Any) -> Iterator[Check]:
    exclude = excluding((-2,), groups(N, 2), groups(M, 3), only=True)
    return both_sides(kernels, unit(N, D, 0), unit(M, D, 1), 0.1, exclude)


def per_row(kernels: Any) -> Iterator[Check]:
    """One τ per row, from memory that is not contiguous."""
    taus = torch.linspace(0.05, 1, 2 * N)[::2]
    rows = unit(D, N, 0).T  # columns of length 1; not contiguous
    return both_sides(kernels, rows, unit(M, D, 1), taus, excluding((1,)))


def dystress(kernels: Any) -> Iterator[Check]:
    columns = unit(M, D, 1)
    columns[0], columns[1] = unit(N, D, 0)[0], -unit(N, D, 0)[1]  # s = 1 and −1
    return both_sides(kernels, unit(N, D, 0), columns, 0.1, map=DYSTRESS)


def artanh(kernels: Any) -> Iterator[Check]:
    """2 artanh s, at s up to 0.99995: its slope grows to 20,000, beyond float16 with a weight."""
    rows, columns = unit(N, D, 0), unit(M, D, 1)
    columns[0] = F.normalize(rows[0] + 0.01 * columns[0], dim=0)
    return both_sides(kernels, rows, columns, 1.0, map=ARTANH, bounds=(2e-3, 2e-3))


def artanh_at_one(kernels: Any) -> Iterator[Check]:
    """Equal and opposite rows give large finite logits, NaN stays NaN."""
    rows = torch.eye(4)
    rows[3] = math.nan
    columns = torch.stack([rows[0], -rows[0]])
    found = kernels.lse(rows, columns, None, excluding(), ARTANH)
    limit = math.log(2**25 - 1)
    expected = torch.tensor([limit, math.log(2), math.log(2), math.nan]).double()
    yield "lse", difference(found, expected), 1e-5
    gradient = kernels.lse_grad(rows, columns, None, excluding(), torch.ones(4), found, map=ARTANH)
    yield "gradient is finite", float((~gradient[:3].isfinite()).sum()), 0.0


def softplus(kernels: Any) -> Iterator[Check]:
    """A bias of −10: each term is small, log(1 + y) would lose it."""
    return pairs(kernels, "softplus", torch.tensor(-10.0), excluding((0,)))


def softplus_per_row(kernels: Any) -> Iterator[Check]:
    exclude = excluding((2,), groups(N, 2), groups(M, 3))
    return pairs(kernels, "softplus", torch.linspace(-9, 2, N), exclude)


def other_functions(kernels: Any) -> Iterator[Check]:
    exclude = excluding((2,), groups(N, 2), groups(M, 3), only=True)
    yield from pairs(kernels, "identity", torch.linspace(-1, 2, N), exclude, dim=150)
    for function in ("nll_over_scale", "one"):
        yield from pairs(kernels, function, torch.linspace(-12, 2, N), excluding((0,)))


def half(kernels: Any) -> Iterator[Check]:
    """float16 rows, bfloat16 rows, and float32 rows against float16 ones."""
    rows, columns, exclude = unit(N, 60, 0), unit(M, 60, 1), excluding((1,))
    for dtype in (torch.float16, torch.bfloat16):
        inputs = rows.to(dtype), columns.to(dtype)
        yield from both_sides(kernels, *inputs, 0.1, exclude, bounds=(5e-5, 1e-3))
    same = kernels.lse(rows.half(), columns.half(), torch.tensor(0.1), exclude)
    mixed = kernels.lse(rows, columns.half(), torch.tensor(0.1), exclude)
    yield "float32 against float16", float((mixed - same).abs().max()), 0.0


def small_and_large_weights(kernels: Any) -> Iterator[Check]:
    """Weights below the smallest float16 and above the largest, of rows and of columns."""
    rows, columns, tau = unit(N, D, 0).half(), unit(M, D, 1).half(), torch.tensor(0.1)
    logits, slopes, _ = exact(rows, columns, tau, excluding(), None)
    lse, column_lse = logits.logsumexp(1), logits.logsumexp(0)
    for size in (1e-9, 1e7):
        weight, column_weight = torch.full((N,), size), torch.full((M,), size / 100)
        found = kernels.lse_grad(
            rows, columns, tau, excluding(), weight, lse.float(), column_weight, column_lse.float()
        )
        shares = weight[:, None] * (logits - lse[:, None]).exp()
        shares = shares + column_weight * (logits - column_lse).exp()
        yield f"weights of {size}", relative(found, shares * slopes @ columns.double()), 1e-3


def splits(kernels: Any) -> Iterator[Check]:
    """Few rows and many columns: each program takes a part of them; the same bits every time."""
    rows, columns, tau = unit(40, D, 0), unit(1100, D, 1), torch.tensor(0.1)
    exclude = excluding((0, 700))
    plans = [
        kernels.plan(
            direction, "lse", *kernels._prepared(rows, columns), exclude,
            kernels.Device(), scale=tau,
        ).splits
        for direction in ("forward", "backward")
    ]  # fmt: skip
    yield "several splits", float(min(plans) < 4), 0.0
    yield from both_sides(kernels, rows, columns, 0.1, exclude)
    again = [kernels.lse(rows, columns, tau, exclude, stats=True) for _ in range(2)]
    yield "deterministic", float((again[0] - again[1]).abs().max()), 0.0
    masked = excluding((), torch.zeros(40, dtype=torch.long), torch.zeros(1100, dtype=torch.long))
    found = kernels.lse(rows, columns, tau, masked, stats=True)
    yield "no entries in any split", float((found[0] != -torch.inf).sum() + found[1:].sum()), 0.0


def wide(kernels: Any) -> Iterator[Check]:
    """Rows longer than a program sums: two pieces of two chunks, the last incomplete."""
    yield from both_sides(kernels, unit(20, 400, 0), unit(37, 400, 1), 0.1)
    rows, columns = unit(20, 300, 0).half(), unit(37, 300, 1).half()  # one piece of three chunks
    yield from both_sides(kernels, rows, columns, 0.1, bounds=(5e-5, 1e-3))


class Dispatched(TorchDispatchMode):
    """Names of the dispatched operators, but for those that only allocate or view."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not any(word in str(func) for word in ("empty", "select", "slice", "unsqueeze")):
            self.names.append(str(func))
        return func(*args, **(kwargs or {}))


def launches(kernels: Any) -> Iterator[Check]:
    """Both views in float16, forward and backward: two kernels and nothing else."""
    run, counted = kernels.Launch.run, []

    def count(self: Any, **outputs: Any) -> None:
        counted.append(len(dispatched.names))
        run(self, **outputs)
        del dispatched.names[counted[-1] :]  # what the interpreter itself dispatches

    rows, tau, exclude = unit(20, D, 0).half(), torch.tensor(0.1), excluding((0, 10, -10))
    weight, dispatched = torch.ones(20), Dispatched()
    kernels.Launch.run = count
    try:
        with dispatched:
            lse = kernels.lse(rows, rows, tau, exclude)
            kernels.lse_grad(rows, rows, tau, exclude, weight, lse, weight, lse)
            halves = list(dispatched.names)
            kernels.lse(rows.float(), rows.float(), tau, exclude)
    finally:
        kernels.Launch.run = run
    yield "kernels", float(len(counted)), 3.0
    yield "other operators in half precision", float(len(halves)), 0.0
    # A cast, a copy and a difference for each of two sides.
    yield "other operators in float32", float(len(dispatched.names)), 6.0


CASES: dict[str, Callable[[Any], Iterator[Check]]] = {
    case.__name__: case
    for case in (
        ragged, opposite, views, cold, special_rows, grouped, only_groups, per_row, dystress,
        artanh, artanh_at_one, softplus, softplus_per_row, other_functions, half,
        small_and_large_weights, splits, wide, launches,
    )
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    kernels = importlib.import_module(f"{PACKAGE}.launch")
    names = [name for name in sys.argv[1:] if name in CASES] or list(CASES)
    results: dict[str, dict[str, list[Check]]] = {"mutants": {}}
    results["kernels"] = {name: list(CASES[name](kernels)) for name in names}
    if "--mutants" in sys.argv:
        with tempfile.TemporaryDirectory() as folder:
            sys.path.insert(0, folder)
            for number, (name, mutant) in enumerate(MUTANTS.items()):
                changed = mutated(mutant, f"mutant_{number}", Path(folder))
                results["mutants"][name] = list(CASES[mutant.case](changed))
    print(json.dumps(results))


if __name__ == "__main__":
    main()
