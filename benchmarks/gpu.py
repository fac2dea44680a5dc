"""Losses on a GPU as their users call them: time, memory, accuracy; and whole training steps.

    python benchmarks/gpu.py                   on a machine with a GPU: measures, writes the page
    python benchmarks/gpu.py --compile-only    without one: what the compiler says, and estimates
    python benchmarks/gpu.py --rehearse        every candidate once on the CPU, small; no page

Writes docs/results/gpu.md. A step is criterion(z1, z2) and its backward, in float32 and under bf16
autocast. Times are medians with a cold L2 cache; memory is the peak above what the inputs take.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import nullcontext
from datetime import date
from pathlib import Path

import torch
import triton
from torch import Tensor

import macl
from gpu_compile import CHIPS, compile_all, problems
from gpu_compile import table as compiled_table
from gpu_estimates import BYTES_PER_ENTRY, EFFICIENCY, GEMM
from gpu_estimates import table as estimate_table
from gpu_peers import CANDIDATES, RANKS, TAU, Candidate, Loss, Trainer, inputs
from macl.losses.ops.triton.check import unavailable

SIZES = [512, 2048, 4096, 8192, 32768]
DIMS = [128, 768]
CHECKED = 8192  # up to this size results are compared with float64
OUTPUT = Path(__file__).parents[1] / "docs" / "results" / "gpu.md"
SHAPES = {
    "both": "both views, 2N rows against each other",
    "cross": "across views, both directions",
    "rank": f"one rank of {RANKS}: N rows against {RANKS - 1}N keys of the others",
}


def step(loss: Loss, z: list[Tensor], half: bool) -> tuple[Tensor, Tensor]:
    """The loss and the gradient of the first view."""
    for x in z:
        x.grad = None
    with torch.autocast(z[0].device.type, torch.bfloat16) if half else nullcontext():
        value = loss(*z)
    value.backward()
    assert z[0].grad is not None
    return value.detach(), z[0].grad


def exact(candidate: Candidate, z: list[Tensor]) -> tuple[Tensor, Tensor]:
    """The same in float64, by the textbook's loss of the shape."""
    textbook = next(
        c for c in CANDIDATES if c.shape == candidate.shape and c.name.endswith("materialized")
    )
    return step(textbook.build(), [x.detach().double().requires_grad_() for x in z], False)


def errors(candidate: Candidate, z: list[Tensor], half: bool) -> tuple[float, float]:
    """Of the loss, and the largest of the gradient relative to its largest entry."""
    (value, gradient), (value_64, gradient_64) = (
        step(candidate.build(), z, half),
        exact(candidate, z),
    )
    off = (gradient - gradient_64).abs().max() / gradient_64.abs().max()
    return float((value - value_64).abs()), float(off)


def measure(candidate: Candidate, n: int, dim: int, half: bool, device: torch.device) -> str:
    """ms, MB and, where float64 fits, errors; a peer that fails is a result too."""
    try:
        z = inputs(candidate.shape, n, dim, device)
        loss = candidate.build()
        step(loss, z, half)
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        step(loss, z, half)
        torch.cuda.synchronize()
        memory = (torch.cuda.max_memory_allocated() - before) / 1e6
        time = triton.testing.do_bench(lambda: step(loss, z, half), return_mode="median")
        text = f"{time:.3g} ms, {memory:,.0f} MB"
        if n <= CHECKED and candidate.name != "macl.MACL":
            text += ", {:.0e}, {:.0e}".format(*errors(candidate, z, half))
        return text
    except torch.cuda.OutOfMemoryError:
        return "out of memory"
    except Exception as error:
        return f"fails: {type(error).__name__}"
    finally:
        torch.cuda.empty_cache()


def losses_measured(sizes: list[int], dims: list[int], device: torch.device) -> str:
    parts = []
    for dim in dims:
        for half in (True, False):
            head = " | ".join(f"N={n:,}" for n in sizes)
            lines = [f"| | {head} |", "|---" * (len(sizes) + 1) + "|"]
            for c in (c for c in CANDIDATES if c.installed):
                print(f"D={dim} half={half} {c.shape} {c.name}", file=sys.stderr)
                cells = [measure(c, n, dim, half, device) for n in sizes]
                lines.append(f"| {c.shape}: {c.name} | " + " | ".join(cells) + " |")
            kind = "bf16 autocast" if half else "float32"
            parts.append(f"### {kind}, D = {dim}\n\n" + "\n".join(lines) + "\n")
    return "\n".join(parts)


