"""The losses of version 0.2 beside today's: bare calls, what training pays, steps/s, memory.

    git worktree add ../macl-0.2 9427ae7
    python benchmarks/rewrite.py --old ../macl-0.2/src [--quick] [--data CIFAR10.npz]
        [--output docs/results/losses.md]

Old and new cannot be imported together, so each has a process of its own, and so has the textbook;
they take turns, a block of steps at a time, and a change of the machine's speed meets all of them.
Figures are medians over all blocks. Memory is the peak above what was resident before a step, in a
fresh process each (Linux). The section takes the place of what is between the marks
`rewrite:begin` and `rewrite:end` of the output, and is printed without one. Some eight minutes.
"""

from __future__ import annotations

import argparse
import ctypes
import datetime
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import turns

SIZES = (8, 32, 256, 1024, 4096, 8192)
TRAINING_SIZES = (64, 256)
MEMORY_SIZES = (1024, 4096, 8192)
LARGEST_TEXTBOOK = 4096  # beyond it the textbook holds gigabytes
DIM = 128
FORMS = {"both": "both views (NT-Xent)", "cross": "one direction (InfoNCE)"}
RECIPES = ("digits", "cifar10-small", "simcse-bert")
MARKS = ("<!-- rewrite:begin -->", "<!-- rewrite:end -->")
Step = Callable[[], None]


# In a worker's process: `macl` is the old or the new one, by PYTHONPATH.


def views(n: int) -> Any:
    import torch

    z = torch.randn(2, n, DIM, generator=torch.Generator().manual_seed(n))
    return z[0].requires_grad_(), z[1].requires_grad_()


def bare_step(form: str, n: int) -> Step:
    import macl

    z1, z2 = views(n)
    criterion = macl.NTXent(0.1) if form == "both" else macl.InfoNCE(0.1, symmetric=False)

    def step() -> None:
        z1.grad = z2.grad = None
        criterion(z1, z2).backward()

    return step


def textbook_step(form: str, n: int) -> Step:
    import torch
    import torch.nn.functional as F

    z1, z2 = views(n)
    itself = torch.eye(2 * n, dtype=torch.bool) if form == "both" else None
    partner = torch.arange(2 * n).roll(n) if form == "both" else torch.arange(n)

    def step() -> None:
        z1.grad = z2.grad = None
        if itself is not None:
            z = F.normalize(torch.cat([z1, z2]), dim=1)
            logits = (z @ z.T / 0.1).masked_fill(itself, -torch.inf)
        else:
            logits = F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T / 0.1
        F.cross_entropy(logits, partner).backward()

    return step


def method_step(form: str, n: int) -> Step:
    """SimCLR's loss as the trainer calls it, on given embeddings; nothing is logged."""
    import torch

    import macl
    from macl.methods import SimCLR

    loss = macl.NTXent(0.1, gather=True)
    method = SimCLR(torch.nn.Identity(), torch.nn.Identity(), loss)
    z1, z2 = views(n)
    indices = torch.arange(n)

    def step() -> None:
        z1.grad = z2.grad = None
        method.step(z1, z2, indices=indices).loss.backward()

    return step


def timed(step: Step, budget: float) -> dict[str, Any]:
    """Seconds of each run of a step, for `budget` seconds, twice at least."""
    runs: list[float] = []
    end = time.perf_counter() + budget
    while len(runs) < 2 or time.perf_counter() < end:
        start = time.perf_counter()
        step()
        runs.append(time.perf_counter() - start)
    return {"seconds": statistics.median(runs)}


def peak(kind: str, form: str, n: int) -> dict[str, Any]:
    """MB above what was resident before a step."""
    STEPS[kind](form, 64)()  # libraries loaded, threads started
    step = STEPS[kind](form, n)
    ctypes.CDLL(None).malloc_trim(0)
    before = turns.reset_peak()
    step()
    return {"megabytes": turns.resident_peak() - before}


