"""What is done with a trained encoder: `macl evaluate`, `export`, `diagnose` and `report`."""

from __future__ import annotations

import json
from pathlib import Path

from typer import Argument, Option

from macl import api
from macl.api.common import existing
from macl.cli import arguments
from macl.cli.arguments import placed, stored_recipe, typed
from macl.cli.console import message, scores_table, table, written
from macl.core.errors import UserError
from macl.core.files import require_new, write_text
from macl.core.launch import launched_rank
from macl.core.shown import shown
from macl.modalities.hub import local_encoder
from macl.reporting import Projection


def evaluate(
    run: str | None = Argument(None, help="A run folder; or an encoder, as with --encoder."),
    overrides: list[str] | None = Argument(
        None,
        metavar="[KEY=VALUE]...",
        help="Options of the protocols, such as k=5 or linear.epochs=20, and data.KEY=VALUE.",
    ),
    encoder: str | None = Option(
        None,
        metavar="FILE_OR_NAME",
        help="Evaluate this instead of a run: what `macl export` wrote; for images also a "
        ".safetensors or .pth file, a Hugging Face folder, or a recipe's encoder name (untrained); "
        "for text a folder of Hugging Face or sentence-transformers, or package:NAME.",
    ),
    modality: str | None = Option(None, help="Of --encoder, where its form does not show it."),
    data: Path | None = Option(
        None,
        callback=existing,
        help="Evaluate on this file or folder instead of the recipe's data: for text also "
        "SentEval's folder, for images also a VOCdevkit.",
    ),
    protocol: str | None = Option(
        None,
        "--protocol",
        "--tasks",
        help="Only these protocols, comma-separated. Images: knn, linear, geometry, voc-detection; "
        "text: knn, logistic, sts, transfer or a task such as STS-B; graphs: svm, logistic, knn; "
        "molecules also finetune.",
    ),
    best: bool = Option(False, "--best", help="The best monitored encoder, not the last."),
    dims: int | None = Option(None, min=1, help="Only so many first coordinates of embeddings."),
    figures: Path | None = Option(None, help="Folder for pictures of what voc-detection finds."),
    output: Path | None = Option(None, "--output", "-o", help="Also write the scores as .json."),
    download: arguments.Download = False,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """Evaluate an encoder; the scores of a run also go to its results.json."""
    encoder, run = (name and local_encoder(name, download) for name in (encoder, run))
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
    stored = stored_recipe(name) if encoder is None else None
    protocols = None if protocol is None else [part.strip() for part in protocol.split(",")]
    given = typed(texts, name, modality=modality, default_section="evaluation")
    if stored is not None and protocols is not None:  # checked before torch is imported
        from macl import recipes

        recipes.override(recipes.resolve_file(stored), {"evaluation.protocols": protocols})
    if figures is not None:
        given["evaluation.detection.figures"] = figures.absolute()
    scores = api.evaluate(
        run=name if stored is not None else None,
        encoder=name if stored is None else None,
        modality=modality,
        overrides=given,
        data=data,
        protocols=protocols,
        best=best,
        dims=dims,
        progress=True,
        **placed(device, precision),
    )
    if launched_rank() != 0:
        return
    scores_table(scores)
    if output is not None:
        document = {"encoder": name, "scores": [score.as_dict() for score in scores]}
        write_text(output, json.dumps(document, indent=2, default=str))
        written(output)


def export(
    run: arguments.Run,
    folder: Path = Argument(metavar="DIR", help="The folder to write: empty or not there yet."),
    onnx: bool = Option(True, help="Also write an ONNX graph and compare its output with torch's."),
    layout: list[str] | None = Option(
        None, help="For images, a further format: huggingface or detectron2; may be repeated."
    ),
    licence: str = Option("unknown", "--license", help="For the model card, such as cc-by-4.0."),
    push: str | None = Option(
        None, metavar="OWNER/NAME", help="Also upload it to the Hugging Face hub, with your login."
    ),
    private: bool = Option(False, "--private", help="A new model on the hub is for you alone."),
) -> None:
    """Write the encoder for other libraries: safetensors, ONNX and more, with a model card."""
    from macl import recipes

    require_new(folder, "choose another folder to export to")  # before torch is imported
    recipes.require_run(run)
    lines = api.export(
        run,
        folder,
        onnx=onnx,
        layouts=layout or (),
        licence=licence,
        push=push,
        private=private,
        progress=True,
    )
    message(f"in {folder}:")
    for line in lines:
        message(f"  {line}")


def diagnose(
    run: arguments.Run,
    data: arguments.MovedData = None,
    items: int = Option(1024, min=2, help="Training items to encode, in whole batches."),
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """Report whether a run suffers from either dilemma or collapse, and what to change."""
    from macl import recipes

    recipes.require_run(run)  # before torch is imported
    where = placed(device, precision)
    diagnosis = api.diagnose(run, data=data, items=items, progress=True, **where)
    print(shown(diagnosis.verdict))
    for note in diagnosis.notes:
        message(note)
    findings = [(f.name, f.verdict, f.words) for f in diagnosis.findings]
    table(f"Diagnosis of {run}", ("finding", "verdict", "explanation"), findings)
    if diagnosis.advice:
        table("Advice", ("change", "because"), [(a.change, a.reason) for a in diagnosis.advice])
    written(run / "diagnosis.json")


def report(
    sources: list[Path] = Argument(
        metavar="RUN|COMPARISON...", help="A folder of `macl train` or `compare`, or several runs."
    ),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="The page to write. Default: report.html in the folder, or in the current one for "
        "several runs.",
    ),
    points: int | None = Option(None, min=2, help="Most items on the map. Default: 2000."),
    data: arguments.MovedData = None,
    projection: Projection | None = Option(
        None,
        help="How the map reduces embeddings to two dimensions. Default: pca below 1,000 items, "
        "else umap if it is installed.",
    ),
    figures: Path | None = Option(None, help="Also write figures as PNG and PDF into this folder."),
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    paths: bool = Option(False, "--paths", help="Keep the paths of this machine in the page."),
) -> None:
    """Write one self-contained page: curves, results, a map of embeddings and the diagnosis."""
    for source in sources:
        existing(source)
    files = api.report(
        sources,
        output,
        points=points,
        data=data,
        projection=projection,
        figures=figures,
        paths=paths,
        progress=True,
        **placed(device, precision),
    )
    written(*files)
