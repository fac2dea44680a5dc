"""`macl adapt`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

from typer import Argument, Option

from macl import api
from macl.api.adaptation import is_adapted
from macl.api.common import existing
from macl.cli import arguments
from macl.cli.arguments import typed
from macl.cli.console import message, table
from macl.core.progress import bars_fit
from macl.modalities.hub import local_encoder


def adapt(
    encoder: str = Argument(
        help="timm:NAME, torchvision:NAME, package:NAME, hf:NAME, a folder of transformers, "
        "sentence-transformers, timm or `macl export`, or a run; or a finished adaptation, "
        "with --labels."
    ),
    overrides: arguments.Overrides = None,
    data: Path | None = Option(None, callback=existing, help="Your items: a file or a folder."),
    out: Path | None = Option(None, help="The folder to write."),
    weights: Path | None = Option(None, callback=existing, help="Weights of a named network."),
    labels: Path | None = Option(
        None, callback=existing, help="A .csv or .tsv: name of the item, then columns of labels."
    ),
    modality: str | None = Option(None, help="Where the form of the encoder does not show it."),
    seeds: int = Option(3, min=1, help="Trainings, with the seeds 0, 1, …."),
    holdout: float = Option(0.2, min=0.01, max=0.9, help="Share of the items to judge by."),
    lora: int | None = Option(None, min=1, metavar="RANK", help="Train low-rank matrices alone."),
    download: bool = Option(False, "--download", help="Let the library fetch the weights."),
) -> None:
    """Adapt a pretrained encoder to your data; report whether it got better."""
    is_adapted(encoder, data, out, labels)
    encoder = local_encoder(encoder, download)

    from lightning.pytorch.callbacks import LambdaCallback

    from macl.cli.progress import progress_lines

    progress = [] if bars_fit() else [progress_lines()]

    def announce(_: Any, module: Any) -> None:
        message(f"training {int(module.recipe.seed) + 1} of {seeds}")  # the seeds are 0, 1, …

    adapted = api.adapt(
        encoder,
        data,
        out=out,
        weights=weights,
        labels=labels,
        modality=modality,
        seeds=seeds,
        holdout=holdout,
        lora=lora,
        download=download,
        overrides=typed(overrides, encoder, modality=modality),
        callbacks=[LambdaCallback(on_fit_start=announce), *progress],
        progress=True,
    )
    rows = [(k, f"{v:.2f}", f"{adapted.after[k]:.2f}") for k, v in adapted.before.items()]
    table("Held-out items", ("measure", "before", "after"), rows)
    verdict = adapted.verdict
    message(f"verdict: {verdict.result} ({verdict.reason})")
    if verdict.items:
        message(
            f"difference {verdict.figures}; the smallest "
            f"detectable difference is {verdict.detectable:.2f}"
        )
    else:
        needed = ", ".join(f"{n:,} for {p}" for p, n in adapted.labels_needed.items())
        message(
            "without labels, collapse and duplicates can be seen, but not whether the encoder is "
            f"better. Labeled held-out items that would show a difference in points: {needed}"
        )
        again = shlex.join(["macl", "adapt", str(adapted.folder), "--labels", "LABELS.csv"])
        message(f"label some of the items, then: {again}")
    message(f"kept: the {adapted.kept} encoder, in {adapted.encoder}")
