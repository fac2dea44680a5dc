"""Two towers as one encoder: images and texts in, vectors of one space out; and their export."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import torch
import torch.nn.functional as F
from safetensors.torch import save_file
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_linear_bn_eval

from macl.core.errors import UserError
from macl.core.installed import require
from macl.methods.base import out_dim
from macl.methods.heads import build_head
from macl.modalities.protocols import Graph
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.folders import SENTENCES, save_text_encoder, write_json, write_modules
from macl.recipes.methods import HeadConfig

FEATURES = "features"
"""Key of a text view that holds the tower's output in place of tokens."""

TOLERANCE = 1e-5
NOTHING, RELU = "torch.nn.modules.linear.Identity", "torch.nn.modules.activation.ReLU"
"""Activations as sentence-transformers names them."""


class TwoTowers(nn.Module):
    """An image tower and a text tower, each with a projection: `forward(view) -> (B, out_dim)`.

    A view that is a mapping of token tensors goes through the text tower, a tensor through the
    image tower. A frozen tower keeps its weights, its running statistics and has no dropout. A
    mapping with the frozen text tower's own output, `features`, is only projected.
    """

    image: Any
    text: Any
    captions: Sequence[str] | None = None
    """The distinct captions of the training data, where views may give their features."""
    image_section: Any = None
    """The recipe section of the image tower, where it has one."""
    clip_config: Any = None
    """The configuration of transformers that both towers are of, where they are a CLIP's."""

    def __init__(
        self,
        image: nn.Module,
        text: nn.Module,
        dim: int = 128,
        hidden: Sequence[int] = (),
        frozen: Sequence[str] = (),
        projections: tuple[nn.Module, nn.Module] | None = None,
    ) -> None:
        super().__init__()
        self.image, self.text = image, text
        if projections is None:
            head = HeadConfig(widths=(*hidden, dim), bias=False)
            projections = build_head(head, out_dim(image)), build_head(head, out_dim(text))
        self.image_projection, self.text_projection = projections
        self.out_dim = dim
        self.frozen = tuple(frozen)
        for name in self.frozen:
            self.get_submodule(name).requires_grad_(False)

    def forward(self, view: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Images (B, 3, H, W) or tokens (B, T) to (B, out_dim), not of unit length."""
        if isinstance(view, Mapping):
            features = view[FEATURES] if FEATURES in view else self.text(view)
            projected: Tensor = self.text_projection(features)
        else:
            projected = self.image_projection(self.image(view))
        return projected

    def train(self, mode: bool = True) -> Self:
        """Training mode for all but the frozen towers."""
        super().train(mode)
        for name in self.frozen:
            self.get_submodule(name).eval()
        return self


TRACED = ("a red heart", "two dogs run along the beach")
CHECKED = ("rain", "a man is playing a guitar in the rain", "three")
"""Texts that the text tower is traced and checked with."""


def tower_graphs(towers: TwoTowers, side: int) -> list[Graph]:
    """image.onnx takes images (B, 3, side, side), text.onnx what the tokenizer makes of texts."""
    inputs, others = (towers.text.tokenize(list(texts)) for texts in (TRACED, CHECKED))
    # A tower that pads every text to its full length has one length only.
    lengths = {value.shape[1] for value in (*inputs.values(), *others.values())}
    free = (0,) if len(lengths) == 1 else (0, 1)
    return [
        Graph("image.onnx", towers, {"pixels": torch.zeros(2, 3, side, side)}),
        Graph("text.onnx", towers, inputs, as_mapping=True, others=others, free=free),
    ]


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
        expected = F.normalize(towers.eval()(text.tokenize(SENTENCES, max_length)), dim=1).cpu()
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
    return layers
