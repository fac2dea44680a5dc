"""Memory, traffic and time of gather="ring" beside gather=True, and a simulation of more ranks.

    python benchmarks/ring.py memory [--points 4x4096,…] [--dim 128] [--negatives both] [--write]
    python benchmarks/ring.py times  [--points 2x2048,…] [--dim 128] [--repeats 5] [--write]

A point RxN is a global batch of N pairs on R processes of this machine: gloo over loopback, one
thread each, random embeddings, forward and backward pass of MACL without an encoder.

`memory`: peak resident memory that the step adds to a rank (the largest of all ranks), bytes that a
rank sends and batches of messages, beside the formulas. Memory and bytes do not depend on load.

`times`: seconds of a contrasted pair of blocks ("tile"), latency and bandwidth between two ranks
("link"), and of steps; then a simulation of both variants from these, checked against the measured
steps and carried on to a batch of one million on 1,024 ranks. Run it on an idle machine.

--write puts the tables between their markers in docs/scaling.md.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch.nn.functional import normalize

from macl import MACL
from macl.losses.kernels import Exclusions, dispatch
from macl.losses.kernels.interface import Plan

PAGE = Path(__file__).parents[1] / "docs" / "scaling.md"
BYTES = 4
MEMORY_POINTS = "4x4096,4x16384,4x65536,2x8192,8x32768"
TIME_POINTS = "2x2048,2x8192,2x16384"
SIMULATED = [(8, 4096), (8, 65536), (64, 65536), (1024, 65536), (1024, 1 << 20)]


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

        def counted_gather(parts: list[Tensor], own: Tensor) -> Any:
            self._add(parts, share)
            return gather(parts, own)

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


def step(gather: Any, negatives: Any, z: Tensor) -> None:
    z.grad = None
    criterion = MACL(0.1, negatives=negatives, symmetric=False, gather=gather)
    criterion(z[0], z[1]).backward()


def start(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)


def views(rows: int, dim: int) -> Tensor:
    return torch.randn(2, rows, dim, requires_grad=True)


def spawned(worker: Callable[..., None], world: int, *arguments: Any) -> list[dict[str, Any]]:
    """What the ranks saved, in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (world, folder, *arguments), nprocs=world)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(world)]


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


