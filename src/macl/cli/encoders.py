"""What to do with a trained encoder: `macl evaluate`, `macl embed`, `macl export`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from macl.cli.arguments import Overrides, RunArgument
from macl.cli.console import escaped, scores_table, tell
from macl.core.errors import UserError
from macl.core.launch import launched_rank

if TYPE_CHECKING:
    from macl.probes.score import Score


def evaluate(
    run: Annotated[
        str | None,
        typer.Argument(
            help="A run folder; or an encoder, as with --encoder.",
        ),
    ] = None,
    overrides: Overrides = None,
    encoder: Annotated[
        str | None,
        typer.Option(
            metavar="FILE_OR_NAME",
            help="Judge this instead of a run. Images: a .safetensors or .pth file, a folder of "
            "Hugging Face's, or a recipe's name for an encoder (untrained). Text: a folder of "
            "Hugging Face's or sentence-transformers', or package:NAME.",
        ),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="Judge on this data instead: also SentEval's for text, VOC for images."),
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "--tasks",
            help="Only these, comma-separated: knn, linear, geometry, voc-detection, … or for text "
            "sts, transfer, STS-B, …",
        ),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best monitored encoder.")] = False,
    figures: Annotated[
        Path | None, typer.Option(help="Draw what voc-detection sees into this folder.")
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the scores here too: .json")
    ] = None,
) -> None:
    """Judge an encoder; a run's results go to its results.json. KEY=VALUE sets protocol options."""
    if output is not None and output.suffix != ".json":
        raise UserError(f"{output}: scores are written as JSON; give a name that ends in .json.")
    given = list(overrides or ())
    if encoder is not None and run is not None:
        given.insert(0, run)  # the first KEY=VALUE, where a run would stand
    name = encoder or run
    if name is None:
        raise UserError("say what to judge: a run folder, or --encoder FILE_OR_NAME.")
    if figures is not None:
        if protocol is not None and "voc-detection" not in protocol:
            raise UserError("--figures draws detections: it needs --protocol voc-detection.")
        given.append(f"evaluation.detection.figures={figures.resolve()}")
    is_run = encoder is None and (Path(name) / "recipe.yaml").is_file()
    if best and not is_run:
        raise UserError(f"--best: {name} is no run, so nothing of it was monitored.")
    protocols = None if protocol is None else [each.strip() for each in protocol.split(",")]
    from macl.core.signals import Interrupted

    try:
        scores = (
            _evaluate_run(name, given, data, protocols, best)
            if is_run
            else _evaluate_encoder(name, given, data, protocols)
        )
    except Interrupted as stop:
        tell(f"stopped by {stop}; the same command goes on from there.")
        sys.exit(130)
    if launched_rank() != 0:
        return
    scores_table(scores)
    if output is not None:
        from macl.evaluation.evaluate import write_scores

        write_scores(output, name, scores)
        tell(f"written: {escaped(str(output))}")


def embed(
    run: RunArgument,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file or folder to embed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".parquet, .npy, .npz or .csv")],
    overrides: Overrides = None,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace files that are there already.")
    ] = False,
) -> None:
    """Turn your data into vectors, with their names beside them. KEY=VALUE says how to read it,
    such as data.column=sentence.
    """
    from macl import recipes
    from macl.runs import Run
    from macl.runs.vectors import check_output, write_vectors

    check_output(output, overwrite)
    opened = Run.open(run)
    given = recipes.parse(overrides or (), opened.recipe.model_dump(mode="json"))
    dataset = opened.open_data(source, given)
    vectors = opened.embed(dataset)
    written = write_vectors(
        output,
        vectors,
        dataset.names,
        rows=dataset.rows,
        skipped=dataset.skipped_rows,
        overwrite=overwrite,
    )
    files = ", ".join(map(str, written))
    tell(f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions in {escaped(files)}")


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write.")],
    onnx: Annotated[bool, typer.Option(help="Also an ONNX graph, checked against torch.")] = True,
    layout: Annotated[
        list[str] | None,
        typer.Option(help="Images, once for each: also as huggingface, detectron2."),
    ] = None,
    licence: Annotated[
        str, typer.Option("--license", help="For the model card, such as mit or cc-by-4.0.")
    ] = "unknown",
) -> None:
    """Take the encoder elsewhere: safetensors with the usual names, ONNX and more, with a card."""
    from macl.runs import Run
    from macl.runs.export import export_run

    written = export_run(Run.open(run), folder, onnx=onnx, layouts=layout or (), licence=licence)
    tell(f"in {escaped(str(folder))}:")
    for line in written:
        tell(f"  {escaped(line)}")


def _evaluate_run(
    name: str, overrides: list[str], data: Path | None, protocols: list[str] | None, best: bool
) -> list[Score]:
    from macl import recipes
    from macl.evaluation.evaluate import evaluate
    from macl.runs import Run

    run = Run.open(Path(name))
    given = recipes.parse(_full_keys(overrides), run.recipe.model_dump(mode="json"))
    return evaluate(run, given, data=data, protocols=protocols, best=best)


def _evaluate_encoder(
    name: str, overrides: list[str], data: Path | None, protocols: list[str] | None
) -> list[Score]:
    from macl.evaluation.evaluate import evaluate_encoder, recognise
    from macl.recipes.parsing import parse_for
    from macl.recipes.schema import sections_model

    modality = recognise(name).name
    given = parse_for(_full_keys(overrides), sections_model(modality))
    return evaluate_encoder(name, given, modality=modality, data=data, protocols=protocols)


def _full_keys(overrides: list[str]) -> list[str]:
    """Keys outside the sections are those of the evaluation."""
    sections = ("evaluation.", "data.", "encoder.", "views.")
    return [text if text.startswith(sections) else f"evaluation.{text}" for text in overrides]
