"""`macl adapt`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from macl.cli.arguments import Overrides, existing, on_this_machine, stored_recipe
from macl.cli.console import command_text, escaped, message, on_terminal, table


def adapt(
    encoder: Annotated[
        str,
        typer.Argument(
            help="timm:NAME, torchvision:NAME, package:NAME, hf:NAME, a folder of transformers, "
            "sentence-transformers, timm or `macl export`, or a run; or a finished adaptation, "
            "with --labels."
        ),
    ],
    overrides: Overrides = None,
    data: Annotated[
        Path | None, typer.Option(callback=existing, help="Your items: a file or a folder.")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="The folder to write.")] = None,
    weights: Annotated[
        Path | None,
        typer.Option(callback=existing, help="The weights of a network that is given by name."),
    ] = None,
    labels: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="A .csv or .tsv: name of the item, then one or more columns of labels.",
        ),
    ] = None,
    modality: Annotated[
        str | None, typer.Option(help="Where the form of the encoder does not show it.")
    ] = None,
    seeds: Annotated[int, typer.Option(min=1, help="Trainings, with the seeds 0, 1, ….")] = 3,
    holdout: Annotated[
        float, typer.Option(min=0.01, max=0.9, help="Share of the items to judge by.")
    ] = 0.2,
    lora: Annotated[
        int | None, typer.Option(min=1, metavar="RANK", help="Train matrices of this rank alone.")
    ] = None,
    download: Annotated[
        bool, typer.Option("--download", help="Let the library fetch the encoder's weights.")
    ] = False,
) -> None:
    """Adapt a pretrained encoder to your data; report whether it got better."""
    from macl import api, modalities, recipes

    encoder = on_this_machine(encoder, download)
    given: dict[str, Any] = {}
    stored = stored_recipe(Path(encoder))
    if overrides and stored is not None:
        given = dict(recipes.parse(overrides, recipes.read(stored)))
    elif overrides:
        from macl.runs.elsewhere import recognise

        kind = modalities.get(modality) if modality is not None else recognise(encoder)
        known = kind.adapt_recipe
        base = {"modality": kind.name} if known is None else recipes.read(known)
        given = dict(recipes.parse(overrides, base))
    found = api.adapt(
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
        overrides=given,
        progress=on_terminal(),
    )
    rows = [(k, f"{v:.2f}", f"{found.after[k]:.2f}") for k, v in found.before.items()]
    table("Held-out items", ("measure", "before", "after"), rows)
    verdict = found.verdict
    message(f"verdict: {verdict.result} ({verdict.reason})")
    if verdict.items:
        message(
            f"difference {verdict.difference:+.2f} points, 99% interval {verdict.low:+.2f} to "
            f"{verdict.high:+.2f}, {verdict.items:,} items, {verdict.seeds} seeds; the smallest "
            f"detectable difference is {verdict.detectable:.2f}"
        )
    else:
        needed = ", ".join(f"{n:,} for {p}" for p, n in found.labels_needed.items())
        message(
            "without labels, collapse and duplicates can be seen, but not whether the encoder is "
            f"better. Labeled held-out items that would show a difference in points: {needed}"
        )
        again = command_text("macl", "adapt", found.folder, "--labels", "LABELS.csv")
        message(f"label some of the items, then: {again}")
    message(f"kept: the {found.kept} encoder, in {escaped(str(found.encoder))}")
