"""Losses with temperatures of their own, beside their published form: time and extra memory.

    python benchmarks/temperatures.py [--sizes 256 1024 4096] [--dim 128] [--output FILE.md]

Forward and backward of two views of N rows. Times are medians, both candidates of a loss in turn.
Memory is the peak above what was resident before the step, each in a process of its own (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import statistics
import subprocess
import sys
import time
import warnings
from pathlib import Path

import torch

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


def memory(name: str, which: str, n: int, dim: int) -> float:
    """Peak resident MB above the start of a step."""
    CANDIDATES[name][which](64, dim)()  # libraries loaded, threads started
    step = CANDIDATES[name][which](n, dim)
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
    before = _peak()
    step()
    return (_peak() - before) / 1024


def _peak() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))


def memory_elsewhere(n: int, dim: int) -> Figures:
    found: Figures = {}
    for name, candidates in CANDIDATES.items():
        for which in candidates:
            done = subprocess.run(
                [sys.executable, __file__, "--memory", name, which, "--sizes", str(n),
                 "--dim", str(dim)],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
            found.setdefault(name, {})[which] = json.loads(done.stdout.splitlines()[-1])
    return found


def table(title: str, unit: str, factor: float, columns: dict[int, Figures]) -> str:
    """Markdown: ours, the published form, and ours beside our NT-Xent."""
    head = " | ".join(f"N={n}, {unit} | published | to NT-Xent" for n in columns)
    lines = [f"### {title}", "", f"| | {head} |", "|---" * (3 * len(columns) + 1) + "|"]
    for name in CANDIDATES:
        cells = []
        for figures in columns.values():
            own, base = figures[name]["macl"], figures["NTXent"]["macl"]
            cells.append(f"{own * factor:.3g}")
            other = figures[name].get("published")
            cells.append("–" if other is None else f"{other * factor:.3g}")
            cells.append(f"{own / max(base, 1e-9):.2f}×")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def report(sizes: list[int], dim: int, budget: float) -> str:
    setting = (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads on {os.cpu_count()} cores, "
        f"float32, D = {dim}; load average at the start {os.getloadavg()[0]:.1f}.\n"
    )
    parts = ["# Temperatures: forward + backward of two views of N rows\n", setting]
    parts.append(table("Time", "ms", 1000, {n: times(n, dim, budget) for n in sizes}))
    parts.append(table("Peak extra memory", "MB", 1, {n: memory_elsewhere(n, dim) for n in sizes}))
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096])
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per candidate and size")
    parser.add_argument("--output", type=Path, help="write the tables to this Markdown file")
    parser.add_argument("--memory", nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    warnings.filterwarnings("ignore", "rho")  # small batches, default settings
    if options.memory:
        print(json.dumps(memory(*options.memory, options.sizes[0], options.dim)))
        return
    text = report(sorted(options.sizes), options.dim, options.budget)
    print(text)
    if options.output:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
