"""Whether a folder may be trained into: empty, or a run that is continued or made longer."""

from __future__ import annotations

import shlex
from pathlib import Path

from macl import recipes
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import remove_partial, require_new, write_text
from macl.core.inside import refuse_foreign_parts
from macl.core.launch import LAUNCH, launch_name, launched_rank
from macl.modalities.base import ENCODER_FILE
from macl.recipes import Recipe, flatten
from macl.recipes.upgrade import upgraded
from macl.runs import Run

CHANGEABLE = (
    "name", "description", "requirements", "evaluation", "monitor_every", "monitor_steps",
    "workers", "loggers", "save_every", "save_minutes", "strategy",
)  # fmt: skip
"""Keys that a resumed run may change: they do not change what is trained."""


def claim(recipe: Recipe, folder: Path, resume: bool) -> Run:
    """The run folder; `UserError` where it holds anything else than the run that is resumed."""
    run = Run(folder)
    if launched_rank() != 0:
        return run
    refuse_foreign_parts(folder)
    for place in (folder, run.last_checkpoint.parent, folder / "best"):
        remove_partial(place)
    if resume and run.recipe_file.is_file():
        _check_same_training(run, recipe)
        return run
    require_new(folder)
    return run


def mark_launch(run: Run) -> None:
    """Note in the run which launch began it."""
    if (name := launch_name()) is not None:
        write_text(run.last_checkpoint.with_name(LAUNCH), name)


def trained_recipe(run: Run) -> Recipe:
    """The recipe of a run's checkpoint, which says what was done: recipe.yaml can be edited."""
    if run.last_checkpoint.is_file():
        stored = SafeCheckpointIO().load_file(run.last_checkpoint).get("recipe")
        if stored is not None:
            return recipes.resolve(recipes.without_grants(upgraded(stored)))
    return run.recipe


def is_complete(run: Run, recipe: Recipe) -> bool:
    """Whether the run is finished and as long as `recipe` says."""
    return run.is_finished and not _longer_by(recipe, trained_recipe(run))


def _longer_by(recipe: Recipe, before: Recipe) -> set[str]:
    """The key that says how long `before` is, where `recipe` has more of it."""
    key = "epochs" if before.steps is None else "steps"
    return {key} if (getattr(recipe, key) or 0) > getattr(before, key) else set()


def remove_outcome(run: Run) -> None:
    """Before a finished run is made longer: remove its encoder, set aside what was measured on it.

    Without the file, whose weights are in the checkpoint, the run counts as unfinished.
    """
    if not run.is_finished:
        return
    length = trained_recipe(run).length.replace(" ", "-")
    (run.folder / ENCODER_FILE).unlink()
    for name in ("results", "diagnosis"):
        file = run.folder / f"{name}.json"
        if file.is_file():
            file.replace(run.folder / f"{name}-{length}.json")


def _check_same_training(run: Run, recipe: Recipe) -> None:
    before = trained_recipe(run)
    longer = _longer_by(recipe, before)
    exclude = {*CHANGEABLE, *longer}
    there, now = (
        flatten(recipes.without_grants(each.model_dump(mode="json", exclude=exclude)))
        for each in (before, recipe)
    )
    keys = [key for key in sorted(there | now) if there.get(key) != now.get(key)]
    if keys:
        difference = ", ".join(f"{k}: {there.get(k)} there, {now.get(k)} now" for k in keys[:5])
        more = f" and {len(keys) - 5} more" * (len(keys) > 5)
        raise UserError(
            f"{run.folder} was trained with another recipe ({difference}{more}). Only epochs (or "
            "steps) may grow when a run is resumed: undo the other changes, or train into another "
            "folder (`out=`)."
        )
    if longer and run.is_finished and not run.last_checkpoint.is_file():
        raise UserError(
            f"{run.folder} cannot be continued to {recipe.length}: its "
            "checkpoints/last.ckpt is missing. Train into another folder with `out=`, for example "
            f"{shlex.quote(str(run.folder) + '-longer')}."
        )
