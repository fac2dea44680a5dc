"""The Triton kernels on a GPU: time, memory and accuracy beside torch's own and inf-cl.

    python benchmarks/gpu.py [--sizes 1024 4096] [--dim 128] [--output docs/results/gpu.md]
    python benchmarks/gpu.py --compile-only     without a GPU: what the compiler says, estimates

Writes docs/results/gpu.md. A step is forward and backward on unit rows: "both views" contrasts 2N
rows with each other, "cross view" N rows with N others, one direction, the positive among them.
Times are medians with a cold L2 cache; memory is the peak above what the inputs take.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import date
from pathlib import Path

import torch
import torch.nn.functional as F
import triton
from torch import Tensor

import macl
from gpu_compile import CHIPS, compile_all, problems, table
from macl.losses.kernels import triton as kernels

TAU = 0.1
SIZES = [1024, 2048, 4096, 8192, 16384, 32768, 65536]
CHECKED = 8192  # up to this size results are compared with float64
OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "gpu.md"
Result = tuple[Tensor, Tensor]  # the loss, and the gradient of the (first) rows
Step = Callable[[Tensor, Tensor], Result]

# Data sheets, dense: bf16 and tf32 products in flop/s, memory in bytes/s.
SHEETS = {"A100": (312e12, 156e12, 2.04e12), "H100": (989e12, 495e12, 3.35e12)}
PASSES = 25  # over the n×n matrix in float32, eager: product, mask, softmax, their backward


@dataclass(frozen=True)
class Diagonals:
    """Exclusions by diagonals alone."""

    diagonals: tuple[int, ...] = ()
    row_groups: None = None
    column_groups: None = None
    only_groups: bool = False

    def transposed(self) -> Diagonals:
        return Diagonals(tuple(-d for d in self.diagonals))


def both_views(precision: str) -> Step:
    """mean_i logsumexp_{j≠i} s_ij/τ − s_i⁺/τ over the 2N rows: two launches for the N×N part."""

    def step(z1: Tensor, z2: Tensor) -> Result:
        rows, n = torch.cat([z1, z2]), len(z1)
        tau, itself = torch.tensor(TAU, device=rows.device), Diagonals((0,))
        lse = kernels.lse(rows, rows, tau, itself, precision=precision)
        positives = torch.cat([z2, z1])
        loss = (lse - (rows.float() * positives).sum(1) / TAU).mean()
        weight = torch.full_like(lse, 1 / (2 * n))
        gradient = kernels.lse_grad(
            rows, rows, tau, itself, weight, lse, weight, lse, precision=precision
        )
        return loss, (gradient - positives * (2 / (2 * n * TAU)))[:n]

    return step


def cross_view(precision: str) -> Step:
    """mean_i logsumexp_j q_i·k_j/τ − q_i·k_i/τ: three launches."""

    def step(q: Tensor, k: Tensor) -> Result:
        tau, nothing = torch.tensor(TAU, device=q.device), Diagonals()
        lse = kernels.lse(q, k, tau, nothing, precision=precision)
        loss = (lse - (q.float() * k).sum(1) / TAU).mean()
        weight = torch.full_like(lse, 1 / len(q))
        of_q = kernels.lse_grad(q, k, tau, nothing, weight, lse, precision=precision)
        kernels.lse_grad(k, q, tau, nothing, None, None, weight, lse, precision=precision)
        return loss, of_q - k / (len(q) * TAU)

    return step


def by_autograd(loss_of: Callable[[Tensor, Tensor], Tensor]) -> Step:
    def step(z1: Tensor, z2: Tensor) -> Result:
        z1, z2 = z1.detach().requires_grad_(), z2.detach().requires_grad_()
        loss = loss_of(z1, z2)
        loss.backward()
        assert z1.grad is not None
        return loss.detach(), z1.grad

    return step


def torch_both(z1: Tensor, z2: Tensor) -> Tensor:
    rows, n = torch.cat([z1, z2]), len(z1)
    logits = (rows @ rows.T / TAU).fill_diagonal_(-torch.inf)
    return F.cross_entropy(logits, torch.arange(2 * n, device=rows.device).roll(n))


def torch_cross(q: Tensor, k: Tensor) -> Tensor:
    return F.cross_entropy(q @ k.T / TAU, torch.arange(len(q), device=q.device))


def inf_cl(q: Tensor, k: Tensor) -> Tensor:
    from inf_cl import cal_flash_loss

    return cal_flash_loss(q / TAU, k, head_dim=min(q.shape[1], 256))


def candidates(dtype: torch.dtype) -> dict[str, Step]:
    precisions = ("tf32x3", "tf32") if dtype == torch.float32 else ("tf32x3",)
    found: dict[str, Step] = {}
    for precision in precisions:
        name = f"macl, {precision}" if dtype == torch.float32 else "macl"
        found[f"both views: {name}"] = both_views(precision)
        found[f"cross view: {name}"] = cross_view(precision)
    found["both views: torch cross-entropy"] = by_autograd(torch_both)
    found["cross view: torch cross-entropy"] = by_autograd(torch_cross)
    if importlib.util.find_spec("inf_cl") is not None:
        found["cross view: inf-cl"] = by_autograd(inf_cl)
    return dict(sorted(found.items()))


def measure(step: Step, reference: Step | None, z: tuple[Tensor, Tensor]) -> str:
    """ms, MB and, with a reference in float64, errors of the loss and of the gradient."""
    try:
        loss, gradient = step(*z)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(*z)
        torch.cuda.synchronize()
        memory = (torch.cuda.max_memory_allocated() - before) / 1e6
        time = triton.testing.do_bench(lambda: step(*z), return_mode="median")
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    except Exception as error:  # a peer that fails is a result too
        return f"fails: {type(error).__name__}"
    text = f"{time:.3g} ms, {memory:,.0f} MB"
    if reference is not None:
        exact, exact_gradient = reference(z[0].double(), z[1].double())
        error = (gradient - exact_gradient).abs().max() / exact_gradient.abs().max()
        text += f", {float((loss - exact).abs()):.0e}, {float(error):.0e}"
    return text


def measured(sizes: list[int], dim: int) -> str:
    device = torch.device("cuda")
    parts = [
        f"{torch.cuda.get_device_name()}, torch {torch.__version__}, triton {triton.__version__}, "
        f"D = {dim}, τ = {TAU}; inf-cl "
        f"{'installed' if importlib.util.find_spec('inf_cl') else 'not installed'}; the self-check "
        f"{'passed' if kernels.self_check() else '**failed**'}. Each cell: time, peak memory, and "
        f"up to N = {CHECKED} the error of the loss and the largest error of the gradient relative "
        "to its largest entry, against float64 on the same inputs.\n"
    ]
    exact = {"both": by_autograd(torch_both), "cross": by_autograd(torch_cross)}
    for dtype in (torch.float32, torch.bfloat16):
        parts.append(f"### {str(dtype).removeprefix('torch.')}\n")
        head = " | ".join(f"N={n}" for n in sizes)
        lines = [f"| | {head} |", "|---" * (len(sizes) + 1) + "|"]
        for name, step in candidates(dtype).items():
            cells = []
            for n in sizes:
                print(f"{dtype} {name} N={n}", file=sys.stderr)
                torch.manual_seed(0)
                z1, z2 = (F.normalize(torch.randn(n, dim, device=device)).to(dtype) for _ in "12")
                reference = exact[name.split()[0]] if n <= CHECKED else None
                cells.append(measure(step, reference, (z1, z2)))
                torch.cuda.empty_cache()
            lines.append(f"| {name} | " + " | ".join(cells) + " |")
        parts.append("\n".join(lines) + "\n")
    return "\n".join(parts)


def roofline(dim: int = 128) -> str:
    """Estimates for both views: n = 2N, 6n²D operations at half of the data sheet's peak."""
    lines = ["| N | bf16 | tf32x3 | materialised, eager | similarity matrix |", "|---" * 5 + "|"]
    for size in (4096, 8192, 65536):
        n = 2 * size
        work, matrix = 6 * n * n * dim, 4 * n * n
        cells = [
            [2e3 * work / half for half, _, _ in SHEETS.values()],
            [2e3 * 3 * work / single for _, single, _ in SHEETS.values()],
            [
                2e3 * work / half + 1e3 * PASSES * matrix / memory
                for half, _, memory in SHEETS.values()
            ],
        ]
        shown = " | ".join(
            " / ".join(f"{ms:.2g}" if ms < 10 else f"{ms:.0f}" for ms in c) for c in cells
        )
        lines.append(f"| {size:,} | {shown} | {matrix / 1e9:.2g} GB |")
    return "\n".join(lines) + "\n"