def steps_measured(device: torch.device, n: int = 256) -> str:
    """Training steps with each loss on both views, and without one."""
    lines = ["| loss | ms per step | steps/s |", "|---|---|---|"]
    both = {c.name: c.build for c in CANDIDATES if c.shape == "both" and c.installed}
    builds = {"none (mean of the embeddings)": lambda: lambda a, b: a.mean() + b.mean(), **both}
    for name, build in builds.items():
        try:
            trainer = Trainer(build(), n, 128, 224, "resnet50", device)
            ms = triton.testing.do_bench(trainer.step, return_mode="median")
            lines.append(f"| {name} | {ms:.4g} | {1e3 / ms:.3g} |")
        except Exception as error:
            lines.append(f"| {name} | fails: {type(error).__name__} | |")
        torch.cuda.empty_cache()
    return "\n".join(lines) + "\n"


def measured(sizes: list[int], dims: list[int]) -> str:
    device = torch.device("cuda")
    absent = ", ".join(sorted({c.package for c in CANDIDATES if not c.installed})) or "none"
    reason = unavailable(device)
    shapes = "; ".join(f'"{name}": {text}' for name, text in SHAPES.items())
    return MEASURED.format(
        gpu=torch.cuda.get_device_name(), torch=torch.__version__, triton=triton.__version__,
        version=macl.__version__, date=date.today(), tau=TAU, absent=absent, shapes=shapes,
        check="passed" if not reason else f"**failed**: {reason}", checked=CHECKED,
        losses=losses_measured(sizes, dims, device), steps=steps_measured(device),
    )  # fmt: skip


def rehearse() -> None:
    """Every candidate that runs on a CPU, small, beside float64."""
    device = torch.device("cpu")
    for c in CANDIDATES:
        if c.installed and c.name not in ("FlexAttention", "inf-cl", "macl.MACL"):
            value, gradient = errors(c, inputs(c.shape, 12, 16, device), False)
            print(f"{c.shape}: {c.name}: {value:.0e}, {gradient:.0e}")
    loss = Trainer(macl.NTXent(temperature=TAU), 4, 16, 32, "resnet18", device).step()
    print(f"training step: loss {float(loss):.3f}")


MEASURED = """## Measured

On {date}: {gpu}, torch {torch}, triton {triton}, macl {version}, τ = {tau}; not installed:
{absent}; the self-check of the Triton kernels {check}. {shapes}. Each cell: time, peak memory,
and up to N = {checked} the error of the loss and the largest error of the gradient relative to
its largest entry, against float64.

{losses}
### Training steps

ResNet-50, 256 pairs of 224×224 images, projection to 128, SGD, bf16 autocast.

{steps}"""

NOT_MEASURED = """**Not measured on a GPU.** Made on {date} with {version}, where none was available
(`python benchmarks/gpu.py --compile-only`). What is known without one: the kernels agree with
float64 in Triton's interpreter, and they compile as listed below. Rounding by tensor cores, races
between warps and speed show on a GPU only: there, `python benchmarks/gpu.py` measures them and
writes this page anew: losses as their users call them, in float32 and under autocast, for one
process and for the shapes of {ranks} ranks, D = 128 and 768, beside the peers named below, and
whole training steps.
"""

