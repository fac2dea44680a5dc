"""Checks of the tensors that a loss is called with; each error names the fix."""

from __future__ import annotations

from torch import Tensor

from macl.losses.kernels.interface import wide
from macl.losses.unit import unit_rows


def check_views(z1: Tensor, z2: Tensor) -> None:
    """Two (N, D) views of one floating type on one device, N ≥ 1."""
    if z1.ndim != 2 or z1.shape != z2.shape or z1.shape[1] == 0:
        raise ValueError(
            f"the two views must have the same shape (N, D), got {tuple(z1.shape)} and "
            f"{tuple(z2.shape)}. Row i of the second is the positive of row i of the first."
        )
    if not (z1.is_floating_point() and z2.is_floating_point()):
        raise ValueError(f"embeddings must be floating point, got {z1.dtype} and {z2.dtype}.")
    if z1.dtype != z2.dtype or z1.device != z2.device:
        raise ValueError(
            f"the two views must agree in type and device, got {z1.dtype} on {z1.device} and "
            f"{z2.dtype} on {z2.device}."
        )
    if len(z1) == 0:
        raise ValueError("the batch is empty; give at least one pair and a bank, or two pairs.")


def check_enough(z1: Tensor, gather: bool) -> None:
    """At least two pairs, where the negatives come from this batch alone."""
    if len(z1) < 2 and not gather:
        raise ValueError(
            "a single pair has no negatives in its batch: give at least two pairs (N ≥ 2; a loader "
            "with drop_last=True avoids a last batch of one), or a bank=(K, D) of negatives."
        )


def check_groups(name: str, groups: Tensor | None, rows: int) -> None:
    """(rows,) integers."""
    if groups is not None and (groups.shape != (rows,) or groups.is_floating_point()):
        raise ValueError(
            f"{name} holds one integer per row, ({rows},), got {groups.dtype} "
            f"{tuple(groups.shape)}."
        )


def unit_extra(rows: Tensor, name: str, like: Tensor, is_unit: bool = False) -> Tensor:
    """(K, D) further rows at length 1, in the type of the views."""
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != like.shape[1]:
        raise ValueError(
            f"{name} must be (K, {like.shape[1]}) with K ≥ 1 to match the views, "
            f"got {tuple(rows.shape)}."
        )
    return (wide(rows) if is_unit else unit_rows(rows, name)).to(like.dtype)
