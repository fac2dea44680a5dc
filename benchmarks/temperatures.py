"""Losses with temperatures of their own, beside their published form: time and extra memory.

    python benchmarks/temperatures.py [--sizes 256 1024 4096] [--dim 128] [--write PAGE.md]

Forward and backward of two views of N rows. Times are medians, both candidates of a loss in turn.
Memory is the peak above what was resident before the step, in a second process (Linux). `--write`
puts the tables between the page's marks temperatures:begin and temperatures:end.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

import macl
from temperature_peers import CANDIDATES, Step

Figures = dict[str, dict[str, float]]


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def times(n: int, dim: int, budget: float) -> Figures:
    """Median seconds by loss and candidate."""
    found: Figures = {}
    for name, candidates in CANDIDATES.items():
        steps = {which: prepare(n, dim) for which, prepare in candidates.items()}
        slowest = max(seconds(step) for step in steps.values())
        taken: dict[str, list[float]] = {which: [] for which in steps}
        for _ in range(max(3, min(200, int(budget / slowest)))):
            for which, step in steps.items():
                taken[which].append(seconds(step))
        found[name] = {which: statistics.median(runs) for which, runs in taken.items()}
    return found


def memory(n: int, dim: int) -> Figures:
    """Peak resident MB above the start of a step."""
    found: Figures = {}
    for name, candidates in CANDIDATES.items():
        for which, prepare in candidates.items():
            prepare(64, dim)()  # libraries loaded, threads started
            step = prepare(n, dim)
            ctypes.CDLL(None).malloc_trim(0)
            Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident
            before = _peak()
            step()
            found.setdefault(name, {})[which] = (_peak() - before) / 1024
    return found


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def memory_elsewhere(n: int, dim: int) -> Figures:
    """`memory` in a process that has done nothing else."""
    done = subprocess.run(
        [sys.executable, __file__, "--memory", "--sizes", str(n), "--dim", str(dim)],
        stdout=subprocess.PIPE, text=True, check=True,
    )  # fmt: skip
    found: Figures = json.loads(done.stdout.splitlines()[-1])
    return found


def table(title: str, unit: str, factor: float, columns: dict[int, Figures]) -> str:
    """Markdown: ours, beside the published form, and beside our NT-Xent."""
    head = " | ".join(f"N = {n}, {unit} | to published | to NT-Xent" for n in columns)
    lines = [f"{title}:", "", f"| | {head} |", "|---" * (3 * len(columns) + 1) + "|"]
    for name in CANDIDATES:
        cells = []
        for figures in columns.values():
            own, base = figures[name]["macl"], figures["NTXent"]["macl"]
            other = figures[name].get("published")
            cells.append(f"{own * factor:.3g}")
            cells.append("–" if other is None else ratio(own, other))
            cells.append(ratio(own, base))
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def ratio(one: float, two: float) -> str:
    return f"{one / two:.2f}×" if two > 0 else "–"


def report(sizes: list[int], dim: int, budget: float) -> str:
    begun, load = datetime.date.today().isoformat(), os.getloadavg()[0]
    time_table = table("Time", "ms", 1000, {n: times(n, dim, budget) for n in sizes})
    memory_table = table("Peak extra memory", "MB", 1, {n: memory_elsewhere(n, dim) for n in sizes})
    return f"""## Losses with temperatures of their own

Made on {begun} with {macl.__version__} by `python benchmarks/temperatures.py`: forward and backward
of two views of N rows, D = {dim}, float32, torch {torch.__version__}, {torch.get_num_threads()}
threads on {os.cpu_count()} cores, load average at the start {load:.1f}. *Published* is the
published implementation written as plain torch, which holds the matrix of similarities; "to
published" below 1 is faster, or smaller.

What makes a loss cost more than NT-Xent: a map (DySTreSS, TemperatureFree) is several operations
for each similarity where a division by τ is none; a τ per
anchor (ISogCLR, FastCLIP v2, TempNet) makes the matrix not symmetric; ISogCLR and FastCLIP v2 move
τ in the forward pass, which is a second pass over the similarities where the matrix is not kept;
TempNet has a network. SigLIP, FastCLIP, TempNet, InfoNCE contrast with the other view alone, half
of NT-Xent's rows and columns. Up to 2²² similarities (N = 1024 with both views) one matrix is kept,
beyond that bands of rows.

{time_table}
{memory_table}"""


def write(page: Path, text: str) -> None:
    """Put the text between the marks of the page, or at its end where it has none."""
    begin, end = "<!-- temperatures:begin -->", "<!-- temperatures:end -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old:
        old = f"{old.rstrip()}\n\n{begin}\n{end}\n"
    before, _, rest = old.partition(begin)
    after = rest.partition(end)[2]
    page.write_text(f"{before}{begin}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per candidate and size")
    parser.add_argument("--write", type=Path, help="put the tables into this page")
    parser.add_argument("--memory", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "rho")  # small batches, default settings
    if options.memory:
        print(json.dumps(memory(options.sizes[0], options.dim)))
        return
    text = report(sorted(options.sizes), options.dim, options.budget)
    print(text)
    if options.write:
        write(options.write, text)


if __name__ == "__main__":
    main()
