"""The one place where N×K similarities meet: logsumexps and sums over pairs, streamed.

Every loss of the family is a function of the margin (reference: Huang et al., ICML 2023)

    x_i = logsumexp_j(l_ij) − l_i⁺,   l = s/τ or g(s),   s_ij = r_i·c_j

The first term is computed tile by tile with one number kept per row, and the tiles are computed
again in the backward pass: memory is O((n + m)·D) instead of O(n·m). In eager mode the operator is
an `autograd.Function`, which costs less per call; under torch.compile it is a
`torch.library.custom_op`, which the compiler takes as a whole.
"""

from __future__ import annotations

import torch
from torch import Tensor

from macl.losses.kernels import compiled, cpu, dispatch, kept, select, torch_tiles
from macl.losses.kernels.autograd import Fused, PairSum, Streamed
from macl.losses.kernels.functions import FUNCTIONS
from macl.losses.kernels.hardened import LEAST_BETA, Hardened
from macl.losses.kernels.interface import Direction, Exclusions, LogitMap, Plan, wide

Logits = Tensor | LogitMap
"""How similarities become logits: τ as a scalar tensor, τ as (n,), one per row, or a map g."""


def logsumexp(
    rows: Tensor,
    columns: Tensor,
    logits: Logits,
    exclude: Exclusions,
    kernel: str | None = None,
) -> Tensor:
    """log Σ_j exp(l_ij) over the columns that are not excluded.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors. If they need no gradient they may change before the backward
            pass.
        logits: scalar τ, (n,) τ of each row, or a map; τ receives its gradient if it needs one.
        exclude: pairs that do not count.
        kernel: implementation, see `select`.

    Returns:
        (n,), float32 for half-precision rows; −inf for a row that has no pair left.
    """
    return _logsumexp(rows, columns, logits, exclude, "rows", kernel)[0]


def logsumexp_both_ways(
    rows: Tensor,
    columns: Tensor,
    logits: Logits,
    exclude: Exclusions,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`logsumexp` for the rows, (n,), and for the columns, (m,); not with one τ per row."""
    by_row, by_column = _logsumexp(rows, columns, logits, exclude, "both", kernel)
    assert by_column is not None
    return by_row, by_column


def logsumexp_mirror(
    rows: Tensor, logits: Logits, exclude: Exclusions, kernel: str | None = None
) -> Tensor:
    """`logsumexp` of rows against themselves, with exclusions that are symmetric."""
    per_row = isinstance(logits, Tensor) and logits.ndim > 0  # not a symmetric matrix
    return _logsumexp(rows, rows, logits, exclude, "rows" if per_row else "mirror", kernel)[0]


def margin(
    rows: Tensor,
    columns: Tensor,
    logits: Logits,
    exclude: Exclusions,
    positives: tuple[int, ...],
    direction: Direction,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor | None] | None:
    """The logsumexps less the logits on the diagonals `positives`, entries of the same matrix.

    Every row, and for the direction "both" every column, is on one of these diagonals, and they
    are excluded. In eager mode, in the loop for CPUs with one τ within bounds, and in plain torch.

    Returns:
        (n,) x by row and, for the direction "both", (m,) by column; None where this is not
        available, so that the positives are to be computed apart.
    """
    if torch.compiler.is_compiling():
        return None
    if _loops(rows, logits, kernel):
        return Fused.apply(rows, columns, logits, exclude, positives, direction)
    per_row = isinstance(logits, Tensor) and logits.ndim > 0
    map = None if isinstance(logits, Tensor) else logits
    if select.backend(rows, kernel, map) is not torch_tiles or (per_row and direction == "both"):
        return None
    if per_row:
        direction = "rows"  # not a symmetric matrix
    plan = Plan(exclude, direction, map, kernel, positives)
    return Streamed.apply(rows, columns, None if map is not None else logits, plan)[:2]


def parts(
    rows: Tensor,
    temperature: Tensor,
    exclude: Exclusions,
    positives: tuple[int, ...],
    mean: bool,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Of rows against themselves: logsumexp, positives' logits and, if asked, mean logits.

    One pass over the similarities, in plain torch in eager mode.

    Returns:
        (n,) each, the first two with gradient; None where this is not available.
    """
    if torch.compiler.is_compiling() or select.backend(rows, kernel) is not torch_tiles:
        return None
    direction: Direction = "rows" if temperature.ndim or mean else "mirror"
    plan = Plan(exclude, direction, None, kernel, positives, apart=True, mean=mean)
    lse, _, positive, means = Streamed.apply(rows, rows, temperature, plan)
    return lse, positive, means


def hardened(
    rows: Tensor,
    logits: Logits,
    beta: float,
    exclude: Exclusions,
    positives: tuple[int, ...],
    kernel: str | None = None,
) -> tuple[Tensor, Tensor] | None:
    """(n,) logsumexp(βl) − logsumexp((1+β)l) and (n,) positives' logits; see `hardened`.

    For rows against themselves, each with a pair that counts, in plain torch in eager mode.

    Returns:
        Both with gradient; None where this is not available.
    """
    map = None if isinstance(logits, Tensor) else logits
    if (
        torch.compiler.is_compiling()
        or select.backend(rows, kernel, map) is not torch_tiles
        or exclude.may_empty(len(rows))
        or beta < LEAST_BETA
    ):
        return None
    plan = Plan(exclude, "mirror", map, kernel, positives)
    temperature = logits if isinstance(logits, Tensor) else None
    return Hardened.apply(rows, temperature, plan, beta)


def _loops(rows: Tensor, logits: Logits, kernel: str | None) -> bool:
    """Whether the loop for CPUs takes it with what it keeps between its passes: one bounded τ."""
    return (
        rows.device.type == "cpu"
        and isinstance(logits, Tensor)
        and select.selected(rows.device, kernel) == "cpu"
        and cpu.bounded(rows, logits)
    )


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    function: str = "softplus",
    kernel: str | None = None,
) -> Tensor:
    """Σ_j f(offset_i + scale·r_i·c_j) over the pairs that are not excluded.

    SigLIP is f = softplus with scale t and offset b. Several positives per anchor are
    scale = −1/τ, offset_i = logsumexp of the negatives, and exclusions with `only_groups`.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors.
        scale: scalar.
        offset: scalar, finite, or (n,); a row with −inf (no negatives) adds up to 0, without
            gradient.
        exclude: pairs that do not count.
        function: the name of f, see `functions`.
        kernel: implementation, see `select`.

    Returns:
        (n,). Rows, columns, scale and offset receive gradients.
    """
    if function not in FUNCTIONS:
        raise ValueError(f"function is one of {', '.join(FUNCTIONS)}; got {function!r}.")
    alone = offset.isneginf() if offset.ndim else None
    if alone is not None:
        offset = offset.masked_fill(alone, 0.0)
    if torch.compiler.is_compiling():
        sums = compiled.pair_sum(rows, columns, scale, offset, exclude, function, kernel)
    elif kept.keeps(rows, columns, kernel):
        sums = kept.KeptPairSum.apply(rows, columns, scale, offset, exclude, function)
    else:
        sums = PairSum.apply(rows, columns, scale, offset, exclude, function, kernel)
    return sums if alone is None else sums.masked_fill(alone, 0.0)


