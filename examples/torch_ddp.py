"""A bare DistributedDataParallel loop: `gather=True` is all that the loss needs.

pip install macl
python examples/torch_ddp.py                                              # one process
torchrun --standalone --nproc-per-node=2 examples/torch_ddp.py            # the same numbers
"""

from __future__ import annotations

import os

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from macl import MACL

BATCH = 32
"""Pairs of the global batch, over all processes."""


def train(steps: int = 10) -> list[float]:
    """Train on random clusters; returns the loss of every step, the mean over processes."""
    world, rank = int(os.environ.get("WORLD_SIZE", "1")), int(os.environ.get("RANK", "0"))
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    torch.manual_seed(0)  # the same initial weights on every process
    model: nn.Module = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32)).to(device)
    if world > 1:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
        model = DistributedDataParallel(model)
    criterion = MACL(temperature=0.1, alpha=0.5, gather=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)  # the same batches, of which each takes a slice
    losses = []
    for _ in range(steps):
        samples = torch.randn(BATCH, 16, generator=generator)
        views = samples + 0.3 * torch.randn(2, BATCH, 16, generator=generator)
        mine = views[:, rank * BATCH // world : (rank + 1) * BATCH // world].to(device)
        z1, z2 = model(mine.flatten(0, 1)).chunk(2)
        loss: Tensor = criterion(z1, z2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        shown = loss.detach().clone()
        if world > 1:
            dist.all_reduce(shown)
        losses.append(shown.item() / world)
    if world > 1:
        dist.barrier()  # no rank ends while another still uses the connection
        dist.destroy_process_group()
    return losses


if __name__ == "__main__":
    found = train()
    if int(os.environ.get("RANK", "0")) == 0:
        print(" ".join(f"{loss:.6f}" for loss in found))
