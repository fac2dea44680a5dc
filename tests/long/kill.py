"""Kill -9 at random moments; every time the run goes on, and ends as if nothing had happened.

    python tests/long/kill.py [--times 30] [--modalities images,text,graphs] [--seed 0]

For each modality: one run without interruption, then runs that are killed at moments drawn
uniformly over its duration and resumed, until `--times` kills have been survived. Every run that
came to its end is compared with the first: encoder, checkpoint and metrics, to the bit. Processes
are forked from this one, which has only imported, so that the moments fall into training.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from pathlib import Path

import recipe_texts

sys.path[:0] = [str(Path(__file__).parents[1])]

from safetensors.torch import load_file  # noqa: E402

from macl import modalities  # noqa: E402
from macl.recipes import Recipe  # noqa: E402
from macl.runs import Run  # noqa: E402
from macl.training.fit import train  # noqa: E402
from tiny import HERE, TINY, assert_same, state_of  # noqa: E402

RECIPES = {
    "images": ("digits", [*TINY, "save_every=1"]),
    "text": (
        "topics",
        ["encoder.width=16", "encoder.layers=1", "encoder.vocabulary=500", "views.max_length=8",
         "epochs=1", "batch_size=256", "save_every=1"],
    ),
    "graphs": ("atlas", ["epochs=4", "encoder.hidden=8", "save_every=1", "monitor_every=2"]),
}  # fmt: skip
"""A second or two each, with a checkpoint after every step."""


def begin(recipe: Recipe, folder: Path) -> int:
    """Train or resume in a process of its own; returns its number."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            train(recipe, folder, resume=(folder / "recipe.yaml").is_file(), compute=HERE)
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    return child


def end(child: int, after: float | None) -> str:
    """Wait, or kill after some seconds; returns "finished" or "killed"."""
    if after is not None:
        time.sleep(after)
        os.kill(child, signal.SIGKILL)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    if code not in (0, -signal.SIGKILL):
        sys.exit(f"a run ended with code {code} where it should have gone on")
    return "killed" if code else "finished"


def assert_same_run(one: Run, two: Run) -> None:
    """Encoder, checkpoint and metrics, to the bit; and nothing half-written lies about."""
    files = [load_file(run.folder / "encoder.safetensors") for run in (one, two)]
    assert_same(*files)
    here, there = (state_of(run) for run in (one, two))
    for name in ("state_dict", "optimizer_states", "lr_schedulers", "callbacks", "global_step"):
        assert_same(here[name], there[name], name)
    assert one.metrics_file.read_text() == two.metrics_file.read_text()
    assert not list(one.folder.rglob("*.partial"))


def survive(recipe: Recipe, folder: Path, times: int, moments: random.Random) -> Counter[str]:
    """Kill and resume until `times` kills are survived; returns what was counted."""
    started = time.perf_counter()
    end(begin(recipe, folder / "whole"), None)
    duration = time.perf_counter() - started
    whole, counts = Run(folder / "whole"), Counter[str]()
    while counts["killed"] < times:
        cut = folder / "cut"
        shutil.rmtree(cut, ignore_errors=True)
        while not Run(cut).is_finished:
            last = counts["killed"] >= times
            counts[end(begin(recipe, cut), None if last else moments.uniform(0, duration))] += 1
            counts["in a checkpoint"] += bool(list(cut.rglob("*.partial")))
        assert_same_run(Run(cut), whole)
        counts["compared"] += 1
    return counts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=30)
    parser.add_argument("--modalities", default=",".join(RECIPES))
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    moments = random.Random(given.seed)
    for name in given.modalities.split(","):
        shipped, overrides = RECIPES[name]
        modalities.get(name)  # import before the fork
        with tempfile.TemporaryDirectory() as folder:
            counts = survive(
                recipe_texts.load(shipped, overrides), Path(folder), given.times, moments
            )
        print(
            f"{name}: {counts['killed']} kills survived, {counts['in a checkpoint']} of them while "
            f"a file was being written; {counts['compared']} runs came to their end, all equal to "
            "the uninterrupted one"
        )


if __name__ == "__main__":
    main()
