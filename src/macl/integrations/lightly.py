"""Losses with the constructor and the memory bank of lightly's `NTXentLoss`.

from macl.integrations.lightly import NTXentLoss  # was: from lightly.loss import NTXentLoss
criterion = NTXentLoss(temperature=0.1, memory_bank_size=(4096, 128))
loss = criterion(query, key)

The module does not import lightly.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import distributed, losses
from macl.losses.unit import unit_rows


class MemoryBankLoss(nn.Module):
    """A loss of the family that keeps its own bank of negatives, as lightly's losses do.

    Without a bank this is `criterion(out0, out1)`. With one, its rows are the negatives. Afterwards
    `out1` is written to it, if `out0` requires a gradient: evaluation leaves it unchanged. With the
    criterion's `gather`, the rows of all ranks are written, so that the banks are equal.

    Args:
        criterion: any loss of `macl`.
        memory_bank_size: (rows, dimension) of the bank; 0 for none.
    """

    def __init__(
        self, criterion: losses.ContrastiveLoss, memory_bank_size: int | Sequence[int] = 0
    ) -> None:
        super().__init__()
        self.criterion = criterion
        self.memory_bank = MemoryBank(memory_bank_size)

    def forward(self, out0: Tensor, out1: Tensor) -> Tensor:
        """The loss of (N, D) anchors and (N, D) positives of any scale; a scalar."""
        if not len(self.memory_bank.bank):
            return self.criterion(out0, out1)
        bank = self.memory_bank.bank.to(out0.device)
        # The bank holds unit rows and may change before the backward pass: no copy is made.
        loss = self.criterion(out0, out1, bank=bank, bank_is_unit=True)
        if out0.requires_grad:
            rows = unit_rows(out1.detach(), "out1")
            if self.criterion.gather:
                rows = distributed.gather(rows, distributed.batch_sizes(len(rows)))
            self.memory_bank.write(rows)
        return loss


class NTXentLoss(MemoryBankLoss):
    """NT-Xent with lightly's arguments, defaults and values.

    Args:
        temperature: τ.
        memory_bank_size: (rows, dimension) of the bank; 0 for none.
        gather_distributed: use the rows of all ranks.
    """

    def __init__(
        self,
        temperature: float = 0.5,
        memory_bank_size: int | Sequence[int] = 0,
        gather_distributed: bool = False,
    ) -> None:
        super().__init__(losses.NTXent(temperature, gather=gather_distributed), memory_bank_size)
        self.temperature, self.gather_distributed = temperature, gather_distributed


class MemoryBank(nn.Module):
    """(K, D) unit rows and the place of the next write; random directions at first.

    Rows that go past the end are dropped and the next write starts at row 0, as in lightly. The
    buffers have lightly's names and, as there, are not part of the state dict.
    """

    bank: Tensor
    bank_ptr: Tensor

    def __init__(self, size: int | Sequence[int]) -> None:
        super().__init__()
        shape = (size, 0) if isinstance(size, int) else tuple(size)
        if len(shape) != 2 or min(shape) < 0 or (shape[0] > 0 and shape[1] == 0):
            raise ValueError(
                f"memory_bank_size is (rows, dimension), such as (4096, 128), or 0 for no bank; "
                f"got {size}."
            )
        self.size = shape
        self.register_buffer("bank", F.normalize(torch.randn(shape), dim=1), persistent=False)
        self.register_buffer("bank_ptr", torch.zeros(1, dtype=torch.int64), persistent=False)

    @torch.no_grad()
    def write(self, rows: Tensor) -> None:
        """Replace the oldest rows by (N, D) unit rows, up to the end of the bank."""
        start = int(self.bank_ptr)
        kept = rows[: len(self.bank) - start]
        self.bank[start : start + len(kept)] = kept.to(self.bank)
        self.bank_ptr.fill_((start + len(kept)) % len(self.bank))
