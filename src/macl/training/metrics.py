"""Logged steps: rows of metrics.csv, the progress bar, TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import csv
import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
from lightning.pytorch.callbacks import RichProgressBar
from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only
from torch import Tensor
from torch.optim import Optimizer

from macl.core.errors import UserError
from macl.core.files import write_csv
from macl.losses.output import is_bin
from macl.recipes import Recipe
from macl.training.journal import Journal, StepCallback

FIRST, LAST = ("step", "epoch", "loss"), ("lr", "monitor")
"""Columns before and after those that the method names."""


class MetricsFile(StepCallback):
    """A row in metrics.csv, and in every logger, whenever a step is logged.

    Columns are step, epoch, loss, the method's metrics as they first appear, lr and monitor. A step
    has one row; a resumed run drops those that it repeats. `read` brings a row to the host.
    """

    def __init__(
        self, path: Path, journal: Journal, read: Callable[[pl.Trainer, list[Tensor]], list[float]]
    ) -> None:
        self.path, self.journal, self.read = path, journal, read
        self.columns = [*FIRST, *LAST]
        self.last: dict[str, float] = {}
        """The last row."""
        self._rate: float | None = None

    def on_train_start(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        """Keep the rows up to the checkpoint, or start the file."""
        if not trainer.is_global_zero:
            return
        rows = self._stored() if trainer.global_step and self.path.is_file() else []
        kept = [row for row in rows if int(row["step"] or 0) <= trainer.global_step]
        self._rewrite(kept, kept[0] if kept else ())
        self.last = {}

    def on_before_optimizer_step(
        self, trainer: pl.Trainer, pl_module: pl.LightningModule, optimizer: Optimizer
    ) -> None:
        """Note the learning rate that is applied: the schedule moves on before the row is made."""
        self._rate = optimizer.param_groups[0]["lr"]

    def after_step(self, trainer: pl.Trainer, module: pl.LightningModule) -> None:
        """One row every few steps and one at the end of each epoch."""
        if self.journal.is_logged:
            row = self.journal.row
            values = self.read(trainer, [*row.values()])
            self.write(trainer, dict(zip(row, values, strict=True)))

    def write(self, trainer: pl.Trainer, values: Mapping[str, float]) -> None:
        """Add values to the row of the current step, or begin one, in the file and the loggers."""
        if not trainer.is_global_zero:
            return
        rate = trainer.optimizers[0].param_groups[0]["lr"] if self._rate is None else self._rate
        place = {"step": trainer.global_step, "epoch": trainer.current_epoch}
        row: dict[str, float] = {**place, "lr": rate, **values}
        is_new = self.last.get("step") != row["step"]
        logged = {k: v for k, v in row.items() if k in values or (is_new and k != "step")}
        for logger in trainer.loggers:
            logger.log_metrics(logged, step=trainer.global_step)
        row = row if is_new else self.last | row
        written = {k: f"{v:.8g}" if isinstance(v, float) else str(v) for k, v in row.items()}
        if is_new and set(row) <= set(self.columns):
            with self.path.open("a", newline="") as file:
                csv.DictWriter(file, self.columns).writerow(written)
        else:
            before = (r for r in self._stored() if r["step"] != written["step"])
            self._rewrite([*before, written], row)
        self.last = row

    def _stored(self) -> list[dict[str, str]]:
        with self.path.open(newline="") as file:
            return list(csv.DictReader(file))

    def _rewrite(self, rows: Iterable[Mapping[str, str]], names: Iterable[str]) -> None:
        """Write the header, with new names before the last columns, and these rows."""
        new = [name for name in names if name not in self.columns]
        self.columns[-len(LAST) : -len(LAST)] = new
        write_csv(self.path, self.columns, ([r.get(k, "") for k in self.columns] for r in rows))


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


class TensorBoard(TensorBoardLogger):
    """Lightning's, without the hparams.yaml that it leaves empty: a run has its recipe.yaml."""

    @rank_zero_only
    def save(self) -> None:
        """Write what is still in memory."""
        self.experiment.flush()


def _build(name: str, recipe: Recipe, folder: Path) -> Logger:
    if name == "tensorboard":
        return TensorBoard(folder, name="", version="")
    if name == "wandb":  # offline by default: `wandb sync` uploads the folder later
        offline = os.environ.get("WANDB_MODE", "offline") == "offline"
        return WandbLogger(project="macl", name=folder.name, save_dir=folder, offline=offline)
    # MLflow writes plain files only if allowed; they need no database and stay with the run.
    os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")
    place = os.environ.get("MLFLOW_TRACKING_URI", (folder / "mlruns").absolute().as_uri())
    return MLFlowLogger(recipe.name, run_name=folder.name, tracking_uri=place)


def build_loggers(recipe: Recipe, folder: Path) -> list[Logger]:
    """The loggers that the recipe names; `UserError` where the package of one is missing."""
    loggers = []
    for name in recipe.loggers:
        try:
            logger = _build(name, recipe, folder)
        except ModuleNotFoundError as error:
            raise UserError(
                f"the logger {name} needs a package that is not installed ({error.name or error}): "
                f"pip install 'macl[{name}]', or leave it out of loggers."
            ) from error
        if name != "tensorboard":  # which would show them apart from the curves
            logger.log_hyperparams(recipe.model_dump(mode="json"))
        loggers.append(logger)
    return loggers
