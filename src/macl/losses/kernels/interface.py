"""What every implementation of the streamed operator takes: exclusions, logit maps, a plan.

An implementation is a module with four functions on plain tensors, without autograd. With
s_ij = r_i·c_j and logits l_ij = s_ij/τ (τ a 0-d tensor, or (n,), one per row) or l_ij = g(s_ij):

    lse(rows (n, D), columns (m, D), temperature, exclude, map=None) -> (n,)
        log Σ_j exp(l_ij) over the pairs that count; −inf for a row without any; NaN stays NaN.
    lse_grad(rows, columns, temperature, exclude, row_weight (n,), row_lse (n,),
             column_weight (m,) | None, column_lse (m,) | None, map=None) -> (n, D)
        Σ_j [row_weight_i·e^{l_ij − row_lse_i} + column_weight_j·e^{l_ij − column_lse_j}]·l'_ij·c_j
        with l' = dl/ds. A side whose lse is ±inf contributes nothing.
    pair_sum(rows, columns, scale, offset, exclude, function) -> (n,)
        Σ_j f(offset_i + scale·s_ij) over the pairs that count; offset is 0-d or (n,).
    pair_sum_grad(rows, columns, scale, offset, exclude, weight (n,), function)
        -> (d_rows, d_columns, d_scale, d_offset) of Σ_i weight_i·pair_sum_i, in the inputs' shapes

Rows and columns have unit length. Half precision is accumulated in float32. The columns' gradient
is `lse_grad` with sides swapped, `exclude.transposed()` and temperature_of="columns" (weights of
either side may be None then); an implementation that gets both from one pass over the tiles has
`lse_grads` instead, see `torch_tiles`.
"""

from __future__ import annotations

import math
from dataclasses import astuple, dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from macl.losses.kernels.tiles import Tile

Direction = Literal["rows", "both", "mirror"]
"""A logsumexp per row; per row and per column; or of rows against themselves (symmetric)."""


@dataclass(frozen=True)
class Exclusions:
    """Which pairs (row, column) do not count.

    `diagonals`: pair (i, i + d) is excluded for each d: the row itself, its positive.
    `row_groups`, `column_groups`: (n,), (m,) integers; pairs of equal groups are excluded:
    duplicates, known classes. With `only_groups` it is the other way round: only pairs of equal
    groups count (several positives per anchor); diagonals stay excluded.
    """

    diagonals: tuple[int, ...] = ()
    row_groups: Tensor | None = None
    column_groups: Tensor | None = None
    only_groups: bool = False

    def apply(self, tile: Tensor, where: Tile, fill: float) -> None:
        """Overwrite the excluded entries of `tile` with `fill`, in place."""
        n = len(tile) // 2
        whole = tile.shape == (2 * n, 2 * n) and where.top == where.left
        if whole and self.diagonals == (0, n, -n):  # both views: one operation instead of three
            tile.view(2, n, 2, n).diagonal(0, 1, 3).fill_(fill)
        else:
            for offset in self.diagonals:
                if (found := where.diagonal(tile, offset)) is not None:
                    found[0].fill_(fill)
        if self.row_groups is not None and self.column_groups is not None:
            rows = self.row_groups[where.top : where.bottom, None]
            columns = self.column_groups[where.left : where.right]
            tile.masked_fill_(rows != columns if self.only_groups else rows == columns, fill)

    def may_empty(self, columns: int) -> bool:
        """Whether a row may have no pair left among so many columns."""
        return self.row_groups is not None or columns <= len(self.diagonals)

    def transposed(self) -> Exclusions:
        """The same pairs seen from the columns."""
        diagonals = tuple(-d for d in self.diagonals)
        return Exclusions(diagonals, self.column_groups, self.row_groups, self.only_groups)


@dataclass(frozen=True)
class LogitMap:
    """A similarity map g: the logit of a pair is g(s), in place of s/τ.

    A subclass is a frozen dataclass of float parameters with a unique `name`. Autograd through
    `value` must give `derivative`: the streamed kernel uses the latter, everything else the former.
    """

    name: ClassVar[str] = ""
    known: ClassVar[dict[str, type[LogitMap]]] = {}

    def __init_subclass__(cls) -> None:
        if not cls.name or cls.known.get(cls.name, cls).__qualname__ != cls.__qualname__:
            raise TypeError(f"{cls.__name__} needs a class attribute `name` of its own.")
        cls.known[cls.name] = cls

    def value(self, s: Tensor) -> Tensor:
        """g(s), elementwise."""
        raise NotImplementedError

    def derivative(self, s: Tensor) -> Tensor:
        """dg/ds, elementwise."""
        raise NotImplementedError

    def value_and_derivative(self, s: Tensor) -> tuple[Tensor, Tensor]:
        """g(s) and dg/ds; a map overrides this where they have a part in common."""
        return self.value(s), self.derivative(s)

    def largest(self) -> float:
        """A bound of |g| on [−1, 1]; infinite where the sums need each row's maximum."""
        return math.inf

    def exponential_(self, s: Tensor) -> Tensor:
        """e^{g(s)}; may overwrite s."""
        return self.value(s).exp_()

    def weighted_(self, s: Tensor) -> Tensor:
        """e^{g(s)}·dg/ds; may overwrite s."""
        value, slope = self.value_and_derivative(s)
        return value.exp_().mul_(slope)

    def scaled(self, factor: float) -> LogitMap:
        """The map factor·g(s)."""
        raise NotImplementedError

    def parameters(self) -> list[float]:
        """The numbers that make this map again: `LogitMap.known[name](*parameters)`."""
        return list(astuple(self))


@dataclass(frozen=True)
class Plan:
    """What a logsumexp is taken over, besides its tensors."""

    exclude: Exclusions
    direction: Direction = "rows"
    map: LogitMap | None = None
    kernel: str | None = None
    positives: tuple[int, ...] = ()
    """Diagonals whose logits are subtracted from the logsumexps; every row is on one of them."""
    apart: bool = False
    """The logits on `positives` are a result of their own instead; not in the direction "both"."""
    mean: bool = False
    """The mean logit of each row is a result too; in the direction "rows"."""


def wide(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def refuse_double_backward() -> None:
    """Raise if a backward pass is itself recorded (create_graph=True)."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the streamed contrastive kernel has no second derivative (create_graph=True). "
            "Compute similarities yourself and call criterion.from_similarities(pos, neg), "
            "which is plain torch and can be differentiated twice."
        )