def training(recipe: str, folder: str, values: dict[str, Any]) -> dict[str, Any]:
    """Optimizer steps per second of a recipe, pauses between epochs left out."""
    import macl
    from macl.training import module

    stamps: list[float] = []
    original = module.ContrastiveModule.optimizer_step

    def stamped(self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        stamps.append(time.perf_counter())

    module.ContrastiveModule.optimizer_step = stamped  # type: ignore[method-assign]
    with tempfile.TemporaryDirectory(dir=folder) as out:
        macl.train(recipe, out=f"{out}/run", **values)
    module.ContrastiveModule.optimizer_step = original  # type: ignore[method-assign]
    taken = [b - a for a, b in itertools.pairwise(stamps[2:])]
    usual = statistics.median(taken)
    kept = [seconds for seconds in taken if seconds < 5 * usual]
    return {"steps": len(kept) / sum(kept)}


STEPS = {"bare": bare_step, "textbook": textbook_step, "method": method_step}


def serve() -> None:
    """A line of JSON in, a line of JSON out, until the input ends."""
    answers, sys.stdout = sys.stdout, sys.stderr  # what libraries print is not an answer
    steps: dict[str, Step] = {}
    for line in sys.stdin:
        request = json.loads(line)
        what = request.pop("what")
        if what == "time":
            budget, key = request.pop("budget"), json.dumps(request)
            if key not in steps:
                steps.clear()  # one at a time holds memory
                steps[key] = STEPS[request["kind"]](request["form"], request["n"])
                steps[key]()
            answer = timed(steps[key], budget)
        else:
            answer = peak(**request) if what == "peak" else training(**request)
        print(json.dumps(answer), file=answers, flush=True)


# In the process that asks.


class Worker:
    """A process with one version of the source."""

    def __init__(self, source: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": str(source)}
        self._process = subprocess.Popen(
            [sys.executable, __file__, "--serve"],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"a worker ended without an answer to {request}")
        return json.loads(line)

    def end(self) -> None:
        self._process.communicate()


def in_turns(
    workers: dict[str, tuple[Worker, dict[str, Any]]], rounds: int, figure: str
) -> dict[str, float]:
    """The median of what each worker found, asked one after the other in every round."""
    results: dict[str, list[float]] = {name: [] for name in workers}
    for _ in range(rounds):
        for name, (worker, request) in workers.items():
            results[name].append(worker.ask(**request)[figure])
    return {name: statistics.median(values) for name, values in results.items()}


def calls(
    sources: dict[str, Path], sizes: tuple[int, ...], rounds: int, budget: float
) -> list[str]:
    """The tables of bare calls and of what training pays."""
    workers = {name: Worker(source) for name, source in sources.items()}
    workers["textbook"] = Worker(sources["new"])
    parts: list[str] = []
    for form, title in FORMS.items():
        rows = []
        for n in sizes:
            asked = {
                name: (
                    worker,
                    {
                        "what": "time",
                        "kind": "textbook" if name == "textbook" else "bare",
                        "form": form,
                        "n": n,
                        "budget": budget / rounds,
                    },
                )
                for name, worker in workers.items()
                if name != "textbook" or n <= LARGEST_TEXTBOOK
            }
            ms = {k: 1000 * v for k, v in in_turns(asked, rounds, "seconds").items()}
            print(f"{title}, N={n}, ms: {ms}", file=sys.stderr, flush=True)
            rows.append([f"{n:,}", *_beside(ms, "old"), *_beside(ms, "textbook")[1:]])
        head = ["N", "old ms", "new ms", "old/new", "textbook ms", "textbook/new"]
        parts.append(table(f"Bare calls, {title}, D = {DIM}, forward and backward", head, rows))
    rows = []
    for n in [n for n in TRAINING_SIZES if n <= max(sizes)]:
        common = {"what": "time", "form": "both", "n": n, "budget": budget / rounds}
        asked = {k: (workers[k], {**common, "kind": "method"}) for k in ("old", "new")}
        asked["bare"] = (workers["textbook"], {**common, "kind": "bare"})
        ms = {k: 1000 * v for k, v in in_turns(asked, rounds, "seconds").items()}
        ratio = ms["new"] / ms["bare"]
        rows.append([f"{n:,}", *_beside(ms, "old"), f"{ms['bare']:.3g}", f"{ratio:.2f}"])
    head = ["N", "old ms", "new ms", "old/new", "bare call (new) ms", "training/bare"]
    parts.append(table("What training pays: SimCLR's step, not logged", head, rows))
    for worker in workers.values():
        worker.end()
    return parts


def memory(sources: dict[str, Path], sizes: tuple[int, ...]) -> list[str]:
    """The table of peak extra memory, a fresh process each."""
    rows = []
    for form, title in FORMS.items():
        for n in sizes:
            cells = []
            for name in ("old", "new", "textbook"):
                if name == "textbook" and n > LARGEST_TEXTBOOK:
                    cells.append("–")
                    continue
                worker = Worker(sources.get(name, sources["new"]))
                kind = "textbook" if name == "textbook" else "bare"
                cells.append(
                    f"{worker.ask(what='peak', kind=kind, form=form, n=n)['megabytes']:,.0f}"
                )
                worker.end()
            rows.append([title, f"{n:,}", *cells])
    head = ["form", "N", "old MB", "new MB", "textbook MB"]
    return [table("Peak extra memory of a bare call", head, rows)]


def steps_per_second(
    sources: dict[str, Path], folder: Path, data: Path | None, quick: bool
) -> list[str]:
    """The table of training steps per second."""
    rows = []
    for recipe in RECIPES:
        values = settings(recipe, folder, data, quick)
        workers = {name: Worker(source) for name, source in sources.items()}
        request = {"what": "training", "recipe": recipe, "folder": str(folder), "values": values}
        asked = {name: (worker, request) for name, worker in workers.items()}
        speed = in_turns(asked, 1 if quick else 3, "steps")
        print(f"{recipe}, steps/s: {speed}", file=sys.stderr, flush=True)
        ratio = speed["new"] / speed["old"]
        rows.append([recipe, f"{speed['old']:.3g}", f"{speed['new']:.3g}", f"{ratio:.2f}"])
        for worker in workers.values():
            worker.end()
    return [table("Training", ["recipe", "old steps/s", "new steps/s", "new/old"], rows)]


def settings(recipe: str, folder: Path, data: Path | None, quick: bool) -> dict[str, Any]:
    """What `macl.train` is given besides the recipe: data that is here, and no evaluation."""
    overrides: dict[str, Any] = {"monitor_every": 0, "epochs": 1 if quick else 3}
    values: dict[str, Any] = {"overrides": overrides}
    if recipe == "cifar10-small":
        values["data"] = str(data or _images(folder, 256 if quick else 4096))
        if data is not None:
            overrides["epochs"] = 1
    if recipe == "simcse-bert":
        values["data"] = str(_sentences(folder, 512 if quick else 6400))
        overrides |= {"encoder.name": str(_bert(folder)), "epochs": 1, "evaluate_best": False}
    return values


def _images(folder: Path, count: int) -> Path:
    import numpy as np

    path, random = folder / "images.npz", np.random.default_rng(0)
    images = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    np.savez(path, images=images, labels=random.integers(0, 10, count))
    return path


WORDS = [f"{a}{b}" for a in "bcdfghklmnprst" for b in ("ale", "ine", "ore", "um", "ash", "ick")]


def _sentences(folder: Path, count: int) -> Path:
    import random

    path, draw = folder / "sentences.txt", random.Random(0)
    lines = (" ".join(draw.choices(WORDS, k=draw.randint(6, 20))) for _ in range(count))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path


def _bert(folder: Path) -> Path:
    """A BERT of two layers with random weights, as a folder."""
    from transformers import BertConfig, BertModel, BertTokenizer

    path = folder / "bert"
    path.mkdir(exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS]
    (path / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    BertTokenizer(str(path / "vocab.txt")).save_pretrained(path)
    config = BertConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=128,
        max_position_embeddings=64,
    )
    BertModel(config).save_pretrained(path)
    return path


def _beside(ms: dict[str, float], other: str) -> list[str]:
    """Other, new, and their ratio, where the other was measured."""
    if other not in ms:
        return ["–", "–", "–"] if other == "old" else ["", "–", "–"]
    new, ratio = f"{ms['new']:.3g}", f"{ms[other] / ms['new']:.2f}"
    return [f"{ms[other]:.3g}", new, ratio] if other == "old" else ["", f"{ms[other]:.3g}", ratio]


def table(title: str, head: list[str], rows: list[list[str]]) -> str:
    """A Markdown table under a heading."""
    lines = [f"### {title}", "", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def header(quick: bool) -> str:
    """Machine, threads and date."""
    import torch

    models = (
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    )
    kind = " **Quick run: no measurement.**" if quick else ""
    return (
        f"{next(models, platform.machine())}, {os.cpu_count()} cores, {torch.get_num_threads()} "
        f"threads, torch {torch.__version__}, Python {platform.python_version()}, "
        f"{datetime.date.today().isoformat()}; load average at the start {os.getloadavg()[0]:.1f}."
        f"{kind}\n"
    )


def written(page: str, section: str) -> str:
    """The page with `section` between its marks, which are added at the end where they lack."""
    begin, end = MARKS
    if begin not in page:
        page = page.rstrip() + f"\n\n## Version 0.2 beside today's\n\n{begin}\n{end}\n"
    before, _, rest = page.partition(begin)
    return f"{before}{begin}\n\n{section}\n{end}{rest.partition(end)[2]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--old", type=Path, help="the folder src of version 0.2")
    parser.add_argument("--data", type=Path, help="CIFAR-10 as .npz; without, random images")
    parser.add_argument("--output", type=Path, help="a page with the marks, such as losses.md")
    parser.add_argument("--quick", action="store_true", help="tiny sizes: does it run at all?")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.serve:
        serve()
        return
    if given.old is None or not (given.old / "macl").is_dir():
        parser.error("--old names a folder that holds the package macl of version 0.2")
    sources = {"old": given.old.resolve(), "new": Path(__file__).resolve().parent.parent / "src"}
    sizes = SIZES[:2] if given.quick else SIZES
    first = header(given.quick)
    parts = calls(sources, sizes, *((2, 0.05) if given.quick else (5, 2.0)))
    with tempfile.TemporaryDirectory() as folder:
        parts += steps_per_second(sources, Path(folder), given.data, given.quick)
    parts += memory(sources, sizes if given.quick else MEMORY_SIZES)
    section = "\n".join([first, *parts])
    if given.output is None:
        print(section)
    else:
        given.output.write_text(written(given.output.read_text(), section))


if __name__ == "__main__":
    main()
