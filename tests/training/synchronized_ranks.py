"""One of the processes that train a run for each case and write down when they read values."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from test_synchronization import CASES, LONG, counted, take_for_accelerator

from macl.training.fit import train
from tiny import HERE, recipe


def train_here(folder: Path) -> None:
    """The share of one process."""
    found = []
    for number, overrides in enumerate(CASES):
        with pytest.MonkeyPatch.context() as patch, counted(patch) as reads:
            take_for_accelerator(patch)
            train(recipe(*LONG, *overrides), folder / str(number), compute=HERE)
        steps, files = zip(*reads.places, strict=True)
        found.append({"steps": steps, "files": files})
    (folder / f"{os.environ['RANK']}.json").write_text(json.dumps(found))


if __name__ == "__main__":
    train_here(Path(sys.argv[1]))
