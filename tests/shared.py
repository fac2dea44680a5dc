"""What is made once for a whole test run and read by all its processes."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from macl.recipes import Recipe
    from macl.runs import Run

VARIABLE = "MACL_TESTS_SHARED"
"""Names the folder; conftest.py makes and removes it."""
ROOT = Path(__file__).parents[1]


@contextmanager
def made_once(name: str) -> Iterator[tuple[Path, bool]]:
    """A folder, and whether it is still to be filled; the other processes wait meanwhile."""
    folder = Path(os.environ[VARIABLE]) / name
    with open(f"{folder}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = folder / ".made"
        todo = not done.exists()
        if todo:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir()
        yield folder, todo
        done.touch()


def trained(recipe: Recipe, copy: Path | None = None) -> Run:
    """The finished run of a recipe, trained once; `copy` is a folder for a run to change."""
    from macl import recipes
    from macl.runs import Run
    from macl.training.fit import train
    from tiny import HERE

    name = hashlib.sha256(recipes.dump(recipe).encode()).hexdigest()[:16]
    with made_once(name) as (folder, todo):
        if todo:
            train(recipe, folder / "run", compute=HERE)
    if copy is None:
        return Run(folder / "run")
    shutil.copytree(folder / "run", copy)
    return Run(copy)


def distributions() -> Path:
    """The folder with the wheel and the source archive of this source tree."""
    with made_once("dist") as (folder, todo):
        if todo:
            # From a copy: building writes into the source tree.
            source = folder / "source"
            source.mkdir()
            for name in ("pyproject.toml", "README.md", "LICENSE"):
                shutil.copy(ROOT / name, source)
            leftovers = shutil.ignore_patterns("__pycache__", "*.egg-info")
            shutil.copytree(ROOT / "src", source / "src", ignore=leftovers)
            command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", folder / "made"]
            done = subprocess.run([*command, source], capture_output=True, text=True)
            assert done.returncode == 0, done.stdout + done.stderr
    return folder / "made"


def installed() -> Path:
    """A folder with the wheel as it is installed: pure Python is only unpacked."""
    (wheel,) = distributions().glob("macl-*.whl")
    with made_once("installed") as (folder, todo):
        if todo:
            zipfile.ZipFile(wheel).extractall(folder)
    return folder
