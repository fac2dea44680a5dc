"""Time, memory and traffic of a training step on 1, 2 and 4 processes with one global batch.

    python benchmarks/processes.py [--worlds 1,2,4] [--batch 1024] [--chunk 0] [--steps 5]

SimCLR with MACL on images of 32 px, a resnet8 and gloo over loopback, one thread per process.
"sent" counts what a process hands over to be exchanged, as a ring would carry it: (R-1)/R of what
is gathered, twice that of what is reduced; "formula" is what docs/scaling.md says. On two cores
more processes than two share them, so the time of four says nothing of four cores.
"""

from __future__ import annotations

import argparse
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from macl import MACL
from macl.caching import encode_in_chunks
from macl.methods import SimCLR, Step
from macl.methods.heads import build_head
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.recipes.methods import HeadConfig

SIDE, DIM, BYTES = 32, 64, 4


class Engine(nn.Module):
    """What the engine does with two views."""

    def __init__(self, method: SimCLR, chunk: int | None) -> None:
        super().__init__()
        self.method, self.chunk = method, chunk

    def forward(self, *views: Tensor) -> Step:
        return self.method.step(
            *encode_in_chunks(self.method.encode, views, self.chunk, self.method)
        )


class Traffic:
    """Bytes that a ring would carry out of this process for what torch.distributed is asked."""

    def __init__(self, world: int) -> None:
        self.sent = 0.0
        self.share = (world - 1) / world
        dist.all_gather_into_tensor = self._counting(
            dist.all_gather_into_tensor, lambda whole, *_: [whole], 1
        )
        dist.reduce_scatter_tensor = self._counting(
            dist.reduce_scatter_tensor, lambda own, whole, *_: [whole], 1
        )
        dist.all_reduce = self._counting(dist.all_reduce, lambda tensor: [tensor], 2)

    def _counting(
        self, exchange: Callable[..., Any], whole: Callable[..., list[Tensor]], passes: int
    ) -> Callable[..., Any]:
        def counted(*tensors: Any, **options: Any) -> Any:
            size = sum(part.numel() * part.element_size() for part in whole(*tensors))
            self.sent += passes * self.share * size
            return exchange(*tensors, **options)

        return counted


def worker(rank: int, world: int, folder: str, given: argparse.Namespace) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(0)
    encoder = build_image_encoder(ImageEncoderConfig(name="resnet8", width=given.width))
    width = int(encoder.out_dim)  # type: ignore[arg-type]
    method = SimCLR(
        encoder, build_head(HeadConfig(widths=(width, DIM)), width), MACL(0.1, gather=True)
    )
    step: nn.Module = Engine(method, given.chunk or None)
    weights = sum(weight.numel() for weight in method.parameters())
    traffic = None
    if world > 1:
        dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
        step = DistributedDataParallel(step, broadcast_buffers=False)
        traffic = Traffic(world)
        # The usual exchange of gradients, but asked for in Python, where it is counted.
        step.register_comm_hook(None, default_hooks.allreduce_hook)
    optimizer = torch.optim.Adam(method.parameters())
    views = torch.rand(2, given.batch // world, 3, SIDE, SIDE)
    seconds, sent = [], []
    for _ in range(given.steps + 1):  # the first one warms up
        before, started = traffic.sent if traffic else 0.0, time.perf_counter()
        optimizer.zero_grad()
        step(*views).loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - started)
        sent.append((traffic.sent if traffic else 0.0) - before)
    if rank == 0:
        share = (world - 1) / world
        figures = {
            "seconds": statistics.median(seconds[1:]),
            "resident": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            "sent": statistics.median(sent[1:]),
            "formula": share * BYTES * (6 * given.batch * DIM + 2 * weights),
        }
        torch.save(figures, Path(folder) / "figures.pt")
    if world > 1:
        dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--worlds", default="1,2,4")
    parser.add_argument("--batch", type=int, default=1024)
    parser.add_argument("--chunk", type=int, default=0)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=5)
    given = parser.parse_args()
    print(
        f"batch {given.batch}, chunks of {given.chunk or 'everything'}, resnet8 of width ", end=""
    )
    print(f"{given.width}, D = {DIM}, {os.cpu_count()} cores, torch {torch.__version__}\n")
    print("| processes | seconds a step | peak resident MB of one | MB sent by one | formula |")
    print("|---|---|---|---|---|")
    for world in map(int, given.worlds.split(",")):
        with tempfile.TemporaryDirectory() as folder:
            mp.spawn(worker, (world, folder, given), nprocs=world)
            told = torch.load(Path(folder) / "figures.pt", weights_only=True)
        row = f"{told['seconds']:.2f} | {told['resident']:.0f} | {told['sent'] / 1e6:.2f}"
        print(f"| {world} | {row} | {told['formula'] / 1e6:.2f} |", flush=True)


if __name__ == "__main__":
    main()