def logsumexp_and_mean(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor,
    exclude: Exclusions,
    kernel: str | None = None,
) -> tuple[Tensor, Tensor]:
    """`logsumexp` and `mean_logit`, from the same softmax where it is kept."""
    if not torch.compiler.is_compiling() and kept.keeps(rows, columns, kernel):
        plan = Plan(exclude, "rows", None, kernel)
        lse, _, mean = kept.Kept.apply(rows, columns, temperature, plan, True)
        return lse, mean
    plan = Plan(exclude, "rows", None, kernel, mean=True)
    if torch.compiler.is_compiling():
        lse = logsumexp(rows, columns, temperature, exclude, kernel)
        return lse, mean_logit(rows, columns, temperature, lse.detach(), exclude, kernel)
    lse, _, _, mean = Streamed.apply(rows, columns, temperature, plan)
    return lse, mean


@torch.no_grad()
def mean_logit(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor,
    lse: Tensor,
    exclude: Exclusions,
    kernel: str | None = None,
) -> Tensor:
    """(n,) Σ_j e^{l_ij − lse_i}·l_ij, detached; see `dispatch.mean_logit`."""
    plan = Plan(exclude, "rows", None, kernel)
    return dispatch.mean_logit(wide(rows), wide(columns), temperature, plan, lse)


def _logsumexp(
    rows: Tensor,
    columns: Tensor,
    logits: Logits,
    exclude: Exclusions,
    direction: Direction,
    kernel: str | None,
) -> tuple[Tensor, Tensor | None]:
    if isinstance(logits, Tensor):
        temperature, map = logits, None
        if temperature.ndim and (direction != "rows" or temperature.shape != rows.shape[:1]):
            raise ValueError(
                f"one temperature per row needs shape ({len(rows)},) and one direction, got "
                f"{tuple(temperature.shape)} and {direction!r}."
            )
    else:
        temperature, map = None, logits
    if torch.compiler.is_compiling():
        plan = Plan(exclude, direction, map, kernel)
        return compiled.logsumexp(rows, columns, temperature, plan)
    if _loops(rows, logits, kernel):
        rows = wide(rows)
        columns = rows if direction == "mirror" else wide(columns)
        return Fused.apply(rows, columns, temperature, exclude, (), direction)
    plan = Plan(exclude, direction, map, kernel)
    if kept.keeps(rows, columns, kernel):
        return kept.Kept.apply(rows, columns, temperature, plan)[:2]
    return Streamed.apply(rows, columns, temperature, plan)[:2]
