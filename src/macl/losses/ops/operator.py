"""The one place where N×K similarities meet: logsumexps and sums over pairs, with gradients.

Every loss of the family is a function of the margin (Huang et al., ICML 2023)

    x_i = logsumexp_j(l_ij) − l_i⁺,   l = s/τ or g(s),   s_ij = r_i·c_j

Three implementations compute it, and `selected` says which and why:

    dense    the matrix is held once: up to 2²² similarities on the CPU, 2²⁰ of rows with
             themselves, 2²⁴ on an accelerator (2²⁰ of half-precision rows where Triton runs)
    tiled    any device, linear memory
    triton   CUDA, linear memory, above the limit of `dense`

In eager mode the operator is an `autograd.Function`; under torch.compile it is a
`torch.library.custom_op`, which the compiler takes as a whole (`compiled`).
"""

from __future__ import annotations

import functools
import importlib
import os
from types import ModuleType
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macl.losses.objectives import FUNCTIONS, refuse_double_backward, with_slopes
from macl.losses.ops import dense, tiled
from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.maps import LogitMap, Logits
from macl.losses.ops.tiled import Held, Operands, Plan, Values, temperature_grad
from macl.losses.ops.triton import check

VARIABLE = "MACL_KERNEL"
CHOICES = ("auto", "dense", "tiled", "triton")
CPU_LIMIT, ACCELERATOR_LIMIT = 1 << 22, 1 << 24
"""The most similarities that `dense` holds: 16 MB and 64 MB in float32."""
CPU_MIRROR_LIMIT = 1 << 20
"""The same for rows against themselves, of which tiles compute half: they are faster above it."""
HALF_LIMIT = 1 << 20
"""The same of half-precision rows where Triton runs: a held matrix is multiplied in float32, the
kernels multiply in half precision. By estimate (docs/results/gpu.md), not measured."""

Gradients = tuple[Tensor, *tuple[Tensor | None, ...]]
"""To the rows, the columns and, of a pair sum, scale and offset."""


class Selection(NamedTuple):
    """An implementation by name, and why it runs."""

    name: str
    reason: str


def wanted(kernel: str | None) -> str:
    """The choice that was made: `kernel`, or else MACL_KERNEL, or else "auto".

    "torch", as earlier versions called it, is "tiled".
    """
    choice = kernel or os.environ.get(VARIABLE) or "auto"
    choice = "tiled" if choice == "torch" else choice
    if choice not in CHOICES:
        raise ValueError(
            f"kernel (or the environment variable {VARIABLE}) is one of {', '.join(CHOICES)}; "
            f"got {choice!r}."
        )
    return choice


def selected(
    rows: int,
    columns: int | None = None,
    *,
    device: torch.device | str = "cpu",
    kernel: str | None = None,
    dtype: torch.dtype = torch.float32,
    map: LogitMap | None = None,
    function: str = "softplus",
    exclude: Exclusions | None = None,
) -> Selection:
    """Which implementation computes this many similarities there, and why.

    `selected(512).name`, both views of 256 images on the CPU, is "dense".

    Args:
        rows: number of anchors; 2N for both views.
        columns: number of candidates; None: the rows themselves, as for both views.
        device: where the embeddings are.
        kernel: as the argument of a loss; None reads MACL_KERNEL.
        dtype: of the unit rows.
        map: a similarity map in place of τ.
        function: of a pair sum.
        exclude: pairs that do not count.
    """
    kind = torch.device(device).type
    choice = wanted(kernel)
    entries = rows * (rows if columns is None else columns)
    cpu_limit = CPU_MIRROR_LIMIT if columns is None else CPU_LIMIT
    limit = cpu_limit if kind == "cpu" else ACCELERATOR_LIMIT
    held = min(limit, HALF_LIMIT) if kind == "cuda" and dtype.itemsize == 2 else limit
    if choice in ("dense", "tiled"):
        return Selection(choice, f"kernel={choice!r} was asked for")
    if choice == "triton":
        if kind not in ("cuda", "meta") and not os.environ.get("TRITON_INTERPRET"):
            raise ValueError(
                f'kernel="triton" runs on CUDA tensors, got {kind}. Use kernel="auto", or set '
                "TRITON_INTERPRET=1 to interpret the kernels on the CPU."
            )
    elif entries <= held:
        return Selection("dense", f"{entries:,} similarities are at most {held:,}")
    elif kind not in ("cuda", "xpu"):
        return Selection("tiled", f"{entries:,} similarities are more than {limit:,}")
    obstacle = _obstacle(kind, dtype, map, function, exclude)
    if obstacle is None and choice == "auto":
        obstacle = check.unavailable(torch.device(device)) or None
    if obstacle is not None or kind == "meta":
        name = "dense" if choice == "auto" and entries <= limit else "tiled"
        return Selection(name, obstacle or "meta tensors hold no values")
    return Selection(
        "triton", f"{entries:,} similarities on a GPU" if choice == "auto" else "asked for"
    )


