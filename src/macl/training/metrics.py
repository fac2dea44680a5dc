"""Logged steps: rows of metrics.csv, the loggers and the progress bar, from one transfer each."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar
from torch.optim import Optimizer

from macl.core.files import write_csv
from macl.losses.output import is_bin
from macl.training.journal import Journal, StepCallback

FIRST, LAST = ("step", "epoch", "loss"), ("lr", "monitor")
"""Columns before and after those that the method names."""


class MetricsFile(StepCallback):
    """A row in metrics.csv, and in every logger, whenever a step is logged.

    Columns are step, epoch, loss, the method's metrics in the order in which they first appear, lr
    and monitor. A step has one row. A resumed run drops the rows of the steps that it repeats.
    """

    def __init__(self, path: Path, journal: Journal) -> None:
        self.path, self.journal = path, journal
        self.columns = [*FIRST, *LAST]
        self.last: dict[str, float] = {}
        """The last row."""
        self._last_at = 0
        self._rate: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the rows up to the checkpoint, or start the file."""
        if not trainer.is_global_zero:
            return
        rows: list[dict[str, str]] = []
        if trainer.global_step and self.path.is_file():
            columns, rows = _stored(self.path)
            self._add_columns(columns)
        self._rewrite(r for r in rows if int(r["step"] or 0) <= trainer.global_step)
        self.last = {}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the learning rate that is applied: the schedule moves on before the row is made."""
        self._rate = optimizer.param_groups[0]["lr"]

    def after_step(
        self, trainer: pl.Trainer, module: pl.LightningModule, batch_idx: int, last: bool
    ) -> None:
        """One row every few steps and one at the end of each epoch."""
        if self.journal.is_logged(batch_idx):
            self.write(trainer, self.journal.values)

    def write(self, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """Add values to the row of the current step, or begin one, in the file and the loggers."""
        if not trainer.is_global_zero:
            return
        rate = trainer.optimizers[0].param_groups[0]["lr"] if self._rate is None else self._rate
        row: dict[str, float] = {
            "step": trainer.global_step,
            "epoch": trainer.current_epoch,
            "lr": rate,
            **values,
        }
        is_new = self.last.get("step") != row["step"]
        logged = {k: v for k, v in row.items() if k in values or (is_new and k != "step")}
        for logger in trainer.loggers:
            logger.log_metrics(logged, step=trainer.global_step)
        if is_new:
            self._last_at = self.path.stat().st_size
        else:
            row = self.last | row
        if not set(row) <= set(self.columns):
            self._add_columns(row)
            rows = _stored(self.path)[1]
            self._last_at = self._rewrite(r for r in rows if r["step"] != str(row["step"]))
        with self.path.open("r+", newline="") as file:
            file.truncate(self._last_at)
            file.seek(self._last_at)
            csv.DictWriter(file, self.columns).writerow({k: _text(v) for k, v in row.items()})
        self.last = row

    def _add_columns(self, names: Iterable[str]) -> None:
        new = [name for name in names if name not in self.columns]
        self.columns[-len(LAST) : -len(LAST)] = new

    def _rewrite(self, rows: Iterable[Mapping[str, str]]) -> int:
        """Write the header and these rows; returns the size of the file."""
        write_csv(self.path, self.columns, ([r.get(k, "") for k in self.columns] for r in rows))
        return self.path.stat().st_size


class ProgressBar(RichProgressBar):
    """Lightning's, with the last row of the metrics."""

    def __init__(self, metrics: MetricsFile) -> None:
        super().__init__(leave=False)
        self.metrics = metrics

    def get_metrics(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> dict[str, Any]:
        """The row without step and epoch, which the bar shows itself, and the bins of τ."""
        hidden = ("step", "epoch", "lr")
        shown = {k: v for k, v in self.metrics.last.items() if k not in hidden and not is_bin(k)}
        return {**super().get_metrics(trainer, pl_module), **shown}


def _stored(path: Path) -> tuple[list[str], list[dict[str, str]]]:
    """Columns and rows of a CSV file."""
    with path.open(newline="") as file:
        reader = csv.DictReader(file)
        rows = list(reader)
        return list(reader.fieldnames or ()), rows


def _text(value: float) -> str:
    return f"{value:.8g}" if isinstance(value, float) else str(value)