PAGE = """# The kernels on a GPU

{measured}
## Configurations, compiled

Made by the compiler for chips that need not be there (triton {triton}; `python
benchmarks/gpu_compile.py`): no kernel spills registers, and all fit the shared memory of the chip
({limits}; on sm_80 also the 99 KB of sm_86 and sm_89,
which run the same tile sizes). {count} kernels: logsumexp (plain, with groups, one τ per row or per
column), both similarity maps and pair sums (plain, with groups, sides swapped), forward and
backward; rows of length 1 (normalise), the anchors and the gradient to the views (project). What
each uses is kept in `data/kernels.json`: the test suite compiles those that changed since, and a
sample of the others. The compiler shows nothing about speed: the tile sizes are not tuned.

Each cell: rows, columns and components of a tile (BM,BN,BD), DV the components that a backward
program accumulates, warps, stages; "twice": columns are loaded twice; two tile sizes: the first for
plain logsumexps, the second with groups, a map or pair sums. Then the most that any variant needs:
registers per thread, bytes spilled, shared memory. bf16, fp16 and fp32 are the types of the inputs;
tf32 and tf32x3 the arithmetic on float32.

{table}
Where rows are longer than DV, each part of them computes the tile again: at D = 768 the backward of
tf32x3 has 6 parts, that of the others 3.

## Roofline

**Estimates, not measured on a GPU.** Both views, D = 128, forward and backward, ms on an A100 /
H100: 6n²D operations with n = 2N at half of the data sheet's peak. A loss that stores its
similarities passes about {passes} times over them in addition, at the full speed of the memory.

{roofline}"""

