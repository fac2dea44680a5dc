"""Export of encoders: other libraries' names, an ONNX graph, a model card, all checked."""

from __future__ import annotations

import json
import logging
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch

from macl.core.errors import UserError, nearest
from macl.core.files import atomic_folder, require_new, write_text
from macl.modalities.protocols import Graph
from macl.runs import Run
from macl.runs.model_card import model_card

TOLERANCE = 1e-5
"""Largest difference between torch and ONNX Runtime that passes, relative to the features."""


def export_run(
    run: Run,
    folder: Path,
    *,
    onnx: bool = True,
    layouts: Sequence[str] = (),
    licence: str = "unknown",
    results: str = "",
) -> list[str]:
    """Write the encoder of `run` into `folder`; returns a line for each file written.

    Every file is read back and compared with the encoder; the folder appears when all agree.
    """
    require_new(folder, "choose another folder to export to")
    known = run.modality.layouts
    if layouts and not known:
        raise UserError(f"`layouts=`: {run.recipe.modality} has no further layouts; leave it out.")
    unknown = [name for name in layouts if name not in known]
    if unknown:
        raise UserError(f"no layout is called {unknown[0]!r}.{nearest(unknown[0], known)}")
    encoder = run.encoder
    graphs = run.modality.graphs(encoder, run.recipe.views) if onnx else []
    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if graphs and missing:
        raise UserError(
            f"ONNX needs {', '.join(missing)}: pip install 'macl[onnx]', or use `onnx=False`."
        )
    with atomic_folder(folder) as partial:
        weights = run.modality.export(encoder, run.recipe.views, partial, _metadata(run))
        if not run.modality.reads_back(run.recipe.encoder, encoder, run.views, partial):
            raise UserError(
                f"{weights.name} does not give the encoder's own features when read back."
            )
        numbers = sum(value.numel() for value in encoder.state_dict().values())
        written = [f"{weights.name}: {numbers:,} numbers"]
        for name in dict.fromkeys(layouts):
            views = run.recipe.views
            made = run.modality.export_layout(name, run.encoder, views, partial, _metadata(run))
            written.append(f"{made}: {known[name]}")
        for graph in graphs:
            difference = export_onnx(graph, partial)
            taken = ", ".join(f"{k} {tuple(v.shape[1:])}" for k, v in graph.inputs.items())
            written.append(
                f"{graph.file}: {taken} per item, differs from torch by at most {difference:.1e}"
            )
        write_text(partial / "README.md", model_card(run, written, licence, results))
    return [*written, "README.md: the model card"]


def export_onnx(graph: Graph, folder: Path) -> float:
    """Write a graph into `folder`; returns its relative difference from torch on other input."""
    import onnxruntime

    network, path = graph.network.eval(), folder / graph.file
    # A batch may have one item; without min=1 torch does not allow for that.
    whole = {0: torch.export.Dim("batch", min=1), 1: torch.export.Dim.DYNAMIC}
    sizes = {dim: whole[dim] for dim in graph.free}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            network,
            (*graph.arguments(graph.inputs), {}),  # a mapping in the last place means keywords
            path,
            input_names=list(graph.inputs),
            output_names=["features"],
            dynamic_shapes=graph.arguments(dict.fromkeys(graph.inputs, sizes)),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    draw = torch.Generator().manual_seed(0)
    others = graph.others or {
        name: torch.randn(3, *value.shape[1:], generator=draw)
        for name, value in graph.inputs.items()
    }
    with torch.inference_mode():
        expected = network(*graph.arguments(others))
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {name: value.numpy() for name, value in others.items()})
    largest = expected.abs().amax().clamp(min=1e-12)
    difference = float((torch.from_numpy(got) - expected).abs().amax() / largest)
    if not difference <= TOLERANCE:
        path.unlink()
        raise UserError(
            f"{graph.file}, the ONNX graph, differs from the encoder by {difference:.1e} and was "
            "removed. Export without it: `onnx=False`."
        )
    return difference


def _metadata(run: Run) -> dict[str, str]:
    """For the header of the weights: where they come from, and how to rebuild the encoder."""
    recipe = run.recipe
    tuning = {"lora", "freeze", "batch_norm"}
    encoder = _portable(recipe.encoder.model_dump(exclude_none=True, exclude=tuning))
    return {
        "recipe": recipe.name,
        "modality": recipe.modality,
        "loss": "none" if recipe.loss is None else recipe.loss.name,
        "encoder": json.dumps(encoder),
        "views": json.dumps(recipe.views.model_dump(mode="json", exclude_none=True)),
    }


def _portable(encoder: dict[str, Any]) -> dict[str, Any]:
    """An encoder section without paths of this machine; weights are exported themselves."""
    return {
        key: _portable(value) if isinstance(value, dict) else value
        for key, value in encoder.items()
        if not isinstance(value, Path) and key != "allow_import"
    }
