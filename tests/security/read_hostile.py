"""Gives the files of `hostile_files` to every command that takes such a file.

`read_hostile.py FOLDER [NAME …]` prints a line for each file and command, "NAME, COMMAND: refused:
…" or "NAME, COMMAND: read", or how its process ended. Each command runs in a forked process with
little memory and time.
"""

from __future__ import annotations

import os
import resource
import shutil
import sys
import traceback
import warnings
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path

import torch
from hostile_files import FILES

sys.path.insert(0, str(Path(__file__).parents[1]))

from fuzzing import ADDITIONAL, SECONDS
from macl.cli.application import app
from macl.core.errors import UserError

RUNS = {
    "digits": ["encoder.width=8", "data.limit=70", "batch_size=32", "evaluation.protocols=[knn]"],
    "topics": ["encoder.width=16", "encoder.layers=1", "encoder.vocabulary=300",
               "views.max_length=8", "data.limit=64", "batch_size=32"],
    "chembl": ["encoder.hidden=8", "data.limit=100", "batch_size=32"],
}  # fmt: skip
"""A small recipe for each modality."""


def commands(name: str, path: Path, runs: Path, out: Path) -> dict[str, list[str]]:
    """Command → its arguments, with the file in every place that takes one of its kind."""
    recipe = "chembl" if path.suffix == ".smi" else "digits"
    if path.suffix in (".parquet", ".gz") or path.name == "bert":
        recipe = "topics"
    run, vectors = str(runs / recipe), str(runs / "digits.npy")
    image, text = str(runs / "image.png"), str(runs / "a.txt")
    small = [*RUNS[recipe], "epochs=1", "monitor_every=0", "--out", str(out)]
    if path.suffix == ".ckpt":
        stored = shutil.copytree(runs / "digits", out)
        (stored / "checkpoints").mkdir(exist_ok=True)
        shutil.copy(path, stored / "checkpoints" / "last.ckpt")
        return {"train": ["train", str(stored), "--resume", "epochs=9"]}
    if path.suffix in (".pth", ".safetensors") or path.is_dir():
        start = "encoder.name" if path.is_dir() else "encoder.weights"
        query = text if path.is_dir() else image
        given = {
            "evaluate": ["evaluate", "--encoder", str(path)],
            "embed": ["embed", str(path), query, "-o", f"{out}.npy"],
            "search": ["search", str(path), query, "--in", vectors],
            "train": ["train", recipe, f"{start}={path}", *small],
            "adapt": ["adapt", str(path), "--data", str(runs / "images"), "--out", str(out)],
        }
        if path.is_dir():
            return given
        own = shutil.copytree(run, out.with_name("own"))
        shutil.copy(path, own / "encoder.safetensors")
        return given | {
            "evaluate RUN": ["evaluate", str(own)],
            "diagnose RUN": ["diagnose", str(own)],
            "export RUN": ["export", str(own), str(out), "--no-onnx"],
            "report RUN": ["report", str(own)],
        }
    if path.suffix == ".npy":
        return {"search": ["search", str(runs / "digits"), image, "--in", str(path)]}
    source = ["--data", str(path.parent if path.suffix == ".png" else path)]
    kind = [] if recipe != "digits" else ["data.source=auto"]
    adapted = ["--out", str(out), "--seeds", "1", "batch_size=8"]
    return {
        "train": ["train", recipe, *kind, *source, *small],
        "compare": ["compare", recipe, *kind, *source, *small, "--seeds", "1"],
        "embed": ["embed", run, str(path), "-o", f"{out}.npy"],
        "search": ["search", run, str(path), "--in", vectors],
        "evaluate": ["evaluate", run, *source],
        "diagnose": ["diagnose", run, *source],
        "report": ["report", run, *source],
        "adapt": ["adapt", run, *source, *adapted],
    }


def attempt(arguments: list[str]) -> str:
    """What becomes of a command, in this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    bound = pages * resource.getpagesize() + ADDITIONAL
    resource.setrlimit(resource.RLIMIT_AS, (bound, bound))
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    try:
        with open(os.devnull, "w") as nothing, redirect_stdout(nothing), redirect_stderr(nothing):
            app(arguments, standalone_mode=False)
    except UserError as error:
        return f"refused: {error}"
    except BaseException:
        return traceback.format_exc()
    return "read"


def forked(arguments: list[str]) -> str:
    """The same in a process of its own, or how that ended."""
    read, write = os.pipe()
    child = os.fork()
    if not child:
        os.write(write, attempt(arguments)[-4000:].encode())
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as stream:
        told = stream.read()
    status = os.waitpid(child, 0)[1]
    return f"ended with status {status}" if status else " ".join(told.split())


def prepare(runs: Path) -> None:
    """A run of each modality, images, a text, and vectors of one run."""
    import numpy as np
    from PIL import Image

    (runs / "images").mkdir(parents=True)
    for number in range(120):
        pixels = np.random.default_rng(number).integers(0, 256, (8, 8, 3), dtype=np.uint8)
        Image.fromarray(pixels).save(runs / "images" / f"{number}.png")
    shutil.copy(runs / "images" / "0.png", runs / "image.png")
    (runs / "a.txt").write_text("one sentence\n")
    for recipe, keys in RUNS.items():
        with suppress(UserError):  # without the packages of its modality
            own = ["data.source=auto", "--data", str(runs / "images")] * (recipe == "digits")
            app(["train", recipe, *keys, *own, "epochs=0", "--out", str(runs / recipe)],
                standalone_mode=False)  # fmt: skip
    app(["embed", str(runs / "digits"), str(runs / "image.png"), "-o", str(runs / "digits.npy")],
        standalone_mode=False)  # fmt: skip


def main(folder: Path, names: list[str]) -> None:
    """Make each file, give it to its commands, and print what became of them."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    for module in ("lightning.pytorch", "torchvision", "datasets", "transformers", "rdkit.Chem",
                   "timm", "macl.api", "macl.reporting.build", "macl.training.fit"):  # fmt: skip
        with suppress(ImportError):
            __import__(module)  # before the limit: they reserve much and use little
    with redirect_stdout(sys.stderr):
        prepare(folder / "runs")
    for number, name in enumerate(names):
        file, make = FILES[name]
        path = folder / str(number) / file
        path.parent.mkdir()
        make(path)
        place = folder / str(number) / "out"
        for command, arguments in commands(name, path, folder / "runs", place).items():
            print(f"{name}, {command}: {forked(arguments)}", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:] or list(FILES))
