"""The text tower with its projection as a folder that sentence-transformers opens."""

from __future__ import annotations

import copy
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from macl.core.errors import UserError
from macl.core.installed import require
from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.folders import SENTENCES, save_text_encoder, write_json, write_modules

TOLERANCE = 1e-5
NOTHING, RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"


def export_text_side(towers: TwoTowers, folder: Path, max_length: int | None) -> None:
    """Write the folder, whose vectors are those of the towers, of unit length, and read it back."""
    require("sentence_transformers", "text", "`layouts=sentence-transformers`")
    from sentence_transformers import SentenceTransformer

    text = towers.text
    if not isinstance(text, TextEncoder):
        raise UserError(
            "`layouts=sentence-transformers` is for text towers with a pooling; a CLIP or SigLIP "
            "is written by `layouts=huggingface`."
        )
    save_text_encoder(text, folder, max_length)
    layers = _layers(towers.text_projection)
    for number, (layer, activation) in enumerate(layers, start=3 if text.normalize else 2):
        _write_dense(folder / f"{number}_Dense", layer, activation)
    write_modules(text, folder, *["Dense"] * len(layers), "Normalize")
    again = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    got = torch.as_tensor(again.encode(SENTENCES))
    with torch.inference_mode():
        expected = F.normalize(towers.eval()(towers.tokenize(SENTENCES, max_length)), dim=1).cpu()
    if not torch.allclose(got, expected, rtol=0, atol=TOLERANCE):
        raise UserError(f"{folder} does not give the text side's own vectors when read back.")


def _write_dense(folder: Path, layer: nn.Linear, activation: str) -> None:
    """A linear layer as the library stores one."""
    sizes = {"in_features": layer.in_features, "out_features": layer.out_features}
    others = {"bias": layer.bias is not None, "activation_function": activation}
    write_json(folder / "config.json", sizes | others)
    state = {f"linear.{name}": value.contiguous() for name, value in layer.state_dict().items()}
    save_file(state, folder / "model.safetensors")


def _layers(projection: nn.Module) -> list[tuple[nn.Linear, str]]:
    """The layers and their activations; batch normalization is folded into its layer."""
    layers: list[tuple[nn.Linear, str]] = []
    for module in copy.deepcopy(projection).cpu().eval().modules():
        if isinstance(module, nn.Linear):
            layers.append((module, NOTHING))
        elif isinstance(module, nn.BatchNorm1d):
            layers[-1] = (fuse_linear_bn_eval(layers[-1][0], module), NOTHING)
        elif isinstance(module, nn.ReLU):
            layers[-1] = (layers[-1][0], RELU)
        elif any(True for _ in module.parameters(recurse=False)):
            raise UserError(f"sentence-transformers has no module for {type(module).__name__}.")
    return layers
