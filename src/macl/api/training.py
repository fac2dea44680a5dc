"""Recipes, and training: `macl.train`."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from macl.api.common import PathLike, data_overrides
from macl.core.errors import UserError
from macl.core.files import require_new
from macl.core.launch import began, launched_rank

if TYPE_CHECKING:
    from lightning.pytorch import Callback
    from pandas import DataFrame
    from torch import nn

    from macl.api.objects import Run
    from macl.modalities.protocols import Dataset
    from macl.recipes import Overrides, Recipe

RUN_FOLDER = "MACL_RUN_FOLDER"
"""Environment variable: the run folder that the processes of one training share."""


def list_recipes() -> DataFrame:
    """The recipes: name, modality, description, and what the user has to provide."""
    import pandas as pd

    return pd.DataFrame(recipe_overview())


def recipe_overview() -> list[dict[str, str]]:
    """The lines of `list_recipes`."""
    from macl import recipes as module

    values = [module.read(name) for name in module.available()]
    columns = ("name", "modality", "description", "requirements")
    return [{key: one.get(key, "") for key in columns} for one in values]


def resolve(
    recipe: PathLike | Recipe,
    *,
    data: PathLike | None = None,
    overrides: Overrides | None = None,
    **values: Any,
) -> Recipe:
    """The checked recipe that `train` with the same arguments would use."""
    from macl import recipes as module

    given = {**data_overrides(data), **(overrides or {}), **values}
    if isinstance(recipe, module.Recipe):
        return module.override(recipe, given)
    stored = Path(recipe) / "recipe.yaml"
    return module.load(str(stored if stored.is_file() else recipe), given)


def train(
    recipe: PathLike | Recipe,
    *,
    data: PathLike | Dataset | Sequence[Any] | None = None,
    out: PathLike | None = None,
    resume: bool = False,
    overrides: Overrides | None = None,
    callbacks: Sequence[Callback] = (),
    logger: Any = None,
    dataset: Dataset | None = None,
    encoder: str | Mapping[str, Any] | nn.Module | None = None,
    transform: Callable[..., Any] | None = None,
    devices: int = 0,
    nodes: int = 0,
    accelerator: str = "auto",
    progress: bool = False,
    **values: Any,
) -> Run:
    """Train an encoder without labels.

        run = macl.train("digits", loss="dcl", epochs=5, out="runs/mine")

    Args:
        recipe: a recipe's name, a YAML file, a run folder, or a `Recipe`.
        data: a file, a folder, a data set object with `labels`, `names` and `collate`, or for
            graphs a list of networkx graphs or PyG `Data`.
        out: the run folder; by default runs/NAME, or runs/NAME-2 and so on where that is taken.
        resume: continue the run in `out`, or the one that `recipe` is the folder of.
        overrides: dotted key → value: {"loss.temperature": 0.2}.
        callbacks: further callbacks for the Lightning trainer.
        logger: "tensorboard", "wandb" or "mlflow", a Lightning logger, or a list of these;
            metrics.csv is always written.
        dataset: another name for `data` when that is an object.
        encoder: a name, a section {"name": "resnet18", "stem": "cifar"}, a module with `out_dim`.
        transform: makes the views of an image: of torchvision v2, albumentations, or a function.
        devices: processes on each machine; 0: as many as a launcher started, else one.
        nodes: machines; 0: likewise.
        accelerator: Lightning's name of the hardware.
        progress: show a progress bar.
        **values: top-level keys of the recipe: `loss="dcl"`, `epochs=5`,
            `loss={"name": "dcl", "temperature": 0.2}`.

    Raises:
        UserError: the recipe, the data or the folder is not right.
        Interrupted: stopped by a signal; the checkpoint is written.
    """
    objects: Sequence[Any] | None = None
    if isinstance(data, list | tuple):
        data, objects = None, data
    elif data is not None and not isinstance(data, str | os.PathLike):
        data, dataset = None, cast("Dataset", data)
    module = None
    if encoder is not None and not isinstance(encoder, str | Mapping):
        module = encoder
    elif encoder is not None:
        values["encoder" if isinstance(encoder, Mapping) else "encoder.name"] = encoder
    given = list(logger) if isinstance(logger, list | tuple) else [logger] if logger else []
    named = [each for each in given if isinstance(each, str)]
    if named:
        values["loggers"] = named
    resolved = resolve(recipe, data=data, overrides=overrides, **values)
    folder = folder_of(recipe, resolved.name, out, resume)
    check_early(resolved, folder, resume)

    from macl import modalities
    from macl.api.objects import Run
    from macl.training.fit import Compute
    from macl.training.fit import train as fit

    if objects is not None:
        dataset = modalities.get(resolved.modality).from_objects(resolved.data, objects)
    # Data parallelism starts this program again for every further device.
    with _shared_with_other_processes(folder):
        fit(
            resolved,
            folder,
            resume=resume,
            compute=Compute(devices, nodes, accelerator, progress),
            callbacks=callbacks,
            loggers=[each for each in given if not isinstance(each, str)],
            dataset=dataset,
            encoder=module,
            transform=transform,
        )
    return Run(folder)


def check_early(recipe: Recipe, folder: Path, resume: bool) -> None:
    """`UserError` for what is wrong with the run folder or the data, before torch is imported."""
    if not resume and launched_rank() == 0 and not began(folder / "checkpoints"):
        require_new(folder)
    recipe.data.check_files()


def new_folder(name: str) -> Path:
    """runs/NAME, runs/NAME-2, …: the first that does not exist.

    Processes that data parallelism starts later get the choice of the first by the environment.
    """
    chosen = os.environ.get(RUN_FOLDER)
    if chosen is not None:
        return Path(chosen)
    if "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1:
        raise UserError(
            "under torchrun or srun, give the run folder with `out=`: all processes share it."
        )
    names = itertools.chain([name], (f"{name}-{number}" for number in itertools.count(2)))
    return next(folder for folder in map(Path("runs").joinpath, names) if not folder.exists())


@contextmanager
def _shared_with_other_processes(folder: Path) -> Iterator[None]:
    """Processes that are started within use the same run folder."""
    before = os.environ.get(RUN_FOLDER)
    os.environ[RUN_FOLDER] = str(folder)
    try:
        yield
    finally:
        if before is None:
            del os.environ[RUN_FOLDER]
        else:
            os.environ[RUN_FOLDER] = before


def folder_of(recipe: Any, name: str, out: PathLike | None, resume: bool) -> Path:
    """Where a run goes: `out`, the run that is resumed, or a new folder."""
    if not resume:
        return new_folder(name) if out is None else Path(out)
    given = recipe if out is None and isinstance(recipe, str | os.PathLike) else out
    if given is None or not (Path(given) / "recipe.yaml").is_file():
        raise UserError(
            f"{given} holds no run to resume: give its folder with `out=`, or leave `resume=True` "
            "out to start one."
        )
    return Path(given)
