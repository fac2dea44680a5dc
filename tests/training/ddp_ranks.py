"""A few steps of each method as one rank of several; apart from the tests, to start quickly."""

from __future__ import annotations

import os
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from macl import MACL
from macl.methods import NNCLR, Method, MoCo, SimCLR

WORLD, BATCH, STEPS, IN, OUT, QUEUE = 2, 8, 4, 6, 5, 11


def built(name: str) -> Method:
    """The method without batch normalisation, whose statistics are each process' own on CPUs."""
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


def trained(name: str, rank: int, world: int) -> dict[str, Any]:
    """State, losses and alignments after a few steps on this rank's share of every batch."""
    method = built(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9)
    told = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        views = torch.randn(2, BATCH, IN, dtype=torch.float64, generator=generator)
        x1, x2 = views.chunk(world, dim=1)[rank]
        optimizer.zero_grad()
        contrast = method(x1, x2)
        contrast.loss.backward()
        loss = contrast.loss.detach().clone()
        for value in [loss, *(p.grad for p in method.parameters() if p.grad is not None)]:
            if world > 1:  # what DistributedDataParallel does
                dist.all_reduce(value)
                value /= world
        optimizer.step()
        told.append([loss.item(), contrast.alignment.item(), contrast.temperature.item()])
    return {"state": dict(method.state_dict()), "told": torch.tensor(told, dtype=torch.float64)}


def worker(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=WORLD)
    torch.save(
        {name: trained(name, rank, WORLD) for name in ("simclr", "moco", "nnclr")},
        f"{folder}/{rank}.pt",
    )
    dist.destroy_process_group()
