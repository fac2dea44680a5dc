"""What goes wrong in a training: numbers that are not finite, disks, readers, other ranks."""

from __future__ import annotations

import errno
import json
import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import lightning.pytorch as pl
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from macl import distributed
from macl.core import worker_errors
from macl.core.errors import UserError
from macl.core.files import OUT_OF_SPACE_ERRNOS, write_text
from macl.runs import Run
from macl.training.compute import local
from macl.training.journal import Journal

log = logging.getLogger(__name__)

MOST_SKIPPED = 10
"""Steps in a row that may be skipped; after that the cause is not the data."""

LOST_PEER = ("gloo", "NCCL", "Connection closed by peer", "Connection reset by peer")
"""Parts of the messages of torch.distributed's backends when another process is gone."""


@contextmanager
def translate_training_errors(folder: Path) -> Iterator[None]:
    """Turn failures of disk, readers and other processes into a `UserError` with what to do."""
    try:
        with worker_errors.translate_worker_errors():
            yield
    except worker_errors.WorkerFailed as error:
        raise UserError(f"{error} {_how_to_continue(folder)}") from error
    except UserError:
        raise
    except Exception as error:
        text = str(error).strip()
        # Libraries in other languages (safetensors, tokenizers) quote the system's message.
        is_full = os.strerror(errno.ENOSPC) in text
        if isinstance(error, OSError):
            is_full = error.errno in OUT_OF_SPACE_ERRNOS
        if is_full:
            where = getattr(error, "filename", None) or folder
            message = f"could not write to {where}: {text}. {_how_to_continue(folder)}"
            raise UserError(message) from error
        if isinstance(error, RuntimeError) and any(sign in text for sign in LOST_PEER):
            raise UserError(
                f"another process of this run is gone ({text.splitlines()[0]}); its own message "
                f"may say why. {_how_to_continue(folder)}"
            ) from error
        raise


def _how_to_continue(folder: Path) -> str:
    if not Run(folder).recipe_file.is_file():
        return "Nothing was trained yet; repeat the command afterwards."
    call = f"macl.train({str(folder)!r}, resume=True)"
    return f"The last good checkpoint is kept; continue with `{call}`."


def checks_every_step(device: torch.device) -> bool:
    """Whether reading a value back costs nothing."""
    return device.type == "cpu"


class ObservedStep(NamedTuple):
    """An optimizer step: its batches and whether its gradients are not finite."""

    step: int
    epoch: int
    batches: list[tuple[Tensor, Tensor, Tensor]]
    """See `Journal.observed`."""
    bad_gradients: Tensor
    """Scalar bool."""

    def is_bad(self) -> Tensor:
        """Scalar bool, on the device."""
        _, bad, losses = zip(*self.batches, strict=True)
        return self.bad_gradients | torch.cat(bad).any() | ~torch.stack(losses).isfinite().all()

    def reason(self) -> str:
        """What is not finite, as a sentence; reads values from the device."""
        for _, bad, loss in self.batches:
            if count := int(bad.sum()):
                return f"the embeddings of {count} of {len(bad)} samples are not finite."
            if not bool(loss.isfinite()):
                return f"the loss became {loss.item()}."
        if bool(self.bad_gradients):
            return "the gradients are not finite."
        return "another process has numbers that are not finite."


