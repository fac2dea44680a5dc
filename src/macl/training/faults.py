"""When a step goes wrong, or what it stands on: noticed, told in words, and nothing lost."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from macl.core import worker_errors
from macl.core.errors import UserError
from macl.core.files import OUT_OF_SPACE_ERRNOS, atomic_write
from macl.runs import Run
from macl.training.loader import Batch

log = logging.getLogger(__name__)

MOST_SKIPPED = 10
"""Steps in a row that may be left out before it is clear that it was not the data."""

LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""What the backends of torch.distributed say when another process is gone."""


class Fault(NamedTuple):
    """Something in a step that is not finite."""

    reason: str
    samples: list[int]
    """Positions in the data set of the samples that show it; empty where it cannot be told."""


def nonfinite_rows(embeddings: Sequence[Tensor]) -> Tensor:
    """(N,) bool: which samples have a NaN or an infinity in any of their (N, D) embeddings."""
    return ~torch.stack([z.detach().isfinite().all(1) for z in embeddings]).all(0)


class NonfiniteSteps(pl.Callback):
    """Stops before, or leaves out, a step whose embeddings, loss or gradients are not finite.

    The batch is written to faults/ in the run folder, by every process its own share. All processes
    decide alike. A step that is left out moves nothing: trained weights and buffers (statistics,
    queue) are as before it. The schedule goes on, and so does MoCo's key encoder after the other.

    Args:
        folder: the run.
        names: what the samples are called.
        action: "stop" or "skip".
    """

    def __init__(self, folder: Path, names: Sequence[str], action: Literal["stop", "skip"]) -> None:
        self.folder, self.names, self.action = folder / "faults", names, action
        self.skipped = 0
        self._indices: list[Tensor] = []
        self._before: dict[str, Tensor] = {}

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, batch: Batch, batch_idx: int
    ) -> None:
        """Remember what the step is made of."""
        if self.action == "skip" and not self._indices:
            self._before = {name: b.clone() for name, b in pl_module.named_buffers()}
        self._indices.append(batch.indices)

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Look at the step before the weights move."""
        faults: list[Fault] = pl_module.faults  # type: ignore[assignment]
        # In half precision overflowing gradients are everyday, and the scaler's affair.
        if getattr(trainer.precision_plugin, "scaler", None) is None and not _finite(pl_module):
            faults.append(Fault("the gradients are not finite.", []))
        if trainer.strategy.reduce_boolean_decision(bool(faults), all=False):
            self._answer(trainer, pl_module, optimizer, faults)
        else:
            self.skipped = 0
        self._indices.clear()
        faults.clear()

    def _answer(
        self,
        trainer: pl.Trainer,
        module: pl.LightningModule,
        optimizer: Optimizer,
        faults: list[Fault],
    ) -> None:
        reason = faults[0].reason if faults else "another process met numbers that are not finite."
        file = self._record(trainer, reason, faults)
        self.skipped += 1
        if self.action == "stop" or self.skipped > MOST_SKIPPED:
            row = f", after {MOST_SKIPPED} steps in a row were left out" * (self.skipped > 1)
            raise UserError(
                f"training stopped at step {trainer.global_step} (epoch {trainer.current_epoch})"
                f"{row}: {reason} The batch is listed in {file}. If its data is right, lower the "
                "learning rate, clip gradients with gradient_clip=1, or use precision=32; single "
                "bad batches are left out with on_nonfinite=skip. The last good checkpoint is kept."
            )
        log.warning("step %d left out: %s Its batch: %s", trainer.global_step, reason, file)
        optimizer.zero_grad(set_to_none=True)
        for name, buffer in module.named_buffers():
            buffer.copy_(self._before[name])

    def _record(self, trainer: pl.Trainer, reason: str, faults: list[Fault]) -> Path:
        """Write what this process had in the step; returns the file."""
        file = self.folder / f"step-{trainer.global_step}-rank-{trainer.global_rank}.json"
        shown = {index for fault in faults for index in fault.samples}
        samples = [
            {"index": i, "name": self.names[i], "nonfinite": i in shown}
            for i in torch.cat(self._indices).tolist()
        ]
        document: dict[str, Any] = {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "reason": reason,
            "samples": samples,
        }
        text = json.dumps(document, indent=1, ensure_ascii=False)
        atomic_write(file, lambda f: f.write(text.encode()))
        return file


def _finite(module: nn.Module) -> bool:
    """Whether all gradients are finite: a sum is not when a term is not."""
    sums = [p.grad.sum() for p in module.parameters() if p.grad is not None]
    return not sums or bool(torch.stack(sums).isfinite().all())


@contextmanager
def told_in_words(folder: Path) -> Iterator[None]:
    """Failures of what training stands on, as errors that say what happened and what to do."""
    try:
        with worker_errors.translate_worker_errors():
            yield
    except worker_errors.WorkerFailed as error:
        raise UserError(f"{error} {_go_on(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        text = str(error).strip()
        if _is_no_room(error):
            where = getattr(error, "filename", None) or folder
            raise UserError(f"could not write to {where}: {text}. {_go_on(folder)}") from error
        if isinstance(error, RuntimeError) and any(sign in text for sign in LOST_PEER):
            raise UserError(
                f"another process of this run is gone ({text.splitlines()[0]}); it may have told "
                f"why. {_go_on(folder)}"
            ) from error
        raise


def _is_no_room(error: Exception) -> bool:
    if isinstance(error, OSError):
        return error.errno in OUT_OF_SPACE_ERRNOS
    # Libraries in other languages (safetensors, tokenizers) put the system's words in their own.
    return os.strerror(errno.ENOSPC) in str(error)


def _go_on(folder: Path) -> str:
    if not Run(folder).recipe_file.is_file():
        return "Nothing was trained yet; then give the command again."
    return f"The last good checkpoint is kept; go on with `macl train {folder} --resume`."
