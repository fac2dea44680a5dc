"""The text tower with its projection as a folder that sentence-transformers opens."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.folders import SENTENCES, save_text_encoder

TOLERANCE = 1e-5
MODULES = "sentence_transformers.models"
"""Where every version of the library looks for its modules."""
NOTHING, RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"

Layer = tuple[Tensor, Tensor | None, str]
"""Weight, bias and the name of the activation."""


def export_text_side(towers: TwoTowers, folder: Path, max_length: int | None) -> None:
    """Write the folder; its vectors are those of the towers, of unit length.

    Args:
        towers: whose text tower is a `TextEncoder`.
        folder: made here.
        max_length: tokens of a text that are read; None: as many as the tower takes.

    Raises:
        UserError: the library is not installed, or has no modules for this text side.
    """
    if importlib.util.find_spec("sentence_transformers") is None:
        raise UserError("--layout sentence-transformers: pip install sentence-transformers.")
    from sentence_transformers import SentenceTransformer

    text = towers.text
    if not isinstance(text, TextEncoder) or text.pooling == "first-last-mean":
        raise UserError(
            "--layout sentence-transformers is for text towers with cls or mean pooling; a CLIP or "
            "SigLIP is written by --layout huggingface."
        )
    save_text_encoder(text, folder, max_length)
    file = folder / "modules.json"
    modules = json.loads(file.read_text(encoding="utf-8"))
    for weight, bias, activation in _layers(towers.text_projection):
        path = f"{len(modules)}_Dense"
        _write_dense(folder / path, weight, bias, activation)
        modules.append({"path": path, "type": f"{MODULES}.Dense"})
    modules.append({"path": f"{len(modules)}_Normalize", "type": f"{MODULES}.Normalize"})
    (folder / modules[-1]["path"]).mkdir()
    numbered = [{**module, "idx": i, "name": str(i)} for i, module in enumerate(modules)]
    file.write_text(json.dumps(numbered, indent=2) + "\n", encoding="utf-8")
    again = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    got = torch.as_tensor(again.encode(SENTENCES))
    with torch.inference_mode():
        expected = F.normalize(towers.eval()(towers.tokenize(SENTENCES, max_length)), dim=1).cpu()
    if not torch.allclose(got, expected, rtol=0, atol=TOLERANCE):
        raise UserError(f"{folder} does not give the text side's own vectors when read back.")


def _write_dense(folder: Path, weight: Tensor, bias: Tensor | None, activation: str) -> None:
    """A linear layer as the library stores one."""
    folder.mkdir()
    content = {
        "in_features": weight.shape[1],
        "out_features": weight.shape[0],
        "bias": bias is not None,
        "activation_function": activation,
    }
    (folder / "config.json").write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    state = {"linear.weight": weight} | ({} if bias is None else {"linear.bias": bias})
    save_file({k: v.contiguous() for k, v in state.items()}, folder / "model.safetensors")


def _layers(projection: nn.Module) -> list[Layer]:
    """Weight, bias and activation of each layer; batch normalisation is folded into its layer.

    γ (W x − μ)/σ + β = (γ/σ) W x + (β − γ μ/σ)
    """
    found: list[Layer] = []
    for module in projection.modules():
        if isinstance(module, nn.Linear):
            bias = None if module.bias is None else module.bias.detach().cpu()
            found.append((module.weight.detach().cpu(), bias, NOTHING))
        elif isinstance(module, nn.BatchNorm1d):
            found[-1] = (*_folded(found[-1][0], found[-1][1], module), NOTHING)
        elif isinstance(module, nn.ReLU):
            found[-1] = (*found[-1][:2], RELU)
        elif any(True for _ in module.parameters(recurse=False)):
            raise UserError(f"sentence-transformers has no module for {type(module).__name__}.")
    return found


def _folded(weight: Tensor, bias: Tensor | None, norm: nn.BatchNorm1d) -> tuple[Tensor, Tensor]:
    assert norm.running_mean is not None
    assert norm.running_var is not None
    scale = (norm.running_var + norm.eps).rsqrt().cpu()
    shift = torch.zeros_like(scale)
    if norm.affine:
        scale, shift = scale * norm.weight.detach().cpu(), norm.bias.detach().cpu()
    mean = norm.running_mean.cpu() - (0.0 if bias is None else bias)
    return weight * scale.unsqueeze(1), shift - mean * scale
