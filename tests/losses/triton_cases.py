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
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

PACKAGE = "macl.losses.kernels"
Check = tuple[str, float, float]
N, M, D = 70, 75, 20  # every kind of tile occurs, the last ones incomplete


@dataclass(frozen=True)
class Exclusions:
    diagonals: tuple[int, ...] = ()
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None
    only_groups: bool = False

    def transposed(self) -> Exclusions:
        negated = tuple(-d for d in self.diagonals)
        return Exclusions(negated, self.column_groups, self.row_groups, self.only_groups)

    def count(self, i: int, j: int) -> bool:
        if j - i in self.diagonals:
            return False
        if self.row_groups is None or self.column_groups is None:
            return True
        return bool(self.row_groups[i] == self.column_groups[j]) == self.only_groups


def unit(n: int, dim: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return F.normalize(torch.randn(n, dim, generator=generator), dim=1)


def normal(n: int, seed: int) -> Tensor:
    return torch.randn(n, generator=torch.Generator().manual_seed(seed))


def groups(n: int, seed: int) -> Tensor:
    # Numbers that differ beyond 32 bits only: they must not be cut.
    found = torch.randint(4, (n,), generator=torch.Generator().manual_seed(seed))
    return found * 2**32 + 7


def logit(s: float, tau: float, map: Any) -> tuple[float, float]:
    """l and dl/ds of one pair."""
    if map is None:
        return s / tau, 1 / tau
    if map.name == "dystress":
        own = map.lowest + (map.highest - map.lowest) * math.sin(math.pi * s / 2) ** 2
        return s / own, 1 / own
    return math.log1p(s) - math.log1p(-s), 2 / (1 - s * s)


def exact(rows: Tensor, columns: Tensor, taus: Any, exclude: Exclusions, map: Any) -> Any:
    """(n, m) logits, −∞ where a pair does not count, and slopes: one pair at a time, float64."""
    n, m = len(rows), len(columns)
    s = (rows.double() @ columns.double().T).tolist()
    logits, slopes = torch.full((n, m), -torch.inf).double(), torch.zeros(n, m).double()
    for i in range(n):
        for j in range(m):
            if exclude.count(i, j):
                logits[i, j], slopes[i, j] = logit(s[i][j], taus(i, j), map)
    return logits, slopes


def relative(found: Tensor, expected: Tensor) -> float:
    """Largest error relative to the largest value; NaN and −∞ must be in the same places."""
    if not torch.equal(found.isnan(), expected.isnan()):
        return math.inf
    kept = ~expected.isnan()
    largest = float(expected[kept].abs().max()) or 1.0
    return float((found.double() - expected)[kept].abs().max()) / largest


def difference(found: Tensor, expected: Tensor) -> float:
    special = ~expected.isfinite()
    if not torch.equal(found.double().nan_to_num(7.0)[special], expected.nan_to_num(7.0)[special]):
        return math.inf
    gap = (found.double() - expected)[~special].abs()
    return math.inf if gap.isnan().any() else float(gap.max()) if len(gap) else 0.0


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
    exclude = exclude or Exclusions()
    tau = torch.as_tensor(temperature)
    lowest = float(tau.min())
    lse_bound = 1e-6 + 4e-7 / lowest
    bounds = bounds or (lse_bound, 1e-5 if lowest >= 0.05 else 5e-5)
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
    s = rows.double() @ columns.double().T
    values, slopes = torch.zeros(N, M).double(), torch.zeros(N, M).double()
    for i in range(N):
        for j in range(M):
            if exclude.count(i, j):
                x = 9.0 * float(s[i, j]) + float(offset.expand(N)[i])
                soft = function == "softplus"
                values[i, j] = math.log1p(math.exp(x)) if soft else x
                slopes[i, j] = float(weight[i]) / (1 + math.exp(-x)) if soft else weight[i]
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
    yield "no columns", difference(empty, torch.full((N,), -torch.inf).double()), 0.0
    none = kernels.lse_grad(rows, columns[:0], tau, Exclusions(), torch.ones(N), empty)
    yield "no columns, gradient", float(none.abs().max()), 0.0
    assert kernels.lse(rows[:0], columns, tau, Exclusions()).shape == (0,)


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
    rows, columns = unit(N, D, 0).half(), unit(M, D, 1).half()
    logits, _ = exact(rows, columns, lambda i, j: 0.1, Exclusions(), None)
    lse = logits.logsumexp(1)
    weight = torch.full((N,), 1e-9)
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


Case = Callable[[Any], Iterator[Check]]
CASES: dict[str, Case] = {
    case.__name__: case
    for case in (
        ragged, opposite, views, cold, special_rows, grouped, only_groups, per_row, dystress,
        artanh, artanh_at_one, softplus, softplus_per_row, identity, bfloat16, float16,
        small_weights, tf32, wide, wide_bfloat16, self_check,
    )
}  # fmt: skip


@dataclass(frozen=True)
class Mutant:
    """A plausible mistake: `old` → `new` in a source file, and the case that must notice it."""

    file: str
    old: str
    new: str
    case: str


MUTANTS = {
    "excluded logits filled with 0": Mutant(
        "triton_forward.py", 'logit, float("-inf"))', "logit, 0.0)", "ragged"
    ),
    "columns past the end count, forward": Mutant(
        "triton_tiles.py", "(j < m)[None, :] & ", "(j >= 0)[None, :] & ", "ragged"
    ),
    "weights not masked": Mutant(
        "triton_backward.py", "tl.where(keep, weights, 0.0)", "weights", "opposite"
    ),
    "diagonals of the wrong sign": Mutant(
        "triton_tiles.py", "!= diagonals[d]", "!= -diagonals[d]", "grouped"
    ),
    "NaN taken for no entry": Mutant(
        "triton_forward.py", "total == 0,", "(total > 0) == 0,", "special_rows"
    ),
    "sum not rescaled to the new maximum": Mutant(
        "triton_forward.py", "total * tl.exp2(peak - centre)", "total", "cold"
    ),
    "groups inverted": Mutant(
        "triton_tiles.py", "same if ONLY_GROUPS else same == 0", "same", "grouped"
    ),
    "groups cut to 32 bits": Mutant(
        "triton_tiles.py",
        "left[:, None] == right[None, :]",
        "left.to(tl.int32)[:, None] == right.to(tl.int32)[None, :]",
        "only_groups",
    ),
    "offset of the wrong sign": Mutant(
        "triton_forward.py", "x = per_entry(offset", "x = -per_entry(offset", "softplus"
    ),
    "logarithm instead of log1p": Mutant(
        "triton_tiles.py", "2 * artanh_series(y / (2 + y))", "tl.log(1 + y)", "softplus"
    ),
    "every part takes the first components": Mutant(
        "triton_backward.py", "m - left, part, D", "m - left, 0, D", "wide"
    ),
    "slope of the columns' temperature missing": Mutant(
        "triton_backward.py", "weights = weights * slope", "weights = weights", "per_row"
    ),
    "inputs not rounded": Mutant("triton_tiles.py", "high - (high - x)", "x", "tf32"),
}


def mutated(mutant: Mutant, name: str, folder: Path) -> Any:
    """The package of kernels once more under another name, with the mistake in it."""
    source = Path(importlib.import_module(f"{PACKAGE}.triton").__file__ or "").parent
    (folder / name).mkdir()
    for path in source.glob("triton*.py"):
        text = path.read_text()
        if path.name == mutant.file:
            assert mutant.old in text, f"{mutant.file} no longer contains {mutant.old!r}"
            text = text.replace(mutant.old, mutant.new)
        (folder / name / path.name).write_text(text.replace(PACKAGE, name))
    return importlib.import_module(f"{name}.triton")


def main() -> None:
    torch.set_num_threads(1)
    kernels = importlib.import_module(f"{PACKAGE}.triton")
    found: dict[str, dict[str, list[Check]]] = {"kernels": {}, "mutants": {}}
    for name, case in CASES.items():
        found["kernels"][name] = list(case(kernels))
    with tempfile.TemporaryDirectory() as folder:
        sys.path.insert(0, folder)
        for number, (name, mutant) in enumerate(MUTANTS.items()):
            changed = mutated(mutant, f"mutant_{number}", Path(folder))
            found["mutants"][name] = list(CASES[mutant.case](changed))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
