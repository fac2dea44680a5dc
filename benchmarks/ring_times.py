"""Seconds of the ring exchange and of gathering: measured here, simulated for more ranks."""

from __future__ import annotations

import math
import statistics
import time
from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch.nn.functional import normalize

from macl.losses.ops import operator
from macl.losses.ops.tiled import Operands, Plan
from ring_ranks import BYTES, points, spawned, start, step, views

TIME_POINTS = "2x2048,2x8192,2x16384"
SIMULATED = [(8, 4096), (8, 65536), (64, 65536), (1024, 65536), (1024, 1 << 20)]


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

    gather=True waits for an all-gather of the keys, computes, and waits for an all-reduce of their
    gradients: around a ring of R − 1 hops each way, or with "tree" in ⌈log₂ R⌉ hops and the same
    bytes. "ring" contrasts a block while the next is in transit; the gradient of the
    block before travels beside the next keys, and the last one is waited for.
    """
    rows = 2 * batch // world
    link = costs.latency + costs.per_byte * rows * dim * BYTES
    forward, backward = (cost * rows * rows for cost in (costs.forward, costs.backward))
    if gather == "tree":
        hops = 3 * math.ceil(math.log2(world)) * costs.latency
        sent = 3 * (world - 1) * (link - costs.latency)
        return hops + sent + world * (forward + backward)
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
    given, plan, weight = Operands(one, two, torch.tensor(0.1)), Plan(), torch.ones(rows)
    forward, backward = [], []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        lse = operator.values(given, plan)[0].lse
        forward.append(time.perf_counter() - started)
        started = time.perf_counter()
        operator.gradients(given, plan, lse, weight)
        backward.append(time.perf_counter() - started)
    return statistics.median(forward[1:]), statistics.median(backward[1:])


def measured_costs(dim: int, repeats: int) -> Costs:
    rows, small, large = 4096, 1, 1 << 24
    forward, backward = tile_seconds(rows, dim, repeats)
    link = spawned(link_worker, 2, [small, large], repeats)[0]
    latency = link[str(small)]
    per_byte = (link[str(large)] - latency) / large
    return Costs(forward / rows**2, backward / rows**2, latency, per_byte)


def time_tables(chosen: str | None, dim: int, repeats: int) -> str:
    """Markdown: the measured costs, measured and simulated steps, and the simulation."""
    costs = measured_costs(dim, repeats)
    lines = [
        f"Measured on one thread, D = {dim}, float32, gloo over loopback, torch "
        f"{torch.__version__}: a pair of rows takes {costs.forward * 1e9:.1f} ns forward and "
        f"{costs.backward * 1e9:.1f} ns backward (block of 4,096); a message takes "
        f"{costs.latency * 1e6:.0f} µs and {1e-9 / costs.per_byte:.1f} GB/s.",
        "",
        "| R | N | `True`, s | simulated | `ring`, s | simulated |",
        "|---|---|---|---|---|---|",
    ]
    for world, batch in points(chosen or TIME_POINTS):
        row = f"| {world} | {batch:,} "
        for gather in (True, "ring"):
            ranks = spawned(step_worker, world, batch, dim, repeats, gather)
            seconds = max(own["seconds"] for own in ranks)
            row += f"| {seconds:.3f} | {simulate(costs, world, batch, dim, gather):.3f} "
        lines.append(row + "|")
        print(lines[-1], flush=True)
    lines += [
        "",
        "Simulated with the same figures, one core per rank:",
        "",
        "| R | N | `True`, s | `True` by a tree, s | `ring`, s | ring / True | ring / tree |",
        "|---|---|---|---|---|---|---|",
    ]
    for world, batch in SIMULATED:
        kinds = (True, "tree", "ring")
        whole, tree, ring = (simulate(costs, world, batch, dim, kind) for kind in kinds)
        lines.append(
            f"| {world:,} | {batch:,} | {whole:.3g} | {tree:.3g} | {ring:.3g} | {ring / whole:.2f} "
            f"| {ring / tree:.2f} |"
        )
    return "\n".join(lines)
