"""The complete list of Triton kernels compiled for GPUs that need not be there.

    python benchmarks/gpu_compile.py [--chips 80 90 100]

prints the table of docs/results/gpu.md and ends with an error if a kernel spills registers, uses
the stack or more shared memory than the chip has. `benchmarks/gpu.py --compile-only` writes it.
Takes some minutes; Triton keeps what it compiled.
"""

from __future__ import annotations

import argparse
import sys

from macl.losses.kernels.triton_compile import (
    CHIPS,
    Case,
    Usage,
    cases,
    compile_launch,
    planned,
    row_cases,
)
from macl.losses.kernels.triton_configs import Config

Row = tuple[str, int, str]
Found = dict[Case, tuple[Config, Usage]]


def compile_all(chips: list[int]) -> Found:
    """Every shipped configuration for each chip."""
    found: Found = {}
    for sm in chips:
        mine = cases(sm) + row_cases(sm)
        for case in mine:
            launch = planned(case)
            found[case] = launch.config, compile_launch(launch, sm)
            if problem := found[case][1].problem(sm):
                print(f"{case}: {problem}", file=sys.stderr)
        print(f"sm_{sm}: {len(mine)} kernels compiled", file=sys.stderr)
    return found


def problems(found: Found) -> list[str]:
    return [f"{c}: {p}" for c, (_, usage) in found.items() if (p := usage.problem(c.sm))]


def tile(config: Config) -> str:
    text = f"{config.bm},{config.bn},{config.bd}"
    text += f",DV{config.dv}" if config.dv else ""
    return f"{text}/{config.warps}/{config.stages}" + (" twice" if config.reload else "")


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
    found = compile_all(parser.parse_args().chips)
    print(table(found))
    if wrong := problems(found):
        sys.exit("\n".join(wrong))


if __name__ == "__main__":
    main()
