"""Loss, forward and backward, beside its peers: time (interleaved medians) and extra memory.

    python benchmarks/losses.py [--quick] [--sizes 256 1024] [--dims 128] [--output FILE.md]

Times are measured in one process, all candidates in turn and each round in
another order, so that a change in the machine's load, or what a neighbour leaves in the caches,
meets all of them. Memory is the peak above what was resident before the step, each candidate in a
process of its own (Linux). Peers come from the `bench` extra; those not installed are named and
left out.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import torch

from loss_peers import CANDIDATES, FLOOR, INSTALLED, OURS, Step

REPEATED = 8192  # beyond this size the one run that measures memory also gives the time
SMALL = 4096  # the largest size where everything is measured
LARGEST = 65536  # ours alone
PATIENCE = 40.0  # seconds that one step may be expected to take
# Memory stays with the process: no mmap per tensor, no return to the system, one heap.
NO_CHURN = {
    "MALLOC_MMAP_MAX_": "0",
    "MALLOC_TRIM_THRESHOLD_": str(1 << 40),
    "MALLOC_TOP_PAD_": str(1 << 28),
    "MALLOC_ARENA_MAX": "1",
}
Figures = dict[str, float]


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def times(n: int, dim: int, budget: float, only: Collection[str] = INSTALLED) -> Figures:
    """Median seconds of each candidate; slow ones run less often, within `budget` seconds each."""
    steps = {
        name: c.step(n, dim) for name, c in INSTALLED.items() if name in only and n <= c.largest
    }
    taken = {name: [seconds(step)] for name, step in steps.items()}
    rounds = {name: min(200, int(budget / first[0])) for name, first in taken.items()}
    order, shuffle = list(steps), random.Random(0)
    for turn in range(max(rounds.values())):
        shuffle.shuffle(order)  # what ran before leaves caches and heap in its own state
        for name in order:
            if turn < rounds[name]:
                taken[name].append(seconds(steps[name]))
    # The first run warms up, and counts only for those too slow to be repeated.
    return {name: statistics.median(runs[1:] or runs) for name, runs in taken.items()}


def memory(name: str, sizes: list[int], dim: int) -> dict[int, Figures]:
    """Peak resident MB above the start of a step, and its seconds; up to the size that fits."""
    candidate = CANDIDATES[name]
    candidate.step(64, dim)()  # libraries loaded, threads started
    found: dict[int, Figures] = {}
    for n in [n for n in sizes if n <= candidate.largest]:
        if found:
            last = max(found)
            growth = (n / last) ** 2 if name not in OURS.values() else n / last
            expected = {key: value * growth for key, value in found[last].items()}
            available = _kilobytes("/proc/meminfo", "MemAvailable") / 1024
            patient = name in OURS.values() or expected["seconds"] < PATIENCE
            if expected["megabytes"] > 0.7 * available or not patient:
                break
        step = candidate.step(n, dim)
        ctypes.CDLL(None).malloc_trim(0)  # what earlier sizes left behind must not hide this one
        Path("/proc/self/clear_refs").write_text("5")  # resets the peak to what is resident now
        before = _kilobytes("/proc/self/status", "VmHWM")
        taken = seconds(step)
        peak = _kilobytes("/proc/self/status", "VmHWM") - before
        found[n] = {"megabytes": peak / 1024, "seconds": taken}
    return found


def _kilobytes(file: str, field: str) -> int:
    lines = Path(file).read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field + ":"))


def child(sizes: list[int], dim: int, *arguments: str, **environment: str) -> Any:
    """This script again in a fresh process; its last line is JSON."""
    done = subprocess.run(
        [sys.executable, __file__, *arguments, "--dims", str(dim), "--sizes", *map(str, sizes)],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


def table(title: str, unit: str, columns: dict[int, Figures]) -> str:
    """Markdown: candidates by sizes, each figure with its ratio to ours of the same form."""
    head = " | ".join(f"N={n}" for n in columns)
    lines = [f"### {title}", "", f"| {unit} (ratio to ours) | {head} |"]
    lines.append("|---" * (len(columns) + 1) + "|")
    for name, candidate in INSTALLED.items():
        cells = []
        for figures in columns.values():
            if name not in figures:
                cells.append("–")
            elif name in OURS.values():
                cells.append(f"**{_digits(figures[name])}**")
            else:
                ratio = figures[name] / figures[OURS[candidate.form]]
                cells.append(f"{_digits(figures[name])} ({ratio:.2f})")
        if set(cells) != {"–"}:
            lines.append(f"| {candidate.form}: {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def _digits(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def time_table(title: str, columns: dict[int, Figures]) -> str:
    shown = {n: {k: 1000 * v for k, v in figures.items()} for n, figures in columns.items()}
    return table(title, "ms", shown)


def memory_tables(sizes: list[int], dim: int) -> list[str]:
    found: dict[int, dict[str, Figures]] = {n: {} for n in sizes}
    for name in INSTALLED:
        if name == FLOOR:
            continue
        print(f"memory: {name}, D={dim}", file=sys.stderr)
        for n, figures in child(sizes, dim, "--memory", name).items():
            found[int(n)][name] = figures
    peaks = {n: {c: f["megabytes"] for c, f in by.items()} for n, by in found.items()}
    parts = [table(f"Peak extra memory, D = {dim}", "MB", peaks)]
    once = {n: {c: f["seconds"] for c, f in by.items()} for n, by in found.items() if n > REPEATED}
    if once:
        parts.append(time_table(f"Time of a single run in a fresh process, D = {dim}", once))
    return parts


def setting() -> str:
    missing = ", ".join(name for name in CANDIDATES if name not in INSTALLED) or "none"
    tuned = {k: v for k, v in os.environ.items() if k.startswith("MALLOC_") or k == "LD_PRELOAD"}
    return (
        f"torch {torch.__version__}, {torch.get_num_threads()} threads on {os.cpu_count()} cores, "
        f"float32; allocator: {' '.join(platform.libc_ver())} with {tuned or 'its defaults'}; "
        f"Python {platform.python_version()}; load average at the start "
        f"{os.getloadavg()[0]:.1f}. Not installed: {missing}.\n"
    )


def floor_table(sizes: list[int], dim: int, budget: float) -> str:
    """Ours beside the bare matrix products alone, where peers leave no time for repeats."""
    print("times beside the floor", file=sys.stderr)
    pair = ("macl.MACL", FLOOR)
    return time_table(
        f"Beside the floor, D = {dim}", {n: times(n, dim, budget, pair) for n in sizes}
    )


def report(sizes: list[int], dims: list[int], budget: float) -> str:
    parts = ["# Losses: forward + backward of two views of N rows\n", setting()]
    for dim in dims:
        # A larger D adds matrix products, the same for all: sizes up to SMALL tell.
        mine = [n for n in sizes if n <= (REPEATED if dim == dims[0] else SMALL)]
        print(f"times, D={dim}", file=sys.stderr)
        columns = {n: times(n, dim, budget) for n in mine}
        parts.append(time_table(f"Time, D = {dim}", columns))
    small = [n for n in sizes if n <= SMALL]
    if small:
        print("times without allocator churn", file=sys.stderr)
        quiet = child(small, dims[0], "--times", "--budget", str(budget), **NO_CHURN)
        columns = {int(n): figures for n, figures in quiet.items()}
        title = f"Time, D = {dims[0]}, allocator churn disabled ({', '.join(NO_CHURN)})"
        parts.append(time_table(title, columns))
        parts.append(floor_table([n for n in sizes if n >= SMALL], dims[0], 10 * budget))
    for dim in dims:
        large = [n for n in sizes if n >= SMALL] or sizes[-1:]
        beyond = [LARGEST] if max(large) > REPEATED else []
        large = large + beyond if dim == dims[0] else large[:1]
        parts += memory_tables(large, dim)
    return "\n".join(parts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[256, 1024, 4096, 8192, 16384])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--budget", type=float, default=2.0, help="seconds per candidate and size")
    parser.add_argument("--quick", action="store_true", help="N = 256, D = 128, a short budget")
    parser.add_argument("--output", type=Path, help="write the tables to this Markdown file")
    parser.add_argument("--memory", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes, dims = sorted(options.sizes), options.dims
    if options.memory:
        print(json.dumps(memory(options.memory, sizes, dims[0])))
    elif options.times:
        print(json.dumps({n: times(n, dims[0], options.budget) for n in sizes}))
    else:
        if options.quick:
            sizes, dims, options.budget = [256], [128], 0.3
        text = report(sizes, dims, options.budget)
        print(text)
        if options.output:
            options.output.parent.mkdir(parents=True, exist_ok=True)
            options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
