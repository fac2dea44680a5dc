"""What to do with a trained encoder: `macl evaluate`, `macl embed`, `macl export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import Overrides, RunArgument
from macl.cli.console import escaped, scores_table, tell
from macl.errors import UserError


def evaluate(
    run: Annotated[
        Path,
        typer.Argument(
            help="A run folder; or a sentence encoder: a folder that Hugging Face or "
            "sentence-transformers saved, or package:NAME."
        ),
    ],
    overrides: Overrides = None,
    data: Annotated[
        Path | None, typer.Option(help="Judge on this data instead; for text, also SentEval's.")
    ] = None,
    protocol: Annotated[
        str | None,
        typer.Option(
            "--protocol",
            "--tasks",
            help="Only these, comma-separated: knn, linear, geometry, … or for text sts, transfer, "
            "STS-B, …",
        ),
    ] = None,
    best: Annotated[bool, typer.Option("--best", help="The best monitored encoder.")] = False,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the scores here too: .json")
    ] = None,
) -> None:
    """Judge an encoder; a run's results go to its results.json. KEY=VALUE sets protocol options."""
    if output is not None and output.suffix != ".json":
        raise UserError(f"{output}: scores are written as JSON; give a name that ends in .json.")
    from macl.evaluation.judge import judge, write_scores
    from macl.runs import Run

    given = list(overrides or ())
    if _is_text_encoder(run):
        from macl.modalities.text.judging import judge_text_encoder

        if best:
            raise UserError(f"--best: {run} is no run, so nothing of it was monitored.")
        scores = judge_text_encoder(run, given, data=data, tasks=protocol)
    else:
        scores = judge(Run.open(run), given, data=data, protocol=protocol, best=best)
    scores_table(scores)
    if output is not None:
        write_scores(output, str(run), scores)
        tell(f"written: {escaped(str(output))}")


def embed(
    run: RunArgument,
    source: Annotated[Path, typer.Argument(metavar="INPUT", help="A file or folder to embed.")],
    output: Annotated[Path, typer.Option("--output", "-o", help=".parquet, .npy or .npz")],
) -> None:
    """Turn your data into vectors, with their names beside them."""
    from macl.runs import Run
    from macl.vectors import check_suffix, write_vectors

    check_suffix(output)
    opened = Run.open(run)
    dataset = opened.modality.open(opened.recipe.data, source)
    vectors = opened.embed(dataset)
    write_vectors(output, vectors, dataset.names)
    tell(f"{len(vectors):,} vectors of {vectors.shape[1]} dimensions in {escaped(str(output))}")


def export(
    run: RunArgument,
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Where to write.")],
    onnx: Annotated[bool, typer.Option(help="Also an ONNX graph, checked against torch.")] = True,
) -> None:
    """Take the encoder elsewhere: safetensors with the usual key names, and ONNX."""
    from macl.export import export_run
    from macl.runs import Run

    for line in export_run(Run.open(run), folder, onnx=onnx):
        tell(escaped(line))


def _is_text_encoder(path: Path) -> bool:
    if (path / "recipe.yaml").is_file():
        return False
    from macl.modalities.text.folders import looks_like_encoder

    return looks_like_encoder(path)
