"""Loss, forward and backward, beside its peers: time (interleaved medians) and extra memory.

    python benchmarks/losses.py [--quick] [--sizes 256 1024] [--dims 128] [--output FILE.md]

Times are measured in one process, all candidates in turn and each round in
another order, so that a change in the machine's load, or what a neighbor leaves in the caches,
meets all of them. Memory is the peak above what was resident before the step, each candidate in a
process of its own (Linux). Peers come from the `bench` extra; those not installed are named and
left out. The tables take the place of those between the marks `losses:begin` and `losses:end` of
the output; the rest of that page stays.
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
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import torch

from loss_peers import CANDIDATES, FLOOR, INSTALLED, OURS, Step

REPEATED = 8192  # beyond this size the one run that measures memory also gives the time
SMALL = 4096  # the largest size where everything is measured
PATIENCE = 6.0  # seconds that one step may be expected to take
ROUNDS = 1000  # at most
MARKS = ("<!-- losses:begin -->", "<!-- losses:end -->")
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


def repeats(
    n: int, dim: int, budget: float, only: Collection[str] = INSTALLED
) -> dict[str, list[float]]:
    """Seconds of each candidate's runs; slow ones run less often, within `budget` seconds each."""
    steps = {
        name: c.step(n, dim) for name, c in INSTALLED.items() if name in only and n <= c.largest
    }
    taken = {name: [seconds(step)] for name, step in steps.items()}
    for name, step in steps.items():
        if taken[name][0] < budget:  # the first run warms up and says little of the others
            taken[name].append(seconds(step))
    rounds = {name: min(ROUNDS, int(budget / min(runs))) for name, runs in taken.items()}
    order, shuffle = list(steps), random.Random(0)
    for turn in range(max(rounds.values())):
        shuffle.shuffle(order)  # what ran before leaves caches and heap in its own state
        for name in order:
            if turn < rounds[name]:
                taken[name].append(seconds(steps[name]))
    # The first run warms up, and counts only for those too slow to be repeated.
    return {name: runs[1:] or runs for name, runs in taken.items()}


def times(sizes: list[int], dim: int, budget: float) -> dict[int, Figures]:
    """Median seconds of each candidate by size; who would take too long is left out."""
    found: dict[int, Figures] = {}
    for n in sizes:
        only, last = list(INSTALLED), max(found, default=0)
        if last >= SMALL:
            limit = PATIENCE * (last / n) ** 2
            patient = (*OURS.values(), FLOOR)
            only = [k for k in only if k in patient or found[last].get(k, limit) < limit]
        taken = repeats(n, dim, budget, only)
        found[n] = {name: statistics.median(runs) for name, runs in taken.items()}
        shown = {name: f"{1000 * value:.3g}" for name, value in found[n].items()}
        print(f"N={n}, D={dim}, ms: {shown}", file=sys.stderr, flush=True)
    return found


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
    ours = OURS["both views"]
    lines = [f"### Beside the floor, D = {dim}, ours and the bare products alone in turn", ""]
    lines.append("| N | repeats | ours, median (least) ms | floor | ratio |")
    lines.append("|---" * 5 + "|")
    for n in sizes:
        taken = repeats(n, dim, budget, (ours, FLOOR))
        one, two = taken[ours], taken[FLOOR]
        middle = [1000 * statistics.median(runs) for runs in (one, two)]
        least = [1000 * min(runs) for runs in (one, two)]
        cells = [f"{_digits(a)} ({_digits(b)})" for a, b in zip(middle, least, strict=True)]
        ratio = f"{middle[0] / middle[1]:.2f} ({least[0] / least[1]:.2f})"
        lines.append(f"| {n:,} | {len(one)} | {cells[0]} | {cells[1]} | {ratio} |")
    return "\n".join(lines) + "\n"


def report(sizes: list[int], dims: list[int], budget: float) -> Iterator[str]:
    """The tables, one by one."""
    yield setting()
    small = [n for n in sizes if n <= SMALL]
    large = [n for n in sizes if n >= SMALL]
    repeated = [n for n in sizes if n <= REPEATED]
    yield time_table(f"Time, D = {dims[0]}", times(repeated, dims[0], budget))
    if small:
        print("times without allocator churn", file=sys.stderr)
        quiet = child(small, dims[0], "--times", "--budget", str(budget), **NO_CHURN)
        columns = {int(n): figures for n, figures in quiet.items()}
        title = f"Time, D = {dims[0]}, allocator churn disabled ({', '.join(NO_CHURN)})"
        yield time_table(title, columns)
    for dim in dims if large else []:
        mine = [n for n in large if n <= REPEATED] if dim == dims[0] else large[:1]
        yield floor_table(mine, dim, 8 * budget)
    for dim in dims[1:]:
        # A larger D adds matrix products, the same for all: sizes up to SMALL tell.
        yield time_table(f"Time, D = {dim}", times(small, dim, budget))
    yield from memory_tables(large or sizes[-1:], dims[0])


def placed(tables: str, page: str) -> str:
    """The page with `tables` between its marks; at its end where it has none."""
    before, begin, rest = page.partition(MARKS[0])
    _, _, after = rest.partition(MARKS[1])
    return f"{before.rstrip()}\n\n{MARKS[0]}\n\n{tables}\n{MARKS[1]}{after if begin else chr(10)}"


def write(path: Path, tables: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    page = "# Losses: forward + backward of two views of N rows\n"
    if path.exists():
        page = path.read_text(encoding="utf-8")
    path.write_text(placed(tables, page), encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--sizes", type=int, nargs="+", default=[8, 32, 256, 1024, 4096, 8192])
    parser.add_argument("--dims", type=int, nargs="+", default=[128, 768])
    parser.add_argument("--budget", type=float, default=1.0, help="seconds per candidate and size")
    parser.add_argument("--quick", action="store_true", help="N = 256, D = 128, a short budget")
    parser.add_argument("--output", type=Path, help="write the tables to this Markdown file")
    parser.add_argument("--memory", choices=list(CANDIDATES), help=argparse.SUPPRESS)
    parser.add_argument("--times", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    sizes, dims = sorted(options.sizes), options.dims
    if options.memory:
        print(json.dumps(memory(options.memory, sizes, dims[0])))
    elif options.times:
        print(json.dumps(times(sizes, dims[0], options.budget)))
    else:
        if options.quick:
            sizes, dims, options.budget = [256], [128], 0.3
        parts = []
        for part in report(sizes, dims, options.budget):
            parts.append(part)
            print(part, flush=True)
            if options.output:  # what is there is kept if the rest is interrupted
                write(options.output, "\n".join(parts))


if __name__ == "__main__":
    main()
