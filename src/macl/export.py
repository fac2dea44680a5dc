"""Encoders that travel: weights under their usual names, and an ONNX graph that is checked."""

from __future__ import annotations

import logging
import warnings
from pathlib import Path

import torch
from torch import Tensor, nn

from macl.config import UserError
from macl.runs import Run

TOLERANCE = 1e-4
"""Largest difference between torch and ONNX Runtime that passes, relative to the features."""


def export_run(run: Run, folder: Path, *, onnx: bool = True) -> list[str]:
    """Write the encoder of `run` into `folder`; returns what was written, in words.

    Raises:
        UserError: the folder holds something already, or ONNX is not installed.
    """
    if folder.exists() and any(folder.iterdir()):
        raise UserError(f"{folder} is not empty; choose another folder to export to.")
    encoder = run.encoder
    example = run.modality.example(run.recipe.views) if onnx else None
    if example is not None:
        _require_onnx()
    folder.mkdir(parents=True, exist_ok=True)
    weights = run.modality.export(
        encoder, folder, {"recipe": run.recipe.name, "loss": run.recipe.loss.name}
    )
    written = [f"{weights}: {_size(encoder):,} numbers"]
    if example is not None:
        difference = export_onnx(encoder, example, folder / "encoder.onnx")
        written.append(
            f"{folder / 'encoder.onnx'}: input {tuple(example.shape[1:])} per item, differs from "
            f"torch by at most {difference:.1e}"
        )
    return written


def export_onnx(encoder: nn.Module, example: Tensor, path: Path) -> float:
    """Write `encoder` as ONNX with a free batch size and compare it with torch on new input.

    Returns:
        The largest absolute difference, relative to the largest feature.
    """
    import onnxruntime

    encoder = encoder.eval()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        torch.onnx.export(
            encoder,
            (example,),
            path,
            input_names=["input"],
            output_names=["features"],
            dynamic_shapes=({0: torch.export.Dim("batch", min=1)},),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    fresh = torch.randn(3, *example.shape[1:], generator=torch.Generator().manual_seed(0))
    with torch.inference_mode():
        expected = encoder(fresh)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    (got,) = session.run(None, {"input": fresh.numpy()})
    scale = float(expected.abs().amax().clamp(min=1e-12))
    difference = float((torch.from_numpy(got) - expected).abs().amax()) / scale
    if not difference <= TOLERANCE:
        path.unlink()
        raise UserError(
            f"the ONNX graph differs from the encoder by {difference:.1e} and was removed. "
            "Export without it: --no-onnx."
        )
    return difference


def _require_onnx() -> None:
    from importlib.util import find_spec

    missing = [name for name in ("onnx", "onnxruntime", "onnxscript") if find_spec(name) is None]
    if missing:
        raise UserError(
            f"ONNX needs {', '.join(missing)}: pip install 'macl[onnx]', or export with --no-onnx."
        )


def _size(module: nn.Module) -> int:
    return sum(value.numel() for value in module.state_dict().values())
