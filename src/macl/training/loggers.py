"""Loggers by name, beside metrics.csv: TensorBoard, Weights & Biases, MLflow."""

from __future__ import annotations

import os
from pathlib import Path

from lightning.pytorch.loggers import Logger, MLFlowLogger, TensorBoardLogger, WandbLogger
from lightning.pytorch.utilities import rank_zero_only

from macl.core.errors import UserError
from macl.recipes import Recipe


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
    """The loggers that the recipe names, writing into `folder`.

    Raises:
        UserError: the package of one is not installed.
    """
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
