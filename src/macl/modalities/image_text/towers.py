"""Two towers as one encoder: pictures and texts in, vectors of one space out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn
from typing_extensions import Self

from macl.methods.base import out_dim
from macl.methods.heads import mlp
from macl.modalities.image_text.features import FEATURES


class TwoTowers(nn.Module):
    """An image tower and a text tower, each with a projection: `forward(view) -> (B, out_dim)`.

    A view that is a mapping of token tensors goes through the text tower, a tensor through the
    image tower. A frozen tower keeps its weights, its running statistics and has no dropout. A
    mapping with the frozen text tower's own output, `features`, is only projected.
    """

    captions: Sequence[str] | None = None
    """The distinct captions of the training data, where views may give their features."""

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
            heads = [mlp([out_dim(tower), *hidden, dim], bias=False) for tower in (image, text)]
            projections = heads[0], heads[1]
        self.image_projection, self.text_projection = projections
        self.out_dim = dim
        self.frozen = tuple(frozen)
        for name in self.frozen:
            self.get_submodule(name).requires_grad_(False)

    @property
    def tokenize(self) -> Any:
        """The text tower's function from texts to token tensors."""
        return self.text.tokenize

    def forward(self, view: Tensor | Mapping[str, Tensor]) -> Tensor:
        """Pictures (B, 3, H, W) or tokens (B, T) to (B, out_dim), not of unit length."""
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
