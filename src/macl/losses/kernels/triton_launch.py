"""One launch of a Triton kernel, described before it happens.

The backend runs these descriptions; `triton_compile` compiles them for chips that are not there. So
what is compiled and checked is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
import triton
from torch import Tensor

from macl.losses.kernels import triton_configs as configs
from macl.losses.kernels.triton_backward import backward
from macl.losses.kernels.triton_configs import Config, Direction
from macl.losses.kernels.triton_forward import forward
from macl.losses.kernels.triton_rows import anchors, normalise, project

RowKernel = Literal["normalise", "anchors", "project"]
KERNELS = {
    "forward": forward,
    "backward": backward,
    "normalise": normalise,
    "anchors": anchors,
    "project": project,
}
MAPS = ("dystress", "artanh")


class Excluded(Protocol):
    """Which pairs do not count; see `macl.losses.kernels.triton`."""

    @property
    def diagonals(self) -> tuple[int, ...]: ...  # noqa: D102
    @property
    def row_groups(self) -> Tensor | None: ...  # noqa: D102
    @property
    def column_groups(self) -> Tensor | None: ...  # noqa: D102
    @property
    def only_groups(self) -> bool: ...  # noqa: D102
    def transposed(self) -> Excluded: ...  # noqa: D102


class Map(Protocol):
    """A similarity map that the kernels know: `name` is "dystress" or "artanh".

    "dystress" also has the attributes `lowest` and `highest`, its two temperatures.
    """

    @property
    def name(self) -> str: ...  # noqa: D102


@dataclass(frozen=True)
class Launch:
    """A kernel, its grid, arguments, compile-time constants and tile sizes."""

    kernel: Direction | RowKernel
    grid: tuple[int, ...]
    arguments: dict[str, Any]
    constants: dict[str, Any]
    config: Config
    sm: int

    @property
    def options(self) -> dict[str, Any]:
        """Compiler options.

        Products and sums are not fused, whatever Triton's default: so the interpreter that the
        tests use computes what the GPU computes, and rounding to tf32 works.
        """
        return {
            "num_warps": self.config.warps,
            "num_stages": self.config.stages,
            "enable_fp_fusion": False,
            "maxnreg": configs.register_limit(self.sm),
        }

    def run(self) -> None:
        """Launch it on the device of its tensors."""
        first = next(value for value in self.arguments.values() if isinstance(value, Tensor))
        with torch.cuda.device_of(first):
            kernel = KERNELS[self.kernel]
            kernel[self.grid](**self.arguments, **self.constants, **self.options)


def plan(
    direction: Direction,
    reduction: str,
    rows: Tensor,
    columns: Tensor,
    exclude: Excluded,
    precision: str,
    sm: int,
    *,
    scale: Tensor | None,
    scale_of: str = "all",
    offset: Tensor | None = None,
    offset_of: str = "all",
    map: Map | None = None,
    tensors: dict[str, Tensor | None],
) -> Launch:
    """The launch for rows (n, D) against columns (m, D), contiguous and prepared.

    `scale`, `offset`: a number, or one per entry of the side that `…_of` names.
    `tensors`: the other arguments of the kernel, which are outputs and weights.
    """
    n, dim = rows.shape
    kind = configs.arithmetic(rows.dtype, precision)
    extra = reduction != "lse" or map is not None or exclude.row_groups is not None
    tile = configs.config(direction, kind, dim, sm, extra)
    arguments = {
        "rows": rows,
        "columns": columns,
        "scale": scale,
        "offset": offset,
        "row_groups": _contiguous(exclude.row_groups),
        "column_groups": _contiguous(exclude.column_groups),
        "diagonals": tuple(exclude.diagonals) or (0,),  # Triton has no empty tuple
        "lowest": float(getattr(map, "lowest", 0.0)),
        "highest": float(getattr(map, "highest", 0.0)),
        "n": n,
        "m": len(columns),
        **tensors,
    }
    constants = {
        "D": dim,
        "REDUCTION": reduction,
        "MAP": _map_name(map),
        "SCALE_OF": scale_of,
        "OFFSET_OF": offset_of,
        "ONLY_GROUPS": bool(exclude.only_groups),
        "DIAGONALS": len(exclude.diagonals),
        "PRECISION": "half" if kind == "float16" else kind,
        "UPCAST": triton.knobs.runtime.interpret,
        "BM": tile.bm,
        "BN": tile.bn,
        "BD": tile.bd,
    }
    grid: tuple[int, ...] = (triton.cdiv(n, tile.bm),)
    if direction == "backward":
        grid = (*grid, triton.cdiv(dim, tile.dv))
        weighted = "tf32" if kind == "float16" else kind
        reload = tile.reload or tile.bd < dim or tile.bd != tile.dv
        constants |= {"WEIGHTED": weighted, "DV": tile.dv, "RELOAD": reload}
    return Launch(direction, grid, arguments, constants, tile, sm)


def capability(x: Tensor) -> int:
    """Compute capability of the GPU that holds `x`: 80, 90 …; 80 in the interpreter."""
    if not x.is_cuda:
        return 80
    major, minor = torch.cuda.get_device_capability(x.device)
    return 10 * major + minor


def _contiguous(groups: Tensor | None) -> Tensor | None:
    return None if groups is None else groups.contiguous()


def _map_name(map: Map | None) -> str | None:
    if map is not None and map.name not in MAPS:
        raise ValueError(
            f"the Triton kernels know the similarity maps {', '.join(MAPS)}, not {map.name!r}; use "
            "the plain-torch backend for it (MACL_KERNEL=torch)."
        )
    return None if map is None else map.name
