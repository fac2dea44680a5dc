"""What is done with a trained encoder: `macl evaluate` and `macl export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from macl.cli.arguments import (
    DeviceOption,
    DownloadOption,
    PrecisionOption,
    RunArgument,
    existing,
    on_this_machine,
    placed,
    stored_recipe,
)
from macl.cli.console import escaped, message, scores_table
from macl.core.errors import UserError
from macl.core.launch import launched_rank


def evaluate(
    run: Annotated[
        str | None, typer.Argument(help="A run folder; or an encoder, as with --encoder.")
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="Options of the protocols, such as k=5 or linear.epochs=20, and data.KEY=VALUE.",
        ),
    ] = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_NAME",
            help="Evaluate this instead of a run: what `macl export` wrote; for images also a "
            ".safetensors or .pth file, a Hugging Face folder, or a recipe's encoder name "
            "(untrained); for text a folder of Hugging Face or sentence-transformers, or "
            "package:NAME.",
        ),
    ] = None,
    modality: Annotated[
        str | None,
        typer.Option(help="The modality of --encoder, where its form does not show it."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(
            callback=existing,
            help="Evaluate on this file or folder instead of the recipe's data: for text also "
            "SentEval's folder, for images also a VOCdevkit.",
        ),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "--tasks",
            help="Only these protocols, comma-separated. Images: knn, linear, geometry, "
            "voc-detection; text: knn, logistic, sts, transfer or a task such as STS-B; graphs: "
            "svm, logistic, knn; molecules also finetune.",
        ),
    ] = None,
    best: Annotated[
        bool,
        typer.Option(
            "--best", help="Evaluate the encoder with the best monitored score, not the last."
        ),
    ] = False,
    dims: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first so many coordinates of every embedding."),
    ] = None,
    figures: Annotated[
        Path | None, typer.Option(help="Folder for pictures with the detections of voc-detection.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Also write the scores to this .json file."),
    ] = None,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Evaluate an encoder; the scores of a run also go to its results.json."""
    encoder, run = (name and on_this_machine(name, download) for name in (encoder, run))
    if output is not None and output.suffix != ".json":
        raise UserError(f"{output}: scores are written as JSON; give a name that ends in .json.")
    texts = list(overrides or ())
    if encoder is not None and run is not None:
        texts.insert(0, run)  # the first KEY=VALUE, in the position of the run
    name = encoder or run
    if name is None:
        raise UserError("give what to evaluate: a run folder, or --encoder FILE_OR_NAME.")
    if figures is not None and protocol is not None and "voc-detection" not in protocol:
        raise UserError("--figures draws detections: it needs --protocol voc-detection.")
    stored = stored_recipe(Path(name)) if encoder is None else None
    if best and stored is None:
        raise UserError(f"--best: {name} is not a run, so it has no monitored encoder.")
    protocols = None if protocol is None else [part.strip() for part in protocol.split(",")]
    given, options = _evaluation(
        name, texts, stored, modality, protocols, named=encoder is not None
    )
    if figures is not None:
        given["evaluation.detection.figures"] = figures.absolute()

    from macl import api
    from macl.core.signals import Interrupted

    try:
        scores = api.evaluate(
            **options,
            overrides=given,
            data=data,
            protocols=protocols,
            best=best,
            dims=dims,
            progress=True,
            **placed(device, precision),
        )
    except Interrupted as stop:
        message(f"stopped by {stop}; the same command continues.")
        sys.exit(130)
    if launched_rank() != 0:
        return
    scores_table(scores)
    if output is not None:
        from macl.evaluation.score import write_scores

        write_scores(output, name, scores)
        message(f"written: {escaped(str(output))}")


def _evaluation(
    name: str,
    texts: list[str],
    stored: str | None,
    modality: str | None,
    protocols: list[str] | None,
    *,
    named: bool,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The typed overrides, and what is evaluated as arguments of `macl.api.evaluate`."""
    from macl import recipes

    if stored is not None:
        given = recipes.parse(texts, recipes.read(stored), default_section="evaluation")
        if protocols is not None:  # checked before torch is imported
            recipes.override(recipes.resolve_file(stored), {"evaluation.protocols": protocols})
        return dict(given), {"run": name}
    if modality is None:
        from macl.runs import Run
        from macl.runs.elsewhere import recognise

        try:
            modality = recognise(name).name
        except UserError:
            if not named:
                Run.open(Path(name))  # explains why it is not a run
            raise
    given = recipes.parse(texts, {"modality": modality}, default_section="evaluation")
    return dict(given), {"encoder": name, "modality": modality}


def export(
    run: RunArgument,
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="The folder to write: empty or not there yet.")
    ],
    onnx: Annotated[
        bool, typer.Option(help="Also write an ONNX graph and compare its output with torch's.")
    ] = True,
    layout: Annotated[
        list[str] | None,
        typer.Option(
            help="For images, a further format: huggingface or detectron2; may be repeated."
        ),
    ] = None,
    licence: Annotated[
        str,
        typer.Option("--license", help="The licence in the model card, such as mit or cc-by-4.0."),
    ] = "unknown",
    push: Annotated[
        str | None,
        typer.Option(
            metavar="OWNER/NAME",
            help="Also upload the folder to the Hugging Face hub, with your login there.",
        ),
    ] = None,
    private: Annotated[
        bool, typer.Option("--private", help="A new model on the hub is yours alone to see.")
    ] = False,
) -> None:
    """Write the encoder for other libraries: safetensors, ONNX and more, with a model card."""
    from macl import api

    written = api.export(
        run,
        folder,
        onnx=onnx,
        layouts=layout or (),
        licence=licence,
        push=push,
        private=private,
        progress=True,
    )
    message(f"in {escaped(str(folder))}:")
    for line in written:
        message(f"  {escaped(line)}")
