"""Memory, traffic and time of gather="ring" beside gather=True, and a simulation of more ranks.

    python benchmarks/ring.py memory [--points 4x4096,4x4096:cross@64,…] [--dim 128] [--write]
    python benchmarks/ring.py times  [--points 2x2048,…] [--dim 128] [--repeats 5] [--write]

A point RxN is a global batch of N pairs on R processes of this machine: gloo over loopback, one
thread each, random embeddings, forward and backward pass of MACL without an encoder, with the
negatives of both views or (RxN:cross) of the other view in one direction. RxN@D has a width of its
own.

`memory`: peak resident memory that the step adds to a rank (the largest of all ranks), bytes that a
rank sends and batches of messages, beside formulas (for memory: a fit); none depends on load.
Freed tensors are returned to the system (MALLOC_MMAP_THRESHOLD_), so the peak is that of live ones.

`times`: seconds of a contrasted pair of blocks ("tile"), latency and bandwidth between two ranks
("link"), and of steps; then a simulation of both variants from these, checked against the measured
steps and carried on to a batch of one million on 1,024 ranks. Run it on an idle machine.

--write puts the tables between their markers in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import gc
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from ring_ranks import BYTES, points, spawned, start, step, views
from ring_times import time_tables

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
MEMORY_POINTS = (
    "2x8192,4x4096,4x16384,8x8192,4x2048@1024,4x8192@1024,4x65536@16,"
    "4x4096:cross,4x16384:cross,4x65536:cross"
)
TILES = 5
"""MiB of the tiles and of what else does not grow with the batch."""


def bytes_sent(sizes: Sequence[int], rank: int, row_bytes: int, group_bytes: int = 0) -> int:
    """What a rank sends for one logsumexp, forward and backward, by the formula.

    Forward and again backward it passes on every block but that of the next rank; backward also
    the gradient of every block but its own.

    Args:
        sizes: rows of each rank's block.
        rank: the rank that sends.
        row_bytes: bytes of a row of keys, D·b.
        group_bytes: bytes of a row's group, 0 without groups.
    """
    keys = sum(sizes) - sizes[(rank + 1) % len(sizes)]
    gradients = sum(sizes) - sizes[rank]
    return 2 * keys * (row_bytes + group_bytes) + gradients * row_bytes


class Traffic:
    """Counts what this rank hands over to be sent, and how often."""

    def __init__(self) -> None:
        self.sent, self.batches = 0.0, 0
        share = (dist.get_world_size() - 1) / dist.get_world_size()
        p2p, gather, reduce = dist.batch_isend_irecv, dist.all_gather, dist.all_reduce

        def counted_p2p(operations: list[dist.P2POp]) -> Any:
            self._add([op.tensor for op in operations if op.op is dist.isend], 1)
            return p2p(operations)

        def counted_gather(parts: list[Tensor], own: Tensor, group: Any = None) -> Any:
            self._add(parts, share)
            return gather(parts, own, group)

        def counted_reduce(whole: Tensor) -> Any:
            self._add([whole], 2 * share)
            return reduce(whole)

        dist.batch_isend_irecv, dist.all_gather = counted_p2p, counted_gather
        dist.all_reduce = counted_reduce

    def _add(self, tensors: list[Tensor], share: float) -> None:
        size = sum(tensor.numel() * tensor.element_size() for tensor in tensors)
        self.sent += share * size
        self.batches += size > 1000  # A, sizes and counts are a few bytes


def resident(field: str) -> float:
    """VmRSS or VmHWM (its peak) of this process in megabytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(float(line.split()[1]) for line in lines if line.startswith(field)) / 1024


def memory_worker(
    rank: int, world: int, folder: str, batch: int, dim: int, negatives: str, gather: Any
) -> None:
    start(rank, world, folder)
    step(gather, negatives, views(64, dim))  # code and buffers of the libraries are loaded
    traffic, z = Traffic(), views(batch // world, dim)
    gc.collect()
    dist.barrier()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts again from here
    step(gather, negatives, z)
    figures = {
        "memory": resident("VmHWM") - before,
        "sent": traffic.sent,
        "batches": traffic.batches,
    }
    torch.save(figures, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def memory_fit(world: int, batch: int, dim: int, negatives: str) -> dict[Any, float]:
    """MiB that a step adds to a rank: factors fitted to measurements, see docs/scaling.md."""
    whole, own = (rows * dim * BYTES / 2**20 for rows in (batch, batch // world))
    if negatives == "both":
        return {True: 6 * whole + 4 * own + TILES, "ring": (20 if world > 2 else 14) * own + TILES}
    return {True: 3 * whole + TILES, "ring": 11 * own + TILES}


def memory_row(
    world: int, batch: int, dim: int, negatives: str, found: dict[Any, list[dict[str, Any]]]
) -> str:
    """A line of the table from what the ranks measured with each variant."""
    keys = 2 if negatives == "both" else 1
    expected = {
        True: 3 * keys * (world - 1) / world * batch * dim * BYTES,
        "ring": bytes_sent([keys * batch // world] * world, 0, dim * BYTES),
    }
    memory = memory_fit(world, batch, dim, negatives)
    row = f"| {negatives} | {dim:,} | {world} | {batch:,} | {batch // world:,} "
    for gather, ranks in found.items():
        row += f"| {max(own['memory'] for own in ranks):.0f} | {memory[gather]:.0f} "
    for gather, ranks in found.items():
        row += f"| {ranks[0]['sent'] / 1e6:.2f} | {expected[gather] / 1e6:.2f} "
    return row + f"| {found['ring'][0]['batches']} | {3 * (world - 1)} |"


def memory_header() -> list[str]:
    return [
        f"float32, MACL, torch {torch.__version__}; memory in MiB, bytes sent in MB:",
        "",
        "| negatives | D | R | N | n | memory, `True` | fit | memory, `ring` | fit | sent, "
        "`True` | formula | sent, `ring` | formula | batches of messages, `ring` | formula |",
        "|" + "---|" * 15,
    ]


def memory_table(given: argparse.Namespace) -> str:
    # glibc otherwise keeps freed tensors in its heap, and the peak depends on their order.
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 16)
    lines = memory_header()
    for point in (given.points or MEMORY_POINTS).split(","):
        point, _, width = point.partition("@")
        size, _, form = point.partition(":")
        ((world, batch),) = points(size)
        dim, negatives = int(width or given.dim), form or "both"
        common = (batch, dim, negatives)
        found = {kind: spawned(memory_worker, world, *common, kind) for kind in (True, "ring")}
        lines.append(memory_row(world, batch, dim, negatives, found))
        print(lines[-1], flush=True)
    return "\n".join(lines)


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of `name`; a new one goes after the memory table."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old:
        last = "<!-- /ring memory -->"
        old = old.replace(last, f"{last}\n\n{begin}{end}")
    head, rest = old.split(begin)
    page.write_text(head + begin + text + "\n" + end + rest.split(end)[1], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["memory", "times"])
    parser.add_argument("--points", help="RxN,RxN:cross@D,…: ranks, global batch, width")
    parser.add_argument("--dim", type=int, default=128, help="width D of an embedding")
    parser.add_argument("--repeats", type=int, default=5, help="steps of which to take the median")
    parser.add_argument("--write", action="store_true", help="update docs/scaling.md")
    given = parser.parse_args()
    text = (
        memory_table(given)
        if given.what == "memory"
        else time_tables(given.points, given.dim, given.repeats)
    )
    print(f"\n{text}")
    if given.write:
        write_section(PAGE, f"ring {given.what}", text)


if __name__ == "__main__":
    main()