PAGE = """# The kernels on a GPU

{measured}
## Arithmetic and accuracy

Rows have unit length. Half-precision rows (from half-precision inputs or autocast, or by the
loss' argument and recipe key `precision="float16"`) are multiplied as float16, whose 11 bits are
those of tf32, and summed in float32. float32 rows are split into two float16 parts and take
three products, with twice the ceiling of tf32x3. The
weights of the backward are scaled per row to the range of float16, and split likewise. In the
interpreter, against float64 (`tests/losses/triton_kernels/test_triton_kernels.py`): |Δlse| ≤
1e-6 + 4e-7/τ; gradients within 1e-5 of the largest for τ ≥ 0.05 and 5e-5 below, 1e-3 for
half-precision rows.

Why not bf16x3, by emulation of the products (512 rows, 700 columns, one of them close to each
row, τ = 0.01, D = 128): its logsumexps are off by up to 2.5e-4, where the bound is 4.1e-5;
float32 by 4.7e-5, tf32x3 by 4.2e-5, two float16 parts by 4.0e-5.

## Estimates

**Not measured on a GPU.** Both views, forward and backward, ms on an A100 / H100, with the grids
and tiles that the launches have: products at {efficiency:.0%} of the data sheet's peak on the
multiprocessors that are busy, whole turns of the grid, tiles from the L2 cache, 0.1 ms for
everything else. "splits, busy": into how many parts the columns are split in the backward of
half-precision rows, and the share of the multiprocessors' time that this grid uses. The peer is
bf16 autocast cross-entropy on a stored matrix: products at {gemm:.0%} of the peak, {bytes} bytes
of memory traffic per similarity. open_clip's and sentence-transformers' losses are this
computation (two matrices, or both directions of one). `inf-cl` and FlexAttention stream tiles as
these kernels do; nothing is estimated for them.

Up to 2²⁴ similarities of float32 rows (N = 2,048 here) and 2²⁰ of half-precision rows (N = 512)
"auto" holds the matrix in place of these kernels ("held"). Its products are float32, so that by
these estimates it is the slowest of float32 rows from N = 2,048 on. What to do there, until a
measurement decides: `kernel="triton"` (or MACL_KERNEL=triton) for these kernels, or TF32 products
by `matmul_precision=high` (`torch.set_float32_matmul_precision("high")`), which truncate: about
4e-3 off in the loss at τ = 0.1, and useless at 0.005.

D = 128:

{estimates}
D = 768: the backward computes the similarities twice, as a program sums 384 components (4
products in all; 3 up to D = 384):

{wide}
Where the rows do not fill the multiprocessors the columns are split; partial results are reduced
in a fixed order. By these estimates half-precision rows take a third to a tenth of the peer's
time at D = 128 from N = 2,048 on; at D = 768 they save memory, not time, and float32 rows cost
three times as much.

## Configurations, compiled

Made by the compiler for chips that need not be there (triton {triton}; `python
benchmarks/gpu_compile.py`): no kernel spills registers, and all fit the shared memory of the
chip ({limits};
on sm_80 also the 99 KB of sm_86 and sm_89, which run the same tile sizes).
{count} kernels: logsumexp (plain, with groups and statistics, one τ per column), similarity maps
and pair sums, forward and backward. What each uses is kept in `data/kernels.json`: the test
suite compiles those that changed since, and a sample of the others. The compiler shows nothing
about speed: tile sizes are not tuned.

Each cell: rows, columns and components of a tile (BM,BN,BD), the components that a backward
program sums, warps, stages; two tile sizes: the first for plain logsumexps, the second with
groups, a map, statistics, τ per column or pair sums. Then the most that any variant needs:
registers per thread, bytes spilled, shared memory. float16x3: float32 rows in two parts.

{table}"""


def page(shown: str) -> str:
    found = compile_all(list(CHIPS))
    if wrong := problems(found):
        sys.exit("these kernels do not fit:\n" + "\n".join(wrong))
    limits = ", ".join(f"{size // 1024} KB on sm_{sm}" for sm, size in CHIPS.items())
    return PAGE.format(
        measured=shown, triton=triton.__version__, limits=limits, count=len(found),
        table=compiled_table(found), efficiency=EFFICIENCY, gemm=GEMM, bytes=BYTES_PER_ENTRY,
        estimates=estimate_table(128), wide=estimate_table(768),
    )  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--dims", type=int, nargs="+", default=DIMS)
    parser.add_argument("--output", type=Path, default=OUTPUT)
    parser.add_argument("--compile-only", action="store_true")
    parser.add_argument("--rehearse", action="store_true")
    options = parser.parse_args()
    if options.rehearse:
        rehearse()
        return
    if options.compile_only:
        shown = NOT_MEASURED.format(date=date.today(), version=macl.__version__, ranks=RANKS)
    elif torch.cuda.is_available():
        shown = measured(options.sizes, options.dims)
    else:
        sys.exit("There is no GPU here. --compile-only writes what can be known without one.")
    options.output.write_text(page(shown))
    print(f"wrote {options.output}", file=sys.stderr)


if __name__ == "__main__":
    main()
