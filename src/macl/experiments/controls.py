"""The level control of an adaptive temperature: the same recipe with τ fixed at its level."""

from __future__ import annotations

from collections.abc import Sequence

from macl import recipes
from macl.core.errors import UserError
from macl.experiments.compare import Cell, Setting, is_finished, run_folder
from macl.recipes import Recipe
from macl.runs import Run

SUFFIX = ", level control"
"""Ends the label of a control: "macl, level control" belongs to "macl"."""


def control_setting(setting: Setting) -> Setting:
    """The setting of the control: the label of the loss, or else of the first key, is marked."""
    keys = [key for key, _ in setting]
    marked = next((key for key in keys if key.partition(".")[0] == "loss"), keys[0])
    return tuple((key, f"{label}{SUFFIX}" if key == marked else label) for key, label in setting)


def adaptive_setting(setting: Setting) -> Setting | None:
    """The setting that a control belongs to; None for a setting that is not a control."""
    if not any(label.endswith(SUFFIX) for _, label in setting):
        return None
    return tuple((key, label.removesuffix(SUFFIX)) for key, label in setting)


def mean_temperature(run: Run) -> float:
    """The level of τ in a training: the harmonic mean over steps of metrics.csv's "temperature".

    Logits are s/τ, so what a training saw on average is 1/τ. A row stands for the steps since the
    row before it.
    """
    rows = [row for row in run.metrics() if "temperature" in row]
    if not rows:
        raise UserError(f"{run.metrics_file} logs no temperature, so it has no level.")
    total = before = 0.0
    for row in rows:
        total += (row["step"] - before) / row["temperature"]
        before = row["step"]
    return before / total


def is_adaptive(recipe: Recipe) -> bool:
    """Whether the temperature of the recipe's loss changes in training."""
    return getattr(recipe.loss, "fixed_at", lambda level: None)(1.0) is not None


def require_adaptive(cells: Sequence[Cell]) -> None:
    """`UserError` where no control could be made or named."""
    if not all(cell.setting for cell in cells):
        raise UserError("`control=` compares settings: vary a key too, such as loss=nt-xent,macl.")
    if not any(is_adaptive(recipes.resolve(cell.recipe)) for cell in cells):
        raise UserError("`control=level`: no setting has a temperature that adapts.")


def with_level_controls(cells: Sequence[Cell]) -> list[Cell]:
    """All cells, and after each finished one with an adaptive temperature its level control.

    A control has the seed of its adaptive run and the mean τ of that very run, so it stays what it
    is when seeds are added.
    """
    all_cells = []
    for cell in cells:
        all_cells.append(cell)
        recipe = recipes.resolve(cell.recipe)
        if is_adaptive(recipe) and is_finished(cell):
            level = float(f"{mean_temperature(Run(cell.folder)):.6g}")
            values = {f"loss.{key}": value for key, value in recipe.loss.fixed_at(level).items()}
            fixed = recipes.override(recipe, values).model_dump(mode="json")
            setting = control_setting(cell.setting)
            folder = run_folder(cell.folder.parents[1], setting, cell.seed)
            all_cells.append(Cell(setting, cell.seed, fixed, folder))
    return all_cells