NOT_MEASURED = """**Not measured on a GPU.** Made on {date} with {version}, where none was available
(`python benchmarks/gpu.py --compile-only`). What is known without one: the kernels agree with
float64 in Triton's interpreter (`tests/losses/test_kernels_triton.py`: |Δlse| ≤ 1e-6 + 4e-7/τ;
gradients within 1e-5 of the largest, 5e-5 at τ = 0.005, 1e-2 for bfloat16 inputs), and they compile
as listed below. Rounding by tensor cores, races between warps and speed show on a GPU only: there,
`python benchmarks/gpu.py` measures them and writes this page anew.
"""


def page(shown: str) -> str:
    found = compile_all(list(CHIPS))
    if wrong := problems(found):
        sys.exit("these kernels do not fit:\n" + "\n".join(wrong))
    return PAGE.format(
        measured=shown,
        triton=triton.__version__,
        limits=", ".join(f"{size // 1024} KB on sm_{sm}" for sm, size in CHIPS.items()),
        count=len(found),
        table=table(found),
        passes=PASSES,
        roofline=roofline(),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--compile-only", action="store_true")
    options = parser.parse_args()
    if options.compile_only:
        shown = NOT_MEASURED.format(date=date.today(), version=macl.__version__)
    elif torch.cuda.is_available():
        shown = "## Measured\n\n" + measured(options.sizes, options.dim)
    else:
        sys.exit("There is no GPU here. --compile-only writes what can be known without one.")
    options.output.write_text(page(shown))
    print(f"wrote {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
