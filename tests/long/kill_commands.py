"""Kill -9 at instants spread over the work of every command; the same command then gives the same.

    python tests/long/kill_commands.py [--times 100] [--seed 0]

Each command runs once undisturbed, then again and again: it is killed at an instant drawn over its
duration, and repeated to its end. What it wrote is compared to the byte, and nothing half-written
may be left. Processes are forked from this one, which has only
imported, so that the instants fall into the work and not into start-up.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1])]

from macl import api, runs  # noqa: E402, F401
from macl.core.errors import UserError  # noqa: E402
from macl.evaluation import score as _score  # noqa: E402, F401
from macl.reporting import build as _build  # noqa: E402, F401
from macl.runs import export as _export  # noqa: E402, F401
from macl.training.fit import train  # noqa: E402
from tiny import HERE, TINY, recipe  # noqa: E402

SMALL = ("evaluation.protocols=[knn]", "save_every=1", "monitor_every=0")


def _train(place: Path) -> None:
    train(recipe(*SMALL), place / "new", resume=(place / "new/recipe.yaml").is_file(), compute=HERE)


def _embed(place: Path) -> None:
    for suffix in ("npy", "parquet", "csv"):
        api.embed(place / "run", place / "pictures").save(place / f"v.{suffix}", overwrite=True)


def _export_once(place: Path) -> None:
    if not (place / "out").is_dir():
        api.export(place / "run", place / "out", onnx=False)


def _compare(place: Path) -> None:
    given = dict(text.split("=", 1) for text in (*TINY, *SMALL))
    values: dict[str, Any] = {key: json.loads(value) for key, value in given.items()
                              if not value.startswith("[")}  # fmt: skip
    values |= {"epochs": 1, "evaluation.protocols": ["knn"]}
    api.compare("digits", {"loss": ["nt-xent"]}, seeds=1, out=place / "many", overrides=values)


def _adapt(place: Path) -> None:
    small = {"epochs": 1, "batch_size": 16, "save_every": 1, "data.source": "auto"}
    out = place / "adapted"
    try:
        api.adapt(place / "run", place / "pictures", out=out, seeds=1, overrides=small)
    except UserError as error:  # killed after its last file
        if "holds a finished adaptation" not in str(error):
            raise


COMMANDS: dict[str, tuple[Callable[[Path], Any], list[str]]] = {
    "train": (_train, ["new/encoder.safetensors", "new/metrics.csv"]),
    "embed": (_embed, ["v.npy", "v.names.txt", "v.csv", "v.parquet"]),
    "evaluate": (lambda place: api.evaluate(place / "run"), ["run/results.json"]),
    "export": (_export_once, ["out/README.md", "out/encoder.safetensors"]),
    "report": (
        lambda place: api.report(place / "run", place / "r.html", projection="pca"),
        ["r.html"],
    ),
    "compare": (_compare, ["many/table.md", "many/table.parquet"]),
    "adapt": (_adapt, ["adapted/adapt.json", "adapted/encoder/encoder.safetensors"]),
}  # fmt: skip
"""Command → what runs it in a folder, and the files that it makes."""


def begin(command: Callable[[Path], Any], place: Path) -> int:
    """Run in a process of its own; returns its number."""
    child = os.fork()
    if child == 0:
        code = 0
        try:
            command(place)
        except BaseException:
            traceback.print_exc()
            code = 1
        os._exit(code)
    return child


def prepared(place: Path, run: Path) -> Path:
    """A folder with a run and pictures to embed."""
    import numpy as np
    from PIL import Image

    shutil.copytree(run, place / "run")
    (place / "pictures").mkdir()
    for number in range(100):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(place / "pictures" / f"{number}.png")
    return place


def contents(place: Path, files: list[str]) -> dict[str, bytes]:
    """What a command wrote, by file."""
    return {name: (place / name).read_bytes() for name in files if (place / name).is_file()}


def survive(name: str, run: Path, folder: Path, times: int, instants: random.Random) -> int:
    """Kill a command in its work `times` times and compare; returns how often it was run for it."""
    command, files = COMMANDS[name]
    # In a folder of one name every time: pages and messages have it in them.
    place = folder / "place"
    prepared(place, run)
    started = time.perf_counter()
    assert os.waitpid(begin(command, place), 0)[1] == 0
    duration = time.perf_counter() - started
    expected = contents(place, files)
    assert expected, f"{name} wrote nothing"
    killed = attempts = 0
    while killed < times:
        attempts += 1
        assert attempts <= 5 * times, f"{name} ends before it can be killed"
        shutil.rmtree(place)
        child = begin(command, prepared(place, run))
        time.sleep(instants.uniform(0, duration))
        os.kill(child, signal.SIGKILL)
        killed += os.waitpid(child, 0)[1] == signal.SIGKILL
        assert os.waitpid(begin(command, place), 0)[1] == 0, f"{name} after a kill"
        found = contents(place, files)
        assert found == expected, f"{name}: {[f for f in expected if found.get(f) != expected[f]]}"
        left = [str(path) for path in place.rglob(".*") if path.suffix in (".partial", ".lock")]
        assert not left, left
    shutil.rmtree(place)
    return attempts


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=100, help="kills in all")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--commands", default=",".join(COMMANDS))
    given = parser.parse_args()
    names = given.commands.split(",")
    instants = random.Random(given.seed)
    with tempfile.TemporaryDirectory() as folder:
        run = train(recipe(*SMALL), Path(folder) / "run", compute=HERE).folder
        for number, name in enumerate(names):
            share = given.times // len(names) + (number < given.times % len(names))
            runs = survive(name, run, Path(folder), share, instants)
            print(f"{name}: killed in {share} of {runs} runs; all equal", flush=True)


if __name__ == "__main__":
    main()
