"""A first-in-first-out memory of embeddings: MoCo's queue, NNCLR's support set."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import distributed
from macl.core.similarity import nearest_rows


class Queue(nn.Module):
    """(size, dim) unit rows and a pointer to the oldest, both in the checkpoint.

    Starts with random directions, as MoCo's does. Under torch.distributed every rank stores all
    ranks' rows in rank order, so the queue is identical everywhere.

    Staged rows wait outside the queue until `flush`, so that a loss can use the queue itself,
    without a copy, up to the end of its backward pass. `state_dict` flushes first: a checkpoint is
    taken between steps and holds the waiting rows too.
    """

    rows: Tensor
    pointer: Tensor

    def __init__(self, size: int, dim: int) -> None:
        super().__init__()
        if size < 1:
            raise ValueError(f"a queue holds at least one row, got size {size}.")
        self.register_buffer("rows", F.normalize(torch.randn(size, dim), dim=1))
        self.register_buffer("pointer", torch.zeros((), dtype=torch.int64))
        self.waiting: Tensor | None = None
        self.register_state_dict_pre_hook(lambda queue, *_: queue.flush())
        # What waits belongs to the state that is replaced, and is replaced with it.
        self.register_load_state_dict_pre_hook(lambda queue, *_: queue.flush())

    def push(self, rows: Tensor) -> None:
        """Replace the oldest rows by (N, dim) new ones of this rank, at once."""
        self.stage(rows)
        self.flush()

    @torch.no_grad()
    def stage(self, rows: Tensor) -> None:
        """Keep (N, dim) rows of this rank until `flush` puts them in place of the oldest."""
        self.flush()
        rows = F.normalize(rows.detach().to(self.rows.dtype), dim=1)
        self.waiting = distributed.gather(rows, distributed.batch_sizes(len(rows)))

    @torch.no_grad()
    def flush(self) -> None:
        """Replace the oldest rows by the waiting ones, wrapping around at the end."""
        if self.waiting is None:
            return
        rows, self.waiting = self.waiting, None
        size = len(self.rows)
        place = (self.pointer + torch.arange(len(rows), device=rows.device)) % size
        # More new rows than places: only the newest remain, each where its turn falls.
        self.rows[place[-size:]] = rows[-size:]
        self.pointer.copy_((self.pointer + len(rows)) % size)

    @torch.no_grad()
    def nearest(self, queries: Tensor) -> Tensor:
        """(N, dim) the row most similar to each query, searched without an N×size matrix."""
        queries = F.normalize(queries.detach().to(self.rows.dtype), dim=1)
        _, best = nearest_rows(queries, self.rows, 1)
        return self.rows[best[:, 0]]
