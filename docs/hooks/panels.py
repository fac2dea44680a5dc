"""The numbers of a figure: panels with lines. Drawing is in drawing.py; tests compare these."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from macl.losses import ContrastiveLoss

GRID = 0.999 * torch.linspace(-1, 1, 161, dtype=torch.float64)  # at ±1 rows have no slope
NEGATIVES = torch.linspace(-0.4, 0.6, 15, dtype=torch.float64)
"""Similarities of the negatives of the one anchor that the figures look at."""


@dataclass(frozen=True)
class Line:
    """One line; `role` is "own", "gray" or the number of a further color."""

    label: str
    x: list[float]
    y: list[float]
    role: str = "own"
    dashed: bool = False
    width: float = 2.2


@dataclass(frozen=True)
class Panel:
    """One diagram."""

    title: str
    x_label: str
    y_label: str
    lines: list[Line]
    log_x: bool = False
    y_range: tuple[float, float] | None = None
    notes: list[tuple[float, float, str]] = field(default_factory=list)

    def numbers(self) -> dict[str, dict[str, list[float]]]:
        """Every tenth x and y of each line by its label, to five digits."""
        return {each.label: {"x": _short(each.x), "y": _short(each.y)} for each in self.lines}


def _short(values: list[float]) -> list[float]:
    return [float(f"{value:.5g}") for value in values[::10]]


def line(label: str, x: Tensor, y: Tensor, role: str = "own", **style: Any) -> Line:
    """A line from tensors."""
    return Line(label, x.detach().double().tolist(), y.detach().double().tolist(), role, **style)


def one_anchor(
    criterion: ContrastiveLoss, negatives: Tensor = NEGATIVES, tau: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Loss of one anchor, and the pull −τ·∂L/∂s⁺ on its positive, for every s⁺ of `GRID`."""
    return along_grid(lambda s: criterion.from_similarities(s[None], negatives[None]), tau)


def along_grid(loss: Callable[[Tensor], Tensor], tau: float = 1.0) -> tuple[Tensor, Tensor]:
    """Value of `loss` and −τ times its slope at every point of `GRID`."""
    values, slopes = [], []
    for point in GRID:
        s = point.clone().requires_grad_()
        value = loss(s)
        (slope,) = torch.autograd.grad(value, s)
        values.append(value.detach())
        slopes.append(-tau * slope)
    return torch.stack(values), torch.stack(slopes)


def rows(similarities: Tensor) -> Tensor:
    """Unit rows whose first is the anchor and whose others have these similarities to it."""
    count = len(similarities)
    anchor = torch.zeros(1, count + 1, dtype=similarities.dtype)
    anchor[0, 0] = 1
    others = torch.cat(
        [similarities[:, None], torch.diag((1 - similarities.square()).clamp(min=1e-12).sqrt())],
        dim=1,
    )
    return torch.cat([anchor, others])


def value_and_pull(
    curves: Sequence[tuple[str, str, Any]], unit: str = "τ·|∂L/∂s⁺|", **limits: Any
) -> list[Panel]:
    """The two panels that every loss has; `curves` are (label, role, (values, pulls))."""
    x = "similarity of the positive s⁺"
    return [
        Panel(
            "Value",
            x,
            "loss of the anchor",
            [line(n, GRID, v, r) for n, r, (v, _) in curves],
            **limits,
        ),
        Panel("Gradient", x, unit, [line(n, GRID, p, r) for n, r, (_, p) in curves]),
    ]
