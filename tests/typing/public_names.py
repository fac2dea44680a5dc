"""A user's program with every public name of macl: `make types` checks it strictly."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn, rand

import macl
from macl import (
    DCL,
    DCLW,
    HCL,
    MACL,
    AlignmentAdaptive,
    AutoTemperature,
    ContrastiveLoss,
    CosineSchedule,
    Diagnosis,
    DualTemperature,
    DySTreSS,
    FastCLIP,
    Fixed,
    FlatNCE,
    Index,
    InfoNCE,
    ISogCLR,
    LearnedTemperature,
    LossOutput,
    Match,
    NTXent,
    Run,
    SigLIP,
    SogCLR,
    SupCon,
    Temperature,
    TemperatureFree,
    TempNet,
    UserError,
    Vectors,
)

z1, z2 = rand(8, 4), rand(8, 4)
version: str = macl.__version__

temperatures: list[Temperature] = [
    Fixed(0.1),
    AlignmentAdaptive(0.1, alpha=0.5, threshold=0.0),
    LearnedTemperature(0.1),
    CosineSchedule(0.1, 0.5, 10),
    AutoTemperature(0.44),
]
losses: list[ContrastiveLoss] = [
    NTXent(temperature=temperatures[0], gather="ring", reduction="none"),
    InfoNCE(0.1, negatives="cross", symmetric=False),
    DCL(0.1),
    DCLW(0.1, sigma=0.5),
    HCL(0.5, beta=1.0, tau_plus=0.1),
    FlatNCE(0.1),
    DualTemperature(0.1, beta=10.0),
    MACL(0.1, alpha=0.5, threshold=0.0, reweight=True, floor=None, validate=True),
    SigLIP(),
    SupCon(0.1),
    SogCLR(size=8),
    ISogCLR(size=8),
    FastCLIP(size=8),
    TempNet(dim=4),
    DySTreSS(),
    TemperatureFree(),
]
module: nn.Module = losses[0]
loss: Tensor = losses[0](z1, z2)
contrast: LossOutput = losses[0].contrast(z1, z2)
scale: Tensor = contrast.gradient_scale
metrics: dict[str, Tensor] = contrast.metrics()
found: Diagnosis = macl.diagnose(z1, z2, temperature=0.1)
problems: tuple[str, ...] = found.problems


def use_a_run(folder: Path) -> None:
    """Every function and what it returns."""
    try:
        run: Run = macl.train("digits", out=folder, epochs=5, overrides={"loss.temperature": 0.2})
    except UserError as error:
        raise SystemExit(str(error)) from error
    values: list[float] = [score.value for score in macl.evaluate(run)]
    vectors: Vectors = macl.embed(run, "pictures")
    rows: Tensor = vectors.values
    matches: list[Match] = macl.search(run, "query.png", vectors, k=5)
    name: str = matches[0].name
    written: list[str] = macl.export(run, folder / "exported")
    pages: list[Path] = macl.report(run, "page.html")
    again: Vectors = run.embed("pictures")
    macl.diagnose(run).as_dict()
    table = macl.compare("digits", {"loss": ["nt-xent", "macl"]}, seeds=3)
    macl.reproduce("gradient-scale")
    kept: str = macl.adapt("timm:resnet18", "pictures", out=folder / "adapted").kept
    macl.mine(run, "pairs.csv", k=2).save("triplets.jsonl")
    counts: list[int] = macl.embed_parts(run, "pictures", folder / "parts", dtype="float16")
    index: Index = macl.index(folder / "parts", folder / "index", engine="faiss", run=run)
    nearest: list[Match] = index.query("query.png", k=5)
    macl.tune("digits", {"loss.temperature": [0.1, 0.2]}, trials=2, out=folder / "tuned")
    step = macl.cached(nn.Linear(4, 2), NTXent(0.1), chunk=2)
    large: Tensor = step(z1, z2)
    print(macl.plan(nn.Linear(4, 2), z1, batch=64), counts, nearest, large)
    print(values, rows, name, written, pages, again, table, kept)
