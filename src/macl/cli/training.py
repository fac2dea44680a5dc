"""`macl recipes` and `macl train`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macl.cli.arguments import Overrides, data_override
from macl.cli.console import escaped, table, tell
from macl.core.errors import UserError
from macl.core.launch import end_with_input

if TYPE_CHECKING:
    from macl.recipes import Recipe


def recipes(
    name: Annotated[str | None, typer.Argument(help="Show this one in full.")] = None,
) -> None:
    """List the recipes: what each is, what it needs."""
    from macl import recipes as module

    if name is not None:
        values = module.read(name)
        path = module.available().get(name, Path(name))
        print(path.read_text(encoding="utf-8") if path.is_file() else values)
        return
    rows = []
    for shipped in module.available():
        values = module.read(shipped)
        rows.append((shipped, values["modality"], values["description"], values.get("needs", "")))
    table("Recipes", ("name", "modality", "what", "needs"), rows)


def train(
    recipe: Annotated[str, typer.Argument(help="A recipe's name, a YAML file, or a run folder.")],
    overrides: Overrides = None,
    data: Annotated[Path | None, typer.Option(help="Your data: a file or a folder.")] = None,
    out: Annotated[Path | None, typer.Option(help="The run folder. Default: runs/RECIPE.")] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Go on where a run was stopped.")
    ] = False,
    devices: Annotated[
        int | None,
        typer.Option(
            min=1, help="Processes (GPUs, or CPU workers). Default: what torchrun started, or 1."
        ),
    ] = None,
    nodes: Annotated[int | None, typer.Option(min=1, help="Machines. Default: likewise.")] = None,
) -> None:
    """Train an encoder without labels."""
    end_with_input()
    if resume and out is None:
        if not (Path(recipe) / "recipe.yaml").is_file():
            raise UserError(f"--resume: {recipe} is no run folder; say with --out which one it is.")
        out = Path(recipe)
    resolved = _resolved(recipe, overrides, data, out if resume else None)
    folder = out or _free_folder(resolved.name)
    from macl.core.signals import Interrupted
    from macl.training.fit import Compute, train

    tell(f"training [bold]{escaped(resolved.name)}[/] into {escaped(str(folder))}")
    compute = Compute(devices=devices or 0, nodes=nodes or 0, progress=sys.stderr.isatty())
    try:
        run = train(resolved, folder, resume=resume, compute=compute)
    except Interrupted as stop:
        tell(f"stopped by {stop}; continue with: macl train {escaped(str(folder))} --resume")
        sys.exit(130)
    rows = run.metrics()
    if rows:
        last = {key: value for row in rows for key, value in row.items()}
        tell(
            f"done: loss {last['loss']:.3f}, alignment A {last['alignment']:.3f}, temperature "
            f"{last['temperature']:.3f}, gradient scale W {last['gradient_scale']:.3f}"
        )
    tell(f"next: macl evaluate {escaped(str(folder))}")


def _resolved(
    name: str, overrides: list[str] | None, data: Path | None, resumed: Path | None
) -> Recipe:
    """The recipe to train: shipped, from a file, or the one that a run folder holds."""
    from macl import recipes as module

    given = [*(overrides or ()), *data_override(data)]
    stored = Path(name) / "recipe.yaml"
    source = str(stored) if stored.is_file() else name
    if resumed is not None and not (resumed / "recipe.yaml").is_file():
        raise UserError(f"{resumed} holds no run to resume; leave --resume out to start one.")
    return module.load(source, module.parse(given, module.read(source)))


def _free_folder(name: str) -> Path:
    """runs/NAME, runs/NAME-2, …: the first that is not there. Later processes ask the first one."""
    chosen = os.environ.get("MACL_RUN_FOLDER")
    if chosen is None:
        if "TORCHELASTIC_RUN_ID" in os.environ or int(os.environ.get("SLURM_NTASKS", "1")) > 1:
            raise UserError(
                "under torchrun or srun, say with --out where the run goes: all processes share it."
            )
        base, number = Path("runs") / name, 1
        folder = base
        while folder.exists():
            number += 1
            folder = base.with_name(f"{name}-{number}")
        chosen = os.environ["MACL_RUN_FOLDER"] = str(folder)
    return Path(chosen)
