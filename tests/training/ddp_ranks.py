"""A few steps of each method as one rank of several; apart from the tests, to start quickly."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.nn.parallel import DistributedDataParallel

from macl import MACL
from macl.caching import encode_in_chunks
from macl.methods import NNCLR, Method, MoCo, SimCLR, Step

BATCH, STEPS, IN, OUT, QUEUE = 16, 4, 6, 5, 27
CASES = [(method, chunk) for method in ("simclr", "moco", "nnclr") for chunk in (None, 3)]
"""Every method, at once and in chunks: on two ranks 8 samples in chunks of 3, 3 and 2."""


def built(name: str) -> Method:
    """The method without batch normalization, whose statistics are each process' own on CPUs."""
    torch.manual_seed(0)
    encoder, projector = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh()), nn.Linear(OUT, OUT)
    # A strong α: were A not global, every rank would have its own temperature.
    loss = MACL(alpha=1.0, gather=True)
    method: Method = SimCLR(encoder, projector, loss)
    if name == "moco":
        method = MoCo(encoder, projector, loss, OUT, queue_size=QUEUE, momentum=0.5, splits=2)
    elif name == "nnclr":
        loss = MACL(alpha=1.0, gather=True, negatives="cross", symmetric=False)
        method = NNCLR(encoder, projector, nn.Linear(OUT, OUT), loss, OUT, queue_size=QUEUE)
    return method.double()


class Engine(nn.Module):
    """What the engine does with two views."""

    def __init__(self, method: Method, chunk: int | None) -> None:
        super().__init__()
        self.method, self.chunk = method, chunk

    def forward(self, *views: Tensor) -> Step:
        self.method.prepare()
        return self.method.step(
            *encode_in_chunks(self.method.encode, views, self.chunk, self.method)
        )


def counted(exchanges, bucket):  # type: ignore[no-untyped-def]  # torch refuses annotations as text
    """The usual exchange of gradients, counted."""
    exchanges.append(bucket.index())
    return default_hooks.allreduce_hook(None, bucket)


def trained(name: str, rank: int, world: int, chunk: int | None = None) -> dict[str, Any]:
    """State, losses and alignments after a few steps on this rank's share of every batch."""
    method = built(name)
    step: nn.Module = Engine(method, chunk)
    exchanges: list[int] = []
    if world > 1:
        step = DistributedDataParallel(step, broadcast_buffers=False)
        step.register_comm_hook(exchanges, counted)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9)
    seen = []
    for number in range(STEPS):
        generator = torch.Generator().manual_seed(number)
        views = torch.randn(2, BATCH, IN, dtype=torch.float64, generator=generator)
        optimizer.zero_grad()
        found = step(*views.chunk(world, dim=1)[rank])
        found.loss.backward()
        loss = found.loss.detach().clone()
        if world > 1:
            dist.all_reduce(loss)
            loss /= world
        optimizer.step()
        seen.append([loss.item(), *(float(found.metrics[n]) for n in ("alignment", "temperature"))])
    return {
        "state": dict(method.state_dict()),
        "seen": torch.tensor(seen, dtype=torch.float64),
        "exchanges": len(exchanges),
    }


def worker(rank: int, folder: str, world: int) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    done = [trained(method, rank, world, chunk) for method, chunk in CASES]
    torch.save(done, f"{folder}/{rank}.pt")
    dist.destroy_process_group()
