"""Batches for the tests of temperatures: rows, forms, and the anchors of the float64 loops."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from reference import Anchor, Vector, bank_view, both_views, cross_view
from torch import Tensor

FORMS = ("both", "cross", "one-direction", "bank", "hard")
BANK, DIM = 5, 3


@dataclass
class Case:
    """Two views of n rows and BANK further rows, with the arguments of a loss."""

    form: str
    n: int
    rows: Tensor
    """(2n + BANK, DIM), needs a gradient."""
    groups: list[int] | None

    def settings(self) -> dict[str, Any]:
        """Keywords of the constructor."""
        if self.form in ("both", "bank"):
            return {"negatives": "both"}
        return {"negatives": "cross", "symmetric": self.form != "one-direction"}

    def arguments(self) -> dict[str, Any]:
        """Keywords of the call."""
        extra: dict[str, Any] = {}
        others = [i % 3 for i in range(BANK)]
        if self.form in ("bank", "hard"):
            extra[self.form] = self.rows[2 * self.n :]
        if self.groups is not None:
            extra["groups"] = torch.tensor(self.groups)
            if self.form in ("bank", "hard"):
                extra[f"{self.form}_groups"] = torch.tensor(others)
        return extra

    def views(self) -> tuple[Tensor, Tensor]:
        """(n, DIM) each."""
        return self.rows[: self.n], self.rows[self.n : 2 * self.n]

    def table(self) -> list[Vector]:
        """All rows as lists."""
        return self.rows.detach().tolist()

    def anchors(self) -> list[Anchor]:
        """Positives and negatives of each anchor, in the order of the loss."""
        others = [i % 3 for i in range(BANK)] if self.groups is not None else None
        if self.form == "both":
            return both_views(self.n, self.groups)
        if self.form == "bank":
            return bank_view(self.n, BANK, self.groups, others)
        hard = BANK if self.form == "hard" else 0
        return cross_view(self.n, self.groups, self.form != "one-direction", hard, others)


@dataclass
class At:
    """A step of which a temperature knows the alignment alone."""

    alignment: Tensor

    @property
    def positive(self) -> Tensor:
        """One anchor, of this alignment."""
        return self.alignment[None]

    def new(self, value: float) -> Tensor:
        """Scalar `value` in the type of the alignment."""
        return self.alignment.new_full((), value)


def at(alignment: float, dtype: torch.dtype = torch.float64) -> Any:
    """A step at this alignment."""
    return At(torch.tensor(alignment, dtype=dtype))


def case(form: str, n: int, seed: int, grouped: bool) -> Case:
    """Random rows; the first two are equal where n > 2."""
    rows = torch.randn(
        2 * n + BANK, DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )
    if n > 2:
        rows[1] = rows[0]
    groups = [i % 3 for i in range(n)] if grouped else None
    return Case(form, n, rows.requires_grad_(), groups)


def close(got: Tensor, expected: Any, tolerance: float = 1e-10) -> None:
    """Equal to `tolerance`, relative to the largest number where that exceeds 1."""
    truth = torch.as_tensor(expected, dtype=torch.float64).detach()
    scale = max(1.0, float(truth.abs().max())) if truth.numel() else 1.0
    torch.testing.assert_close(got.detach(), truth, rtol=tolerance, atol=tolerance * scale)
