"""What is done with a trained encoder: evaluate, export, diagnose, report."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from macl.api.common import PathLike, data_overrides, existing, progress_bars
from macl.core.devices import place
from macl.core.errors import UserError
from macl.core.files import write_text
from macl.diagnosis import Diagnosis
from macl.evaluation.score import score_encoder, score_run
from macl.modalities import hub
from macl.probes.score import Score
from macl.recipes import Overrides
from macl.reporting import Projection
from macl.reporting.build import write_report
from macl.runs.elsewhere import RunLike, open_run, run_folder
from macl.runs.export import export_run


def evaluate(
    run: RunLike | None = None,
    *,
    encoder: PathLike | None = None,
    modality: str | None = None,
    data: PathLike | None = None,
    protocols: Sequence[str] | None = None,
    best: bool = False,
    dims: int | None = None,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> list[Score]:
    """Evaluate the encoder of a run, and record the scores in its results.json; or an `encoder`.

        macl.evaluate("runs/digits", protocols=["knn"])

    `device`, `precision`, `progress` are as in `embed`.

    Args:
        run: a run or its folder.
        encoder: instead of a run: a weights file, an exported folder, a recipe's encoder name,
            hf:NAME.
        modality: of the `encoder`, where its form does not show it.
        data: evaluate on this file or folder instead of the recipe's data.
        protocols: instead of the recipe's: ["knn", "linear"].
        best: the best monitored encoder instead of the last; recorded with encoder="best".
        dims: only the first coordinates of every embedding; such scores are not recorded.
        overrides: of the evaluation and data sections: {"evaluation.k": 5}.
    """
    if (run is None) == (encoder is None):
        raise UserError("give either a run or an encoder to evaluate.")
    if best and run is None:
        raise UserError(f"best: {encoder} is not a run, so it has no monitored encoder.")
    how: dict[str, Any] = {"data": existing(data), "protocols": protocols, "dims": dims}
    with progress_bars(progress):
        if run is not None:
            return score_run(open_run(run, device, precision), overrides, best=best, **how)
        name, placement = hub.local_encoder(str(encoder)), place(device, precision)
        return score_encoder(name, overrides, modality=modality, placement=placement, **how)


def export(
    run: RunLike,
    folder: PathLike,
    *,
    onnx: bool = True,
    layouts: Sequence[str] = (),
    licence: str = "unknown",
    push: str | None = None,
    private: bool = False,
    progress: bool = False,
) -> list[str]:
    """Write the encoder of a run for other libraries; returns what was written, one line each.

        macl.export("runs/digits", "exported", licence="mit")

    It runs on the CPU, whose results the written files are compared with.

    Args:
        run: a run or its folder.
        folder: is empty or does not exist.
        onnx: also write an ONNX graph, where the encoder's input is a tensor.
        layouts: further formats: "huggingface", "detectron2" for images.
        licence: for the model card.
        push: also upload the folder to the Hugging Face hub as OWNER/NAME, with your login there.
        private: a model that is new on the hub is seen by its owner alone.
        progress: show progress bars.
    """
    opened = open_run(run, "cpu")
    with progress_bars(progress):
        lines = export_run(opened, Path(folder), onnx=onnx, layouts=layouts, licence=licence)
        if push is not None:
            lines.append(f"on the hub: {hub.push(Path(folder), push, private)}")
        return lines


def diagnose(
    run: RunLike,
    *,
    data: PathLike | None = None,
    items: int = 1024,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> Diagnosis:
    """Report whether a run suffers from either dilemma or collapse, and what to change.

        print(macl.diagnose("runs/digits"))

    The findings are also written to diagnosis.json in the run's folder.

    `device`, `precision`, `progress` are as in `embed`.

    Args:
        run: a run or its folder.
        data: where its training data is now, if it moved.
        items: training items to look at; whole batches, one at least.
        overrides: of the data section.
    """
    opened = open_run(run, device, precision)
    from macl.evaluation.diagnose import diagnose_run  # imports lightning

    with progress_bars(progress):
        given = {**data_overrides(data), **(overrides or {})}
        diagnosis = diagnose_run(opened, given, items)
    text = json.dumps(diagnosis.as_dict(), indent=2, ensure_ascii=False)
    write_text(opened.folder / "diagnosis.json", text)
    return diagnosis


def report(
    source: RunLike | Sequence[RunLike],
    output: PathLike | None = None,
    *,
    points: int | None = None,
    data: PathLike | None = None,
    projection: Projection | str | None = None,
    figures: PathLike | None = None,
    device: str = "auto",
    precision: str = "auto",
    paths: bool = False,
    progress: bool = False,
) -> list[Path]:
    """Write one self-contained page of a run, of several runs, or of a comparison.

        macl.report("runs/digits", "page.html", figures="figures")

    `device`, `precision`, `progress` are as in `embed`.

    Args:
        source: a run, a comparison's folder, or a list of runs.
        output: the page; by default report.html in the run's folder, or here for several.
        points: the most items on the map; 2000 by default.
        data: where the run's data is now, if it moved.
        projection: of the map, "umap" or "pca".
        figures: a folder for every figure as PNG and PDF.
        paths: keep the paths of this machine in the page; else it has the last part of each.

    Returns:
        The files that were written, the page first.
    """
    several = isinstance(source, Sequence) and not isinstance(source, str)
    sources: Any = source if several else [source]
    folders = [run_folder(each) for each in sources]
    home = folders[0] if len(folders) == 1 else Path()
    page = Path(output) if output is not None else home / "report.html"
    with progress_bars(progress):
        return write_report(
            folders,
            page,
            points=points,
            data=existing(data),
            projection=None if projection is None else Projection(projection),
            figures=None if figures is None else Path(figures),
            placement=place(device, precision),
            paths=paths,
        )
