"""Processes of this machine as ranks, and the step that benchmarks/ring.py measures."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor

from macl import MACL

BYTES = 4


def step(gather: Any, negatives: Any, z: tuple[Tensor, Tensor]) -> None:
    for view in z:
        view.grad = None
    criterion = MACL(0.1, negatives=negatives, symmetric=False, gather=gather)
    criterion(*z).backward()


def start(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)


def views(rows: int, dim: int) -> tuple[Tensor, Tensor]:
    return torch.randn(rows, dim, requires_grad=True), torch.randn(rows, dim, requires_grad=True)


def spawned(worker: Callable[..., None], world: int, *arguments: Any) -> list[dict[str, Any]]:
    """What the ranks saved, in rank order."""
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(worker, (world, folder, *arguments), nprocs=world)
        return [torch.load(f"{folder}/{rank}.pt", weights_only=True) for rank in range(world)]


def points(text: str) -> list[tuple[int, int]]:
    """(R, N) of "RxN,RxN,…"."""
    found = []
    for point in text.split(","):
        world, batch = map(int, point.split("x"))
        if batch % world:
            raise SystemExit(f"{point}: N must be a multiple of R.")
        found.append((world, batch))
    return found