def logsumexp(rows: Tensor, columns: Tensor | None, logits: Logits, plan: Plan) -> Values:
    """log Σ_j exp(l_ij) over the columns that are not excluded, and what comes with it.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors; None for the direction "mirror". If they need no gradient they
            may change before the backward pass.
        logits: scalar τ, (n,) τ of each row (in the direction "rows"), or a map; τ receives its
            gradient if it needs one.
        plan: the rest; its exclusions are symmetric ones for "mirror". A ring brings the columns of
            all ranks, `columns` being those of this one; in the direction "rows" only.

    Returns:
        (k,) each, float32 for half-precision rows; `lse` is −inf for a row that has no pair left.
    """
    if isinstance(logits, Tensor):
        return _reduced(rows, columns, logits, None, plan)
    return _reduced(rows, columns, None, None, plan._replace(map=logits))


def mean_objective(
    given: Operands, plan: Plan, function: str, positives: tuple[int, ...]
) -> tuple[Tensor, Tensor] | None:
    """Scalar mean of f(x), and (k,) x without gradient, where `dense` gives both at once.

    As `logsumexp`, with a τ that needs no gradient, and the positives' diagonals. None elsewhere.
    """
    tau = given.scale
    if (
        torch.compiler.is_compiling()
        or (tau is not None and (tau.ndim or tau.requires_grad))
        or not torch.is_grad_enabled()
        or _choice(given, plan) != "dense"
    ):
        return None
    with torch.no_grad():
        closed = dense.closed(given, plan, function, positives)
    if closed is None:
        return None
    value, x, slopes = closed
    return with_slopes(value, *slopes), x


def pair_sum(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, plan: Plan) -> Tensor:
    """(n,) Σ_j f(offset_i + scale_i·r_i·c_j) over the pairs that are not excluded.

    SigLIP is f = softplus with scale t and offset b. Several positives per anchor are
    scale = −1/τ, offset_i = logsumexp of the negatives, and exclusions with `only_classes`.
    Scale and offset are scalars or (n,); a row with the offset −inf (no negatives) adds up to 0,
    without gradient. `plan.function` is the name of f, see `objectives`; the rest as for
    `logsumexp`.
    """
    if plan.function not in FUNCTIONS:
        raise ValueError(f"function is one of {', '.join(FUNCTIONS)}; got {plan.function!r}.")
    if not offset.ndim:
        return _reduced(rows, columns, scale, offset, plan).lse
    alone = offset.isneginf()
    sums = _reduced(rows, columns, scale, offset.masked_fill(alone, 0.0), plan).lse
    return sums.masked_fill(alone, 0.0)


def _reduced(
    rows: Tensor, columns: Tensor | None, scale: Tensor | None, offset: Tensor | None, plan: Plan
) -> Values:
    if torch.compiler.is_compiling() and plan.ring is None:
        from macl.losses.ops import compiled

        keys = rows if columns is None else columns
        return compiled.reduced(Operands(rows, keys, scale, offset), plan)
    return Values(*_Reduce.apply(rows, columns, scale, offset, plan))


# Without autograd. A ring applies these to one block after the other.


def values(
    given: Operands, plan: Plan, pull: bool = False, hold: bool = False
) -> tuple[Values, Tensor | None, Held | None]:
    """Logsumexps and what comes with them, see `tiled.forward`; or sums over pairs."""
    if plan.ring is not None:
        each = (
            values(given._replace(columns=block), own)[0]
            for block, own in plan.ring.plans(given.columns, plan)
        )
        return functools.reduce(Values.added if plan.function else Values.merged, each), None, None
    triton = not hold and _choice(given, plan) == "triton"
    rows, columns, scale, _ = given
    exclude, map = plan.exclude, plan.map
    if plan.function:
        if triton:
            sums, held = _triton().pair_sum(*given, exclude, plan.function), None
        else:
            sums, held = tiled.pair_sum(given, plan, hold)
        return Values(sums), None, held
    if not triton:
        return tiled.forward(given, plan, pull, hold=hold)
    kernels, sides = _triton(), [(rows, columns, exclude)]
    if plan.direction == "both":
        sides.append((columns, rows, exclude.transposed()))
    parts = [kernels.lse(r, c, scale, e, map, stats=plan.statistics) for r, c, e in sides]
    lse, mean, square = torch.cat(parts, -1) if len(parts) > 1 else parts[0], None, None
    if plan.statistics:
        lse, mean, square = lse.unbind()
        if scale is not None:  # the kernel gives the mean of s²
            square = square / scale.square()
    pulled = None
    if pull:
        weight = torch.ones_like(lse)
        pulled = kernels.lse_grad(rows, columns, scale, exclude, weight, lse, map=map)
        if scale is not None:  # `pull` is without 1/τ
            pulled = tiled.times(pulled, scale)
    return Values(lse, mean, square), pulled, None


