"""The complete list of Triton kernels compiled for GPUs that need not be there.

    python benchmarks/gpu_compile.py [--chips 80 90 100] [--jobs 2] [--again]

prints the table of docs/results/gpu.md and ends with an error if a kernel spills registers, uses
the stack or more shared memory than the chip has. `benchmarks/gpu.py --compile-only` writes it.

What each kernel uses is kept in docs/results/data/kernels.json, which the tests read. A kernel that
has not changed since, compiled by the same compiler, is not compiled again; with `--again` all are,
which takes some ten minutes.
"""

from __future__ import annotations

import argparse
import sys
from multiprocessing import Pool
from pathlib import Path

from rich.console import Console
from rich.progress import track

from macl.losses.ops.triton.launch import Config
from triton_compile import CHIPS, Case, Record, Usage, cases, compile_launch, planned

Row = tuple[str, int, str]
Found = dict[Case, tuple[Config, Usage]]
RECORD = Path(__file__).parents[1] / "docs/results/data/kernels.json"


def usage_of(case: Case) -> tuple[Case, Usage]:
    """Compile a case."""
    return case, compile_launch(planned(case), case.sm)


def compile_all(chips: list[int], jobs: int = 1, again: bool = False) -> Found:
    """Every shipped configuration for each chip; those that have changed are compiled."""
    record = Record(RECORD)
    shipped = [case for sm in chips for case in cases(sm)]
    missing = [case for case in shipped if again or record.usage(case) is None]
    with Pool(jobs) as pool:
        compiled = pool.imap_unordered(usage_of, missing)
        console = Console(stderr=True)
        for case, usage in track(compiled, "Compiling", len(missing), console=console):
            record.add(case, usage)
            if problem := usage.problem(case.sm):
                print(f"{case}: {problem}", file=sys.stderr)
    record.write()
    print(f"{len(shipped)} kernels, {len(missing)} of them compiled now", file=sys.stderr)
    return {case: (planned(case).config, Usage(*record.entries[str(case)][1:])) for case in shipped}


def problems(found: Found) -> list[str]:
    return [f"{c}: {p}" for c, (_, usage) in found.items() if (p := usage.problem(c.sm))]


def tile(config: Config) -> str:
    text = f"{config.bm},{config.bn},{config.bd}"
    text += f",{config.chunks or 1}×{config.dv}" if config.dv else ""
    return f"{text}/{config.warps}/{config.stages}"


def cell(found: Found, kernel: str, arithmetic: str, dim: int, sm: int) -> str:
    """Tile sizes, then the most that any variant needs."""
    mine = [
        (case, *value)
        for case, value in found.items()
        if (case.kernel, case.arithmetic, case.dim, case.sm) == (kernel, arithmetic, dim, sm)
    ]
    tiles = list(dict.fromkeys(tile(config) for _, config, _ in mine))
    registers = max(usage.registers for *_, usage in mine)
    stack = max(usage.stack for *_, usage in mine)
    shared = max(usage.shared for *_, usage in mine) / 1024
    return f"{' or '.join(tiles)}: {registers} reg, {stack} spilled, {shared:.0f} KB"


def table(found: Found) -> str:
    """Markdown: arithmetic, width and kernel by chip."""
    chips = sorted({case.sm for case in found})
    lines = [
        "| | " + " | ".join(f"sm_{sm}" for sm in chips) + " |",
        "|---" * (len(chips) + 1) + "|",
    ]
    for arithmetic, dim, kernel in dict.fromkeys((c.arithmetic, c.dim, c.kernel) for c in found):
        cells = [cell(found, kernel, arithmetic, dim, sm) for sm in chips]
        width = f", D={dim}" if dim else ""
        lines.append(f"| {arithmetic}{width}, {kernel} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--chips", type=int, nargs="+", default=list(CHIPS), choices=list(CHIPS))
    parser.add_argument("--jobs", type=int, default=1, help="processes that compile")
    parser.add_argument("--again", action="store_true", help="compile all of them")
    options = parser.parse_args()
    found = compile_all(options.chips, options.jobs, options.again)
    print(table(found))
    if wrong := problems(found):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
