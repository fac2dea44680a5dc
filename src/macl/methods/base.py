"""What the methods share: two views in, a contrast out, in three steps.

`prepare` happens once per step (MoCo moves its key encoder), `encode` works sample by sample,
`contrast` sees the whole batch. Kept apart so that a huge batch can be encoded in chunks.
"""

from __future__ import annotations

from typing import Any, ClassVar

from torch import Tensor, nn

from macl.core import batching
from macl.losses import Contrast, ContrastiveLoss
from macl.losses.contrastive import Form
from macl.methods.heads import build_head


class Method(nn.Module):
    """Base of the methods: a plain module, `method(view1, view2).loss.backward()` in any loop."""

    form: ClassVar[Form] = {}
    """What the method asks of its loss, for whoever builds one by name."""
    takes_negatives: ClassVar[bool] = False
    """Whether a third view may bring hard negatives."""

    def __init__(self, encoder: nn.Module, projector: nn.Module, loss: ContrastiveLoss) -> None:
        super().__init__()
        self.encoder, self.projector, self.loss = encoder, projector, loss

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> Method:
        """The method from its recipe section; by default with the projector alone.

        Args:
            section: the method's section, with a `projector`.
            encoder: has an attribute `out_dim`, the width of its output.
            loss: as the recipe names it, with the keywords of `form`; None where it names none.
        """
        width: int = encoder.out_dim  # type: ignore[assignment]
        return cls(encoder, build_head(section.projector, width), loss)

    def prepare(self) -> None:
        """Once per training step, before encoding."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """Views → embeddings, sample by sample (but for batch normalisation)."""
        raise NotImplementedError

    def contrast(self, *embeddings: Tensor, groups: Tensor | None = None) -> Contrast:
        """Embeddings of the whole batch → the loss and its story."""
        raise NotImplementedError

    def forward(self, *views: Any, groups: Tensor | None = None) -> Contrast:
        """Two views of a batch → their contrast.

        Args:
            views: what the encoder takes, twice; sample i of each is the same instance.
            groups: (N,) integers; samples of one group are never each other's negatives. Hard
                negatives of a third view have theirs after them, (2N,) in all.
        """
        if self.training:
            self.prepare()
        return self.contrast(*self.encode(*views), groups=groups)

    def project(self, view: Any) -> Tensor:
        """(B, D) embedding that the loss sees."""
        return self.projector(self.encoder(view))

    def project_together(self, first: Any, second: Any) -> tuple[Tensor, Tensor]:
        """Both views in one forward where they can be joined, so batch norm sees them together."""
        joined = batching.concat(first, second)
        if joined is None:
            return self.project(first), self.project(second)
        z1, z2 = self.project(joined).split([batching.size(first), batching.size(second)])
        return z1, z2
