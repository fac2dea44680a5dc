"""A batch with equal texts on one rank of two; apart from the tests, to start quickly."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor, nn

from macl import InfoNCE
from macl.integrations.sentence_transformers import ContrastiveLoss


class Mean(nn.Module):
    """The mean of embeddings of tokens."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(50, 6, dtype=torch.float64)

    def forward(self, column: dict[str, Tensor]) -> dict[str, Tensor]:
        return {"sentence_embedding": self.table(column["input_ids"]).mean(1)}


def step(rows: slice, gather: bool | str) -> tuple[float, Tensor, float]:
    """Loss, gradient and number of duplicates of these rows of a batch of eight."""
    generator = torch.Generator().manual_seed(1)
    anchors, positives, negatives = torch.randint(50, (3, 8, 4), generator=generator)
    anchors[6] = anchors[1]  # the first four rows are rank 0's
    positives[7] = anchors[2]
    negatives[0] = positives[5]
    model = Mean()
    loss = ContrastiveLoss(model, InfoNCE(0.1, symmetric=False, gather=gather))
    value = loss([{"input_ids": column[rows]} for column in (anchors, positives, negatives)])
    value.backward()
    assert loss.output is not None
    assert model.table.weight.grad is not None
    return value.item(), model.table.weight.grad, loss.output.added["duplicates"].item()


if __name__ == "__main__":
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    found = step(slice(4 * rank, 4 * rank + 4), {"true": True, "ring": "ring"}[sys.argv[2]])
    torch.save(found, Path(sys.argv[1]) / f"{rank}.pt")
    dist.destroy_process_group()