def memory_table(given: argparse.Namespace) -> str:
    views_sent = 2 if given.negatives == "both" else 1
    lines = [
        f'D = {given.dim}, float32, MACL with negatives="{given.negatives}"'
        f"{' in one direction' * (views_sent == 1)}, torch {torch.__version__}:",
        "",
        "| R | N | n | MB added, `True` | MB added, `ring` | MB sent, `True` | formula "
        "| MB sent, `ring` | formula | batches of messages, `ring` | formula |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for world, batch in points(given.points or MEMORY_POINTS):
        found = {
            gather: spawned(memory_worker, world, batch, given.dim, given.negatives, gather)
            for gather in (True, "ring")
        }
        rows, sizes = batch // world, [views_sent * batch // world] * world
        memory = {key: max(own["memory"] for own in ranks) for key, ranks in found.items()}
        whole, ring = found[True][0], found["ring"][0]
        gathered = 3 * views_sent * (world - 1) / world * batch * given.dim * BYTES
        passed = bytes_sent(sizes, 0, given.dim * BYTES)
        lines.append(
            f"| {world} | {batch:,} | {rows:,} | {memory[True]:.0f} | {memory['ring']:.0f} "
            f"| {whole['sent'] / 1e6:.2f} | {gathered / 1e6:.2f} "
            f"| {ring['sent'] / 1e6:.2f} | {passed / 1e6:.2f} "
            f"| {ring['batches']} | {3 * (world - 1)} |"
        )
        print(lines[-1], flush=True)
    return "\n".join(lines)


class Costs(NamedTuple):
    """What the simulation is made of."""

    forward: float
    """Seconds per pair of rows (of the (2n)·(2n) of a block) in the forward pass."""
    backward: float
    latency: float
    """Seconds until a message without content has arrived."""
    per_byte: float


def simulate(costs: Costs, world: int, batch: int, dim: int, gather: Any) -> float:
    """Seconds of a step with both views on R symmetric ranks.

    gather=True waits for a ring all-gather of the keys, computes, and waits for a ring all-reduce
    of their gradients. "ring" contrasts a block while the next is in transit; the gradient of the
    block before travels beside the next keys, and the last one is waited for.
    """
    rows = 2 * batch // world
    link = costs.latency + costs.per_byte * rows * dim * BYTES
    forward, backward = (cost * rows * rows for cost in (costs.forward, costs.backward))
    if gather is True:
        return 3 * (world - 1) * link + world * (forward + backward)
    there = (world - 1) * max(forward, link) + forward
    back = max(backward, link) + max(world - 2, 0) * max(backward, 2 * link) + backward + link
    return there + back if world > 1 else forward + backward


def link_worker(rank: int, world: int, folder: str, sizes: list[int], repeats: int) -> None:
    """Seconds of an exchange of messages between two ranks, by size."""
    start(rank, world, folder)
    seconds = {}
    for size in sizes:
        out, into = torch.zeros(size, dtype=torch.uint8), torch.zeros(size, dtype=torch.uint8)
        found = []
        for _ in range(repeats + 2):
            dist.barrier()
            started = time.perf_counter()
            for work in dist.batch_isend_irecv(
                [dist.P2POp(dist.isend, out, 1 - rank), dist.P2POp(dist.irecv, into, 1 - rank)]
            ):
                work.wait()
            found.append(time.perf_counter() - started)
        seconds[str(size)] = statistics.median(found[2:])
    torch.save(seconds, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def step_worker(
    rank: int, world: int, folder: str, batch: int, dim: int, repeats: int, gather: Any
) -> None:
    start(rank, world, folder)
    z, found = views(batch // world, dim), []
    for _ in range(repeats + 1):  # the first one warms up
        dist.barrier()
        started = time.perf_counter()
        step(gather, "both", z)
        found.append(time.perf_counter() - started)
    torch.save({"seconds": statistics.median(found[1:])}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def tile_seconds(rows: int, dim: int, repeats: int) -> tuple[float, float]:
    """Seconds of a block against rows, forward and backward, on one thread."""
    torch.set_num_threads(1)
    one, two = normalize(torch.randn(2, rows, dim), dim=2)
    tau, plan, weight = torch.tensor(0.1), Plan(Exclusions()), torch.ones(rows)
    forward, backward = [], []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        lse, _ = dispatch.values(one, two, tau, plan)
        forward.append(time.perf_counter() - started)
        started = time.perf_counter()
        dispatch.gradients(one, two, tau, plan, (weight, lse), None, True)
        backward.append(time.perf_counter() - started)
    return statistics.median(forward[1:]), statistics.median(backward[1:])


def measured_costs(given: argparse.Namespace) -> Costs:
    rows, small, large = 4096, 1, 1 << 24
    forward, backward = tile_seconds(rows, given.dim, given.repeats)
    link = spawned(link_worker, 2, [small, large], given.repeats)[0]
    latency = link[str(small)]
    per_byte = (link[str(large)] - latency) / large
    return Costs(forward / rows**2, backward / rows**2, latency, per_byte)


def time_tables(given: argparse.Namespace) -> str:
    costs = measured_costs(given)
    lines = [
        f"Measured on one thread, D = {given.dim}, float32, gloo over loopback, torch "
        f"{torch.__version__}: a pair of rows takes {costs.forward * 1e9:.1f} ns forward and "
        f"{costs.backward * 1e9:.1f} ns backward (block of 4,096); a message takes "
        f"{costs.latency * 1e6:.0f} µs and {1e-9 / costs.per_byte:.1f} GB/s.",
        "",
        "| R | N | `True`, s | simulated | `ring`, s | simulated |",
        "|---|---|---|---|---|---|",
    ]
    for world, batch in points(given.points or TIME_POINTS):
        row = f"| {world} | {batch:,} "
        for gather in (True, "ring"):
            ranks = spawned(step_worker, world, batch, given.dim, given.repeats, gather)
            seconds = max(own["seconds"] for own in ranks)
            row += f"| {seconds:.3f} | {simulate(costs, world, batch, given.dim, gather):.3f} "
        lines.append(row + "|")
        print(lines[-1], flush=True)
    lines += [
        "",
        "Simulated with the same figures, one core per rank:",
        "",
        "| R | N | `True`, s | `ring`, s | ring / True |",
        "|---|---|---|---|---|",
    ]
    for world, batch in SIMULATED:
        whole, ring = (simulate(costs, world, batch, given.dim, kind) for kind in (True, "ring"))
        lines.append(f"| {world:,} | {batch:,} | {whole:.3g} | {ring:.3g} | {ring / whole:.2f} |")
    return "\n".join(lines)


def points(text: str) -> list[tuple[int, int]]:
    """(R, N) of "RxN,RxN,…"."""
    found = []
    for point in text.split(","):
        world, batch = map(int, point.split("x"))
        if batch % world:
            raise SystemExit(f"{point}: N must be a multiple of R.")
        found.append((world, batch))
    return found


def write_section(page: Path, name: str, text: str) -> None:
    """Replace what stands between the markers of `name`; they must be on the page."""
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    old = page.read_text(encoding="utf-8")
    if begin not in old or end not in old:
        raise SystemExit(f"{page} has no markers {begin.strip()} and {end}: put them there first.")
    head, rest = old.split(begin)
    page.write_text(head + begin + text + "\n" + end + rest.split(end)[1], encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["memory", "times"])
    parser.add_argument("--points", help="RxN,RxN,…: ranks and global batch")
    parser.add_argument("--dim", type=int, default=128, help="width D of an embedding")
    parser.add_argument("--negatives", choices=["both", "cross"], default="both")
    parser.add_argument("--repeats", type=int, default=5, help="steps of which to take the median")
    parser.add_argument("--write", action="store_true", help="update docs/scaling.md")
    given = parser.parse_args()
    text = memory_table(given) if given.what == "memory" else time_tables(given)
    print(f"\n{text}")
    if given.write:
        write_section(PAGE, f"ring {given.what}", text)


if __name__ == "__main__":
    main()