def gradients(
    given: Operands,
    plan: Plan,
    lse: Tensor,
    grad: Tensor,
    columns_too: bool = True,
    held: Held | None = None,
) -> Gradients:
    """Gradients to rows and columns, see `tiled.backward`; of a pair sum to all operands."""
    if plan.ring is not None:

        def of_block(block: Tensor, own: Plan) -> Gradients:
            return gradients(given._replace(columns=block), own, lse, grad, columns_too)

        return plan.ring.collect(given.columns, plan, of_block, columns_too)
    triton, exclude = held is None and _choice(given, plan) == "triton", plan.exclude
    if plan.function:
        if triton:
            return _triton().pair_sum_grad(*given, exclude, grad, plan.function)
        return tiled.pair_sum_grad(given, plan, grad, held)
    if held is not None:
        return dense.backward(given, plan, held, grad, columns_too)
    if not triton:
        return tiled.backward(given, plan, lse, grad, columns_too)
    kernels, n, map = _triton(), given.rows.shape[0], plan.map
    rows, columns, scale, _ = given
    mine = (grad[:n], lse[:n])
    other: tuple[Tensor | None, Tensor | None] = (None, None)
    if plan.direction != "rows":
        other = mine if plan.direction == "mirror" else (grad[n:], lse[n:])
    d_rows = kernels.lse_grad(rows, columns, scale, exclude, *mine, *other, map)
    d_columns = None
    if columns_too and plan.direction != "mirror":
        swapped = (columns, rows, scale, exclude.transposed())
        d_columns = kernels.lse_grad(*swapped, *other, *mine, map, temperature_of="columns")
    return d_rows, d_columns


class _Reduce(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        rows: Tensor,
        columns: Tensor | None,
        scale: Tensor | None,
        offset: Tensor | None,
        plan: Plan,
    ) -> tuple[Tensor | None, ...]:
        given = Operands(rows, rows if columns is None else columns, scale, offset)
        if plan.ring is None:  # a ring decides for each block
            plan = plan._replace(kernel=_choice(given, plan))
        # Columns without gradient, such as a queue, may change before the backward pass.
        needed, one_sum = ctx.needs_input_grad, not plan.function and columns is not None
        pull = one_sum and needed[0] and not needed[1] and plan.ring is None
        ctx.plan, ctx.pull = plan, pull
        results, pulled, held = values(given, plan, pull, hold=plan.kernel == "dense")
        if pull:
            ctx.save_for_backward(rows, None, scale, offset, pulled)
        elif any(needed):
            ctx.save_for_backward(rows, columns, scale, offset, results.lse, *(held or ()))
        ctx.mark_non_differentiable(*(x for x in (results.mean, results.square) if x is not None))
        return results.lse, results.mean, results.square

    @staticmethod
    def backward(ctx: Any, grad: Tensor, *_: Any) -> Any:
        refuse_double_backward()
        plan = ctx.plan
        rows, columns, scale, offset, kept, *held = ctx.saved_tensors
        parts: Gradients
        if ctx.pull:
            parts = (tiled.times(kept, tiled.divided(grad, scale)), None)
        else:
            given = Operands(rows, rows if columns is None else columns, scale, offset)
            columns_too, matrix = ctx.needs_input_grad[1], Held(*held) if held else None
            parts = gradients(given, plan, kept, grad, columns_too, matrix)
        if not plan.function and scale is not None and ctx.needs_input_grad[2]:
            d_scale = temperature_grad(rows, parts[0], scale, plan.direction == "mirror")
            parts = (*parts, d_scale)
        return *parts, *[None] * (5 - len(parts))


def _choice(given: Operands, plan: Plan) -> str:
    """The name of `selected`, for tensors."""
    rows, n, m = given.rows, given.rows.shape[0], given.columns.shape[0]
    if plan.kernel in (None, "auto") and rows.is_cpu and n * m <= CPU_MIRROR_LIMIT:
        return "dense"  # what most calls come to, without asking further
    columns = None if plan.direction == "mirror" else m
    return selected(
        n, columns, device=rows.device, kernel=plan.kernel, dtype=rows.dtype, map=plan.map,
        function=plan.function or "softplus", exclude=plan.exclude,
    ).name  # fmt: skip


def _obstacle(
    kind: str, dtype: torch.dtype, map: LogitMap | None, function: str, exclude: Exclusions | None
) -> str | None:
    """What the Triton kernels cannot do of this."""
    if dtype == torch.float64:
        return "Triton's kernels have no float64"
    if exclude is not None and not exclude.is_simple:
        return "Triton's kernels exclude diagonals and one set of integer groups"
    if kind == "meta":
        return None
    try:
        kernels = _triton()
    except ImportError:
        return "the package triton is not installed"
    return None if kernels.supported(map, function) else f"Triton's kernels lack {map or function}"


def _triton() -> ModuleType:
    return importlib.import_module("macl.losses.ops.triton.launch")
