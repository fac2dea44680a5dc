"""Processes end with the loss curve of one: every method, at once and in chunks, float64.

    python tests/long/ranks.py [--worlds 2,4]

Prints, for each number of processes, the largest difference of losses, alignments, temperatures and
of every weight and buffer to the run of one process with the same global batch, relative to the
larger of 1 and the value. Fails above 1e-8.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import torch
import torch.multiprocessing as mp

sys.path[:0] = [str(Path(__file__).parents[1] / "training")]

from ddp_ranks import CASES, STEPS, trained, worker  # noqa: E402

TOLERANCE = 1e-8


def difference(one: torch.Tensor, two: torch.Tensor) -> float:
    return float(((one - two).abs() / two.abs().clamp(min=1)).max())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default="2,4")
    worlds = [int(world) for world in parser.parse_args().worlds.split(",")]
    alone = {method: trained(method, 0, 1) for method, _ in CASES}
    print("| processes | method | chunks | curve | weights and queue | exchanges a step |")
    print("|---|---|---|---|---|---|")
    worst = 0.0
    for world in worlds:
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, args=(folder, world), nprocs=world)
            ranks = [torch.load(f"{folder}/{r}.pt", weights_only=True) for r in range(world)]
        for number, (method, chunk) in enumerate(CASES):
            found, one = [rank[number] for rank in ranks], alone[method]
            curve = max(difference(rank["told"], one["told"]) for rank in found)
            state = max(
                difference(rank["state"][name].double(), value.double())
                for rank in found
                for name, value in one["state"].items()
            )
            exchanges = max(rank["exchanges"] for rank in found) / STEPS
            size = chunk or "none"
            print(f"| {world} | {method} | {size} | {curve:.1e} | {state:.1e} | {exchanges:g} |")
            worst = max(worst, curve, state)
    if worst > TOLERANCE:
        sys.exit(f"differs by {worst:.1e}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