class NonfiniteSteps(pl.Callback):
    """Stops training at, or skips, a step whose embeddings, loss or gradients are not finite.

    On a CPU, and with action="skip" on every device, each step is checked before the weights move.
    Elsewhere that would wait for the device in every step: the flags are read when a row is logged,
    in one transfer with it, before the monitor runs and before a checkpoint is written, so nothing
    is saved of a bad step or of what follows it.

    The batch is written to faults/ in the run folder, by every process its own share, with what
    `name` calls the sample at a position. All processes decide alike. A skipped step leaves weights
    and buffers (statistics, queue) as before it; the schedule and MoCo's key encoder go on.
    """

    def __init__(
        self, journal: Journal, folder: Path, name: Callable[[int], str], action: str
    ) -> None:
        self.journal, self.action = journal, action
        self.folder, self.name = folder / "faults", name
        self.skipped = 0
        self._unchecked: list[ObservedStep] = []
        self._before: dict[str, Tensor] | None = None

    def on_train_batch_start(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, *_: Any
    ) -> None:
        """Keep the buffers as they are before the step, if it may have to be skipped."""
        if self.action == "skip" and self._before is None:
            buffers = {name for name, _ in pl_module.named_buffers()}
            state = pl_module.state_dict()
            self._before = {name: state[name].clone() for name in buffers & state.keys()}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the step; where every step is checked, check it before the weights move."""
        bad, batches = _bad_gradients(trainer, pl_module), self.journal.observed
        self.journal.observed = []
        step = ObservedStep(trainer.global_step, trainer.current_epoch, batches, bad)
        self._unchecked.append(step)
        if self.action == "skip" or checks_every_step(pl_module.device):
            self.skipped = self.skipped + 1 if self._flag().item() else 0
            if self.skipped:
                if self.action == "stop" or self.skipped > MOST_SKIPPED:
                    self._stop(trainer)
                file = self._record(trainer, step)
                log.warning("step %d skipped: %s Its batch: %s", step.step, step.reason(), file)
                optimizer.zero_grad(set_to_none=True)
                # Loading also drops what a queue has not stored yet.
                pl_module.load_state_dict(self._before or {}, strict=False)
            self._unchecked.clear()
        self._before = None

    def on_save_checkpoint(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, checkpoint: dict[str, Any]
    ) -> None:
        """Check before anything is written."""
        self.check(trainer)

    def check(self, trainer: pl.Trainer, row: Sequence[Tensor] = ()) -> list[float]:
        """`UserError` if a step since the last check was bad; the scalars of `row` on the host.

        All processes call it. It takes one transfer from the device.
        """
        flag = [self._flag()] if self._unchecked else []
        values: list[float] = torch.stack([*row, *flag]).tolist() if row or flag else []
        if flag and values.pop():
            self._stop(trainer)
        self._unchecked.clear()
        return values

    def _flag(self) -> Tensor:
        """Scalar on the device: above 0 if any process had a bad step since the last check."""
        flags = torch.stack([step.is_bad() for step in self._unchecked])
        return distributed.global_sum(flags.any().float())

    def _stop(self, trainer: pl.Trainer) -> None:
        """Record the first bad step of this process and raise."""
        bad = [step for step in self._unchecked if bool(step.is_bad())]
        step = (bad or self._unchecked)[0]
        file = self._record(trainer, step)
        row = f", after {MOST_SKIPPED} steps in a row were skipped" * (self.skipped > 1)
        raise UserError(
            f"training stopped at step {step.step} (epoch {step.epoch}){row}: {step.reason()} The "
            f"batch is listed in {file}. If its data is right, lower the learning rate, clip "
            "gradients with gradient_clip=1, or use precision=32; single bad batches are skipped "
            "with on_nonfinite=skip. The last good checkpoint is kept."
        )

    def _record(self, trainer: pl.Trainer, step: ObservedStep) -> Path:
        """Write this process' samples of the step; returns the file."""
        file = self.folder / f"step-{step.step}-rank-{trainer.global_rank}.json"
        samples = [
            {"index": index, "name": self.name(index), "nonfinite": bad}
            for indices, flags, _ in step.batches
            for index, bad in zip(indices.tolist(), flags.tolist(), strict=True)
        ]
        about = {"step": step.step, "epoch": step.epoch, "reason": step.reason()}
        write_text(file, json.dumps({**about, "samples": samples}, indent=1, ensure_ascii=False))
        return file


def _bad_gradients(trainer: pl.Trainer, module: nn.Module) -> Tensor:
    """Scalar bool: whether a gradient that this process holds is not finite."""
    held = [local(p.grad) for p in module.parameters() if p.grad is not None]
    held = [gradient for gradient in held if gradient.numel()]
    # In half precision overflowing gradients are common, and the scaler handles them.
    if not held or getattr(trainer.precision_plugin, "scaler", None) is not None:
        return torch.zeros((), dtype=torch.bool, device=next(module.parameters()).device)
    return ~torch.stack(torch._foreach_norm(held, torch.inf)).isfinite().all()
