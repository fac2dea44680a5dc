"""open_clip's losses and ours on the same rows, as one rank of several."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from macl.integrations import open_clip as ours

ROWS, D = 3, 5


def step(loss: Any, rows: slice, total: int, captions: int = 1) -> tuple[Tensor, ...]:
    """Value and gradients to images, texts, scale and bias, of these rows of a batch."""
    generator = torch.Generator().manual_seed(0)
    images = torch.randn(total, D, generator=generator, dtype=torch.float64)
    texts = torch.randn(total, captions, D, generator=generator, dtype=torch.float64)
    given = [
        images[rows].requires_grad_(),
        texts[rows].flatten(0, 1).requires_grad_(),
        torch.tensor(8.0, dtype=torch.float64, requires_grad=True),
        torch.tensor(-3.0, dtype=torch.float64, requires_grad=True),
    ]
    one, two, scale, bias = given
    value = loss(F.normalize(one, dim=1), F.normalize(two, dim=1), scale, bias)
    gradients = torch.autograd.grad(value, given, allow_unused=True)
    return value.detach(), *(torch.zeros(()) if g is None else g for g in gradients)


def compared(rank: int, world: int) -> dict[str, tuple[tuple[Tensor, ...], ...]]:
    """Theirs and ours by name; a rank's own rows."""
    from open_clip.loss import ClipLoss, SigLipLoss

    rows, total = slice(rank * ROWS, (rank + 1) * ROWS), world * ROWS
    found = {}
    here = {"rank": rank, "world_size": world}
    for local in (False, True):
        for ring in (False, True):
            options = {"local_loss": local, "gather_with_grad": True, **here}
            pair = ClipLoss(**options), ours.ClipLoss(**options, ring=ring)
            found[f"clip {local} {ring}"] = tuple(step(loss, rows, total) for loss in pair)
    for impl in ("bidir", "shift", "gather"):
        pair = SigLipLoss(**here, dist_impl=impl), ours.SigLipLoss(**here, dist_impl=impl)
        found[f"siglip {impl}"] = tuple(step(loss, rows, total) for loss in pair)
    if world > 1:  # several captions, beside one process with all rows
        for name, make in {"clip": ours.ClipLoss, "siglip": ours.SigLipLoss}.items():
            found[f"captions {name}"] = (step(make(**here), rows, total, captions=2),)
    return found


def run(rank: int, world: int, folder: str) -> None:
    """For torch.multiprocessing."""
    torch.set_num_threads(1)
    place = f"file://{folder}/meet"
    dist.init_process_group("gloo", place, world_size=world, rank=rank)
    torch.save(compared(rank, world), Path(folder) / f"{rank}.pt")
    dist.destroy_process_group()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    torch.save(compared(dist.get_rank(), 2), Path(sys.argv[1]) / f"{dist.get_rank()}.pt")
    dist.destroy_process_group()
