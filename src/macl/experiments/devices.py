"""Training of a cell on several devices, in a process of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from macl.core.errors import UserError
from macl.core.launch import ENDS_WITH_INPUT
from macl.recipes import ALLOW_IMPORTS, Recipe
from macl.runs import Run


def train_on_devices(recipe: Recipe, folder: Path, devices: int) -> Run:
    """Train, or resume, `recipe` in `folder` with `macl train --devices`, and wait for its end.

    The recipe is passed as the file of the run folder. Data parallelism starts the command once
    more for every further device, and that has to be the command that trains, not the one that
    compares. When it is stopped it saves before it ends.

    Raises:
        UserError: the training failed; with its own message.
    """
    run = Run(folder)
    if not run.recipe_file.is_file():
        run = Run.create(folder, recipe)
    command = [sys.executable, "-m", "macl", "train", str(folder), "--resume"]
    command += ["--devices", str(devices)]
    # Whether the recipe may import code was checked when it was read for the comparison.
    environment = {**os.environ, ALLOW_IMPORTS: "1", ENDS_WITH_INPUT: "1"}
    theirs, ours = os.pipe()  # nothing is ever written: it ends with this process
    child = subprocess.Popen(
        command, env=environment, stdin=theirs, stderr=subprocess.PIPE, text=True
    )
    os.close(theirs)
    try:
        _, messages = child.communicate()
    except BaseException:
        child.terminate()
        child.communicate()
        raise
    finally:
        os.close(ours)
    if child.returncode:
        raise UserError(messages.rpartition("error: ")[2].strip())
    return run
