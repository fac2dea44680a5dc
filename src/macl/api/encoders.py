"""What is done with a trained encoder: evaluate, embed, export, diagnose, report."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.api.common import PathLike, RunLike, data_overrides, open_run, progress_bars, run_folder
from macl.core.errors import UserError

if TYPE_CHECKING:
    from macl import runs
    from macl.api.objects import Match, Vectors
    from macl.diagnosis import Diagnosis
    from macl.modalities.protocols import Dataset
    from macl.probes.score import Score
    from macl.recipes import Overrides
    from macl.reporting import Projection


def evaluate(
    run: RunLike | None = None,
    *,
    encoder: PathLike | None = None,
    modality: str | None = None,
    data: PathLike | None = None,
    protocols: Sequence[str] | None = None,
    best: bool = False,
    overrides: Overrides | None = None,
    progress: bool = False,
) -> list[Score]:
    """Evaluate the encoder of a run, and record the scores in its results.json; or an `encoder`.

    Args:
        run: a run or its folder.
        encoder: instead of a run: a weights file, an exported folder, or a recipe's encoder name.
        modality: of the `encoder`, where its form does not show it.
        data: evaluate on this file or folder instead of the recipe's data.
        protocols: instead of the recipe's: ["knn", "linear"].
        best: the best monitored encoder instead of the last one; its scores are recorded beside
            those of the last one, with encoder="best".
        overrides: of the evaluation and data sections: {"evaluation.k": 5}.
        progress: show progress bars.
    """
    from macl.evaluation import evaluate as module

    if (run is None) == (encoder is None):
        raise UserError("give either a run or an encoder to evaluate.")
    place = None if data is None else Path(data)
    with progress_bars(progress):
        if run is not None:
            return module.evaluate(
                open_run(run), overrides, data=place, protocols=protocols, best=best
            )
        if best:
            raise UserError(f"best: {encoder} is not a run, so it has no monitored encoder.")
        return module.evaluate_encoder(
            str(encoder), overrides, modality=modality, data=place, protocols=protocols
        )


def embed(
    run: RunLike,
    source: PathLike | Sequence[Any] | Dataset,
    *,
    overrides: Overrides | None = None,
    progress: bool = False,
) -> Vectors:
    """Turn data into vectors with the encoder of a run.

    Args:
        run: a run or its folder.
        source: a file, a folder, a data set object, or a list: of sentences or SMILES strings for
            text and molecules, of networkx graphs or PyG `Data` for graphs.
        overrides: of the data section, for how `source` is read: {"data.column": "sentence"}.
        progress: show a progress bar.
    """
    from macl.api.objects import Vectors

    opened = open_run(run)
    with progress_bars(progress), _items_file(source, opened) as file:
        if isinstance(source, list | tuple) and file is None:
            dataset: Any = opened.modality.from_objects(opened.recipe.data, source)
        elif file is None:
            dataset = source
        else:
            dataset = opened.open_data(file, overrides)
        vectors = opened.embed(dataset)
        return Vectors(vectors, list(dataset.names), dataset.rows, dataset.skipped_rows)


def search(
    run: RunLike,
    query: PathLike,
    vectors: PathLike | Vectors,
    *,
    k: int = 10,
    overrides: Overrides | None = None,
) -> list[Match]:
    """List the stored vectors nearest to a query, by cosine similarity, nearest first.

    Args:
        run: the run, or its folder, whose encoder made the vectors.
        query: a file with one item; or, for encoders of text, the text itself. With image–text
            either side searches either: a text finds pictures, a picture finds texts.
        vectors: a file that `macl embed` wrote, or what `macl.embed` returned.
        k: how many to list.
        overrides: of the data section, for how a query file is read.
    """
    from macl.api.objects import Match, Vectors
    from macl.core.similarity import nearest_by_cosine
    from macl.runs.vectors import read_vectors

    if k < 1:
        raise UserError(f"k={k}: list one at least.")
    stored = vectors if isinstance(vectors, Vectors) else read_vectors(Path(vectors))
    opened = open_run(run)
    is_text = opened.modality.line_suffix is not None and not Path(query).exists()
    found = embed(opened, [str(query)] if is_text else query, overrides=overrides)
    if len(found) != 1:
        raise UserError(f"{query} holds {len(found):,} items; a query is one item.")
    if found.values.shape[1] != stored.values.shape[1]:
        raise UserError(
            f"the vectors have {stored.values.shape[1]} dimensions and the run's encoder gives "
            f"{found.values.shape[1]}: they were made by another encoder."
        )
    scores, rows = nearest_by_cosine(found.values[0], stored.values, k)
    pairs = zip(rows.tolist(), scores.tolist(), strict=True)
    return [Match(stored.names[row], score, row) for row, score in pairs]


def export(
    run: RunLike,
    folder: PathLike,
    *,
    onnx: bool = True,
    layouts: Sequence[str] = (),
    licence: str = "unknown",
    progress: bool = False,
) -> list[str]:
    """Write the encoder of a run for other libraries; returns what was written, one line each.

    Args:
        run: a run or its folder.
        folder: is empty or does not exist.
        onnx: also write an ONNX graph, where the encoder's input is a tensor.
        layouts: further formats: "huggingface", "detectron2" for images.
        licence: for the model card.
        progress: show progress bars.
    """
    from macl.runs.export import export_run

    with progress_bars(progress):
        return export_run(open_run(run), Path(folder), onnx=onnx, layouts=layouts, licence=licence)


def diagnose(
    run: RunLike,
    *,
    data: PathLike | None = None,
    items: int = 1024,
    overrides: Overrides | None = None,
    progress: bool = False,
) -> Diagnosis:
    """Report whether a run suffers from either dilemma or collapse, and what to change.

    The findings are also written to diagnosis.json in the run's folder.

    Args:
        run: a run or its folder.
        data: where its training data is now, if it moved.
        items: training items to look at; whole batches, one at least.
        overrides: of the data section.
        progress: show a progress bar.
    """
    from macl.evaluation.diagnose import diagnose_run, write_diagnosis

    opened = open_run(run)
    with progress_bars(progress):
        found = diagnose_run(opened, {**data_overrides(data), **(overrides or {})}, items)
    write_diagnosis(opened, found)
    return found


def report(
    source: RunLike | Sequence[RunLike],
    output: PathLike | None = None,
    *,
    points: int | None = None,
    data: PathLike | None = None,
    projection: Projection | str | None = None,
    figures: PathLike | None = None,
    progress: bool = False,
) -> list[Path]:
    """Write one self-contained page of a run, of several runs, or of a comparison.

    Args:
        source: a run, a comparison's folder, or a list of runs.
        output: the page; by default report.html in the folder of `source`, or in the current one
            for several.
        points: the most items on the map; 2000 by default.
        data: where the run's data is now, if it moved.
        projection: of the map, "umap" or "pca".
        figures: a folder for every figure as PNG and PDF.
        progress: show progress bars.

    Returns:
        The files that were written, the page first.
    """
    from macl.reporting import Projection
    from macl.reporting.build import write_report

    several = isinstance(source, Sequence) and not isinstance(source, str)
    sources: Any = source if several else [source]
    folders = [run_folder(each) for each in sources]
    if not folders:
        raise UserError("give at least one run to report.")
    alone = len(folders) == 1
    page = Path(output) if output is not None else (folders[0] if alone else Path()) / "report.html"
    with progress_bars(progress):
        return write_report(
            folders[0] if alone else folders,
            page,
            points=points,
            data=None if data is None else Path(data),
            projection=None if projection is None else Projection(projection),
            figures=None if figures is None else Path(figures),
        )


@contextmanager
def _items_file(source: Any, run: runs.Run) -> Iterator[Path | None]:
    """The file or folder of `source`: itself, a temporary one for lines; None for a data set."""
    if isinstance(source, str | os.PathLike):
        yield Path(source)
        return
    if not (isinstance(source, list | tuple) and all(isinstance(line, str) for line in source)):
        yield None
        return
    suffix = run.modality.line_suffix
    if suffix is None:
        raise UserError(
            f"lines of text are no input for {run.recipe.modality}: give a file or a folder."
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / f"lines{suffix}"
        file.write_text("".join(f"{line}\n" for line in source), encoding="utf-8")
        yield file
