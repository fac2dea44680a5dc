"""The contract of a method: views in, a loss and named metrics out; built from a recipe.

`prepare` runs once per step (MoCo moves its key encoder), `encode` works sample by sample, `step`
sees the embeddings of the whole batch. They are separate so that a large batch can be encoded in
chunks. Nothing here assumes negatives or a temperature; `macl.methods.contrastive` adds those.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cached_property
from typing import Any, ClassVar

from torch import Tensor, nn

from macl.core import batching
from macl.core.errors import UserError
from macl.core.plugins import load_object
from macl.losses import ContrastiveLoss, TrainingContext
from macl.methods.heads import build_head, head_dim
from macl.recipes.losses import LossSection, TemperatureSection
from macl.recipes.methods import MethodSection

Metrics = Mapping[str, Tensor | float]

GUIDE_MARGIN = 0.1
"""Of `loss.guide`, where the recipe gives none: the two views of a sample have similarity 1."""


class Step:
    """The loss of one batch, a scalar, and what to log about it.

    `metrics` are scalars by the name of their column, or what computes them when a row is logged,
    on every rank alike.
    """

    def __init__(
        self, loss: Tensor, metrics: Metrics | Callable[[], Metrics] | None = None
    ) -> None:
        self.loss, self._given = loss, metrics or {}

    @cached_property
    def metrics(self) -> Metrics:
        """Detached scalars by name, computed when first read."""
        return self._given() if callable(self._given) else self._given


class Method(nn.Module):
    """Base of the methods: a plain module, `method(view1, view2).loss.backward()` in any loop."""

    loss_options: ClassVar[Mapping[str, Any]] = {}
    """The keywords with which the recipe's loss is built for this method."""
    loss: nn.Module | None
    """The loss, where it is a module of its own."""

    def __init__(
        self, encoder: nn.Module, projector: nn.Module, loss: nn.Module | None = None
    ) -> None:
        super().__init__()
        self.encoder, self.projector, self.loss = encoder, projector, loss

    @classmethod
    def from_section(cls, section: Any, encoder: nn.Module, loss: Any) -> Method:
        """Build the method from its recipe section; by default with the projector alone.

        Args:
            section: the method's section, with a `projector`.
            encoder: has an attribute `out_dim`, the width of its output.
            loss: the recipe's loss, built with `loss_options`; None where it names none.
        """
        return cls(encoder, build_head(section.projector, out_dim(encoder)), loss)

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""

    def advance(self, step: int) -> None:
        """Called after every optimizer step with the number of steps taken so far."""

    def prepare(self) -> None:
        """Called once per training batch, before encoding."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        """Views → (N, D) embeddings, sample by sample (except in batch normalization).

        The first one is what a diagnosis measures.
        """
        raise NotImplementedError

    def step(
        self, *embeddings: Tensor, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """Embeddings of the whole batch → its loss and metrics.

        Args:
            embeddings: what `encode` returns.
            groups: (N,) integers; samples of one group are duplicates. Hard negatives of a third
                view have theirs after them, (2N,) in all.
            indices: (N,) positions of the samples in the data set.
        """
        raise NotImplementedError

    def check_hard_negatives(self) -> None:
        """Raise `ValueError` if a third view with hard negatives cannot be used."""
        raise ValueError(
            f"{type(self).__name__} cannot use hard negatives: use method=simclr, or leave "
            "data.negative out."
        )

    def forward(
        self, *views: Any, groups: Tensor | None = None, indices: Tensor | None = None
    ) -> Step:
        """Views of a batch → its loss and metrics; see `step`.

        Views are inputs of the encoder, two or more; sample i of each is the same instance.
        """
        if self.training:
            self.prepare()
        return self.step(*self.encode(*views), groups=groups, indices=indices)

    def project(self, view: Any) -> Tensor:
        """(B, D) embedding on which the loss is computed."""
        return self.projector(self.encoder(view))

    def project_together(self, first: Any, second: Any) -> tuple[Tensor, Tensor]:
        """Both views in one forward where they can be joined, so batch norm sees them together."""
        joined = batching.concat(first, second)
        if joined is None:
            return self.project(first), self.project(second)
        z1, z2 = self.project(joined).split([batching.size(first), batching.size(second)])
        return z1, z2


def out_dim(encoder: nn.Module) -> int:
    """The width of an encoder's output, its attribute `out_dim`."""
    width: int = encoder.out_dim  # type: ignore[assignment]
    return width


def build_loss(section: LossSection, options: Mapping[str, Any], dim: int) -> ContrastiveLoss:
    """The loss that `section` describes, with the `options` that the method asks for.

    `dim` is the width of the embeddings. The number of samples comes later, in `setup`.
    """
    skipped = ("name", "guide")  # the guide embeds the data; the loss is given its embeddings
    given = {key: value for key, value in section if value is not None and key not in skipped}
    if section.guide is not None:
        given.setdefault("guide_margin", GUIDE_MARGIN)
    if isinstance(tau := given.get("temperature"), TemperatureSection):
        given["temperature"] = load_object(tau.target)(**tau.model_dump(exclude={"name"}))
    if section.needs_dim:
        given["dim"] = dim
    loss: ContrastiveLoss = load_object(section.target)(**{**options, **given})
    return loss


def build_method(section: MethodSection, loss: LossSection | None, encoder: nn.Module) -> Method:
    """The method that `section` describes around `encoder`, with its heads and its loss.

    Raises:
        UserError: the values do not fit together.
    """
    target: type[Method] = load_object(section.target)
    described = f"method {section.name}" + (f" with loss {loss.name}" if loss is not None else "")
    try:
        width = out_dim(encoder)
        projector = getattr(section, "projector", None)
        dim = width if projector is None else head_dim(projector, width)
        built = None if loss is None else build_loss(loss, target.loss_options, dim)
        return target.from_section(section, encoder, built)
    except (ValueError, RuntimeError, TypeError) as error:
        # Sizes too large for memory, or for torch, come with a trace of C++ below the first line.
        raise UserError(f"{described}: {str(error).splitlines()[0]}") from error
