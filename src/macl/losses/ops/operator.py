"""The one place where N×K similarities meet: logsumexps and sums over pairs, with gradients.

Every loss of the family is a function of the margin (Huang et al., ICML 2023)

    x_i = logsumexp_j(l_ij) − l_i⁺,   l = s/τ or g(s),   s_ij = r_i·c_j

Three implementations compute it, and `selected` says which and why:

    dense    the matrix is held once: up to 2²² similarities on the CPU, 2²⁴ on an accelerator
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
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from macl.losses.objectives import FUNCTIONS
from macl.losses.ops import dense, tiled
from macl.losses.ops.exclusions import Exclusions
from macl.losses.ops.maps import LogitMap, Logits
from macl.losses.ops.tiled import Direction, Held, Plan, Values, temperature_grad, wide
from macl.losses.ops.triton import check

if TYPE_CHECKING:
    from macl.losses.ring import Ring

VARIABLE = "MACL_KERNEL"
CHOICES = ("auto", "dense", "tiled", "triton")
CPU_LIMIT, ACCELERATOR_LIMIT = 1 << 22, 1 << 24
"""The most similarities that `dense` holds: 16 MB and 64 MB in float32."""

Gradients = tuple[Tensor | None, ...]


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
        columns: number of candidates; as many as rows by default.
        device: where the embeddings are.
        kernel: as the argument of a loss; None reads MACL_KERNEL.
        dtype: of the unit rows.
        map: a similarity map in the place of τ.
        function: of a pair sum.
        exclude: pairs that do not count.
    """
    kind = torch.device(device).type
    choice = wanted(kernel)
    entries = rows * (rows if columns is None else columns)
    limit = CPU_LIMIT if kind == "cpu" else ACCELERATOR_LIMIT
    if choice in ("dense", "tiled"):
        return Selection(choice, f"kernel={choice!r} was asked for")
    if choice == "triton":
        if kind not in ("cuda", "meta") and not os.environ.get("TRITON_INTERPRET"):
            raise ValueError(
                f'kernel="triton" runs on CUDA tensors, got {kind}. Use kernel="auto", or set '
                "TRITON_INTERPRET=1 to interpret the kernels on the CPU."
            )
    elif entries <= limit:
        return Selection("dense", f"{entries:,} similarities are at most {limit:,}")
    elif kind != "cuda":
        return Selection("tiled", f"{entries:,} similarities are more than {limit:,}")
    obstacle = _obstacle(kind, dtype, map, function, exclude)
    if obstacle is None and choice == "auto":
        obstacle = check.unavailable(torch.device(device)) or None
    if obstacle is not None or kind == "meta":
        return Selection("tiled", obstacle or "meta tensors hold no values")
    return Selection(
        "triton", f"{entries:,} similarities on a GPU" if choice == "auto" else "asked for"
    )


def logsumexp(
    rows: Tensor,
    columns: Tensor | None,
    logits: Logits,
    exclude: Exclusions,
    *,
    direction: Direction = "rows",
    positives: tuple[int, ...] = (),
    statistics: bool = False,
    kernel: str | None = None,
    ring: Ring | None = None,
) -> Values:
    """log Σ_j exp(l_ij) over the columns that are not excluded, and what comes with it.

    Args:
        rows: (n, D) unit vectors.
        columns: (m, D) unit vectors; None for the direction "mirror". If they need no gradient they
            may change before the backward pass.
        logits: scalar τ, (n,) τ of each row (in the direction "rows"), or a map; τ receives its
            gradient if it needs one.
        exclude: pairs that do not count; symmetric ones for "mirror".
        direction: which logsumexps.
        positives: excluded diagonals whose logits are wanted; every row is on one of them.
        statistics: whether the moments of the logits are wanted, without gradient.
        kernel: implementation, see `selected`.
        ring: brings the columns of all ranks, `columns` being those of this one; "rows" only.

    Returns:
        (k,) each, float32 for half-precision rows; `lse` is −inf for a row that has no pair left.
        `positive` is None where the implementation does not read the diagonals.
    """
    temperature, map = (logits, None) if isinstance(logits, Tensor) else (None, logits)
    plan = Plan(exclude, direction, map, positives, statistics, kernel=kernel, ring=ring)
    if torch.compiler.is_compiling() and ring is None:
        from macl.losses.ops import compiled

        return compiled.logsumexp(rows, columns, temperature, plan)
    return Values(*_LogSumExp.apply(rows, columns, temperature, plan))


def mean_objective(
    rows: Tensor, columns: Tensor | None, logits: Logits, plan: Plan
) -> tuple[Tensor, Tensor] | None:
    """Scalar mean of f(x), and (k,) x without gradient, where `dense` gives both at once.

    Arguments as for `logsumexp`, with a τ that needs no gradient. None elsewhere.
    """
    keys = rows if columns is None else columns
    if (
        torch.compiler.is_compiling()
        or (isinstance(logits, Tensor) and (logits.ndim or logits.requires_grad))
        or not torch.is_grad_enabled()
        or _choice(rows, keys, plan) != "dense"
    ):
        return None
    temperature = logits if isinstance(logits, Tensor) else None
    with torch.no_grad():
        closed = dense.closed(rows, keys, temperature, plan)
    if closed is None:
        return None
    value, x, d_rows, d_columns = closed
    return _Known.apply(value, rows, columns, d_rows, d_columns), x


class _Known(torch.autograd.Function):
    """A value whose gradient is known already."""

    @staticmethod
    def forward(ctx: Any, value: Tensor, rows: Tensor, columns: Any, *grads: Any) -> Tensor:
        ctx.save_for_backward(*grads)
        return value.view_as(value)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        refuse_double_backward()
        d_rows, d_columns = ctx.saved_tensors
        both = d_columns is not None and ctx.needs_input_grad[2]
        return None, d_rows * grad, d_columns * grad if both else None, None, None


def pair_sum(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    exclude: Exclusions,
    function: str = "softplus",
    kernel: str | None = None,
    ring: Ring | None = None,
) -> Tensor:
    """(n,) Σ_j f(offset_i + scale_i·r_i·c_j) over the pairs that are not excluded.

    SigLIP is f = softplus with scale t and offset b. Several positives per anchor are
    scale = −1/τ, offset_i = logsumexp of the negatives, and exclusions with `only_classes`.
    Scale and offset are scalars or (n,); a row with the offset −inf (no negatives) adds up to 0,
    without gradient. `function` is the name of f, see `objectives`; the rest as for `logsumexp`.
    """
    if function not in FUNCTIONS:
        raise ValueError(f"function is one of {', '.join(FUNCTIONS)}; got {function!r}.")
    alone = offset.isneginf() if offset.ndim else None
    if alone is not None:
        offset = offset.masked_fill(alone, 0.0)
    plan = Plan(exclude, function=function, kernel=kernel, ring=ring)
    if torch.compiler.is_compiling() and ring is None:
        from macl.losses.ops import compiled

        sums = compiled.pair_sum(rows, columns, scale, offset, plan)
    else:
        sums = _PairSum.apply(rows, columns, scale, offset, plan)
    return sums if alone is None else sums.masked_fill(alone, 0.0)


# Linear memory, without autograd. A ring applies each of these to one block after the other.


def values(
    rows: Tensor, columns: Tensor, temperature: Tensor | None, plan: Plan, pull: bool = False
) -> tuple[Values, Tensor | None]:
    """Logsumexps and what comes with them, see `tiled.forward`."""
    if plan.ring is not None:
        blocks = plan.ring.plans(columns, plan)
        each = (values(rows, block, temperature, own)[0] for block, own in blocks)
        return functools.reduce(Values.merged, each), None
    if _choice(rows, columns, plan) != "triton":
        results, pulled, _ = tiled.forward(rows, columns, temperature, plan, pull)
        return results, pulled
    kernels, exclude, map = _triton(), plan.exclude, plan.map
    sides = [(rows, columns, exclude)]
    if plan.direction == "both":
        sides.append((columns, rows, exclude.transposed()))
    parts = [kernels.lse(r, c, temperature, e, map, stats=plan.statistics) for r, c, e in sides]
    lse, mean, square = torch.cat(parts, -1) if len(parts) > 1 else parts[0], None, None
    if plan.statistics:
        lse, mean, square = lse.unbind()
        if temperature is not None:  # the kernel gives the mean of s²
            square = square / temperature.square()
    pulled = None
    if pull:
        weight = torch.ones_like(lse)
        pulled = kernels.lse_grad(rows, columns, temperature, exclude, weight, lse, map=map)
        if temperature is not None:  # `pull` is without 1/τ
            pulled = tiled.times(pulled, temperature)
    return Values(lse, None, mean, square), pulled


def gradients(
    rows: Tensor,
    columns: Tensor,
    temperature: Tensor | None,
    plan: Plan,
    lse: Tensor,
    grad: Tensor,
    positive_grad: Tensor | None,
    columns_too: bool,
) -> tuple[Tensor, Tensor | None]:
    """Gradients to rows and columns, see `tiled.backward`."""
    if plan.ring is not None:
        rest = (lse, grad, None, columns_too)
        d_rows, d_columns, *_ = plan.ring.collect(
            columns, plan, lambda b, own: gradients(rows, b, temperature, own, *rest), columns_too
        )
        return d_rows, d_columns
    if _choice(rows, columns, plan) != "triton":
        return tiled.backward(
            rows, columns, temperature, plan, lse, grad, positive_grad, columns_too
        )
    kernels, n, map = _triton(), rows.shape[0], plan.map
    mine = (grad[:n], lse[:n])
    other: tuple[Tensor | None, Tensor | None] = (None, None)
    if plan.direction != "rows":
        other = mine if plan.direction == "mirror" else (grad[n:], lse[n:])
    d_rows = kernels.lse_grad(rows, columns, temperature, plan.exclude, *mine, *other, map)
    d_columns = None
    if columns_too and plan.direction != "mirror":
        d_columns = kernels.lse_grad(
            columns, rows, temperature, plan.exclude.transposed(), *other, *mine, map,
            temperature_of="columns",
        )  # fmt: skip
    return d_rows, d_columns


def pair_values(rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, plan: Plan) -> Tensor:
    """(n,) sums over pairs, see `tiled.pair_sum`."""
    if plan.ring is not None:
        blocks = plan.ring.plans(columns, plan)
        each = (pair_values(rows, block, scale, offset, own) for block, own in blocks)
        return functools.reduce(Tensor.add_, each)
    if _choice(rows, columns, plan) == "triton":
        return _triton().pair_sum(rows, columns, scale, offset, plan.exclude, plan.function)
    return tiled.pair_sum(rows, columns, scale, offset, plan)[0]


def pair_gradients(
    rows: Tensor,
    columns: Tensor,
    scale: Tensor,
    offset: Tensor,
    plan: Plan,
    weight: Tensor,
    columns_too: bool = True,
) -> Gradients:
    """Gradients to rows, columns, scale and offset, see `tiled.pair_sum_grad`."""
    if plan.ring is not None:
        return plan.ring.collect(
            columns,
            plan,
            lambda block, own: pair_gradients(rows, block, scale, offset, own, weight),
            columns_too,
        )
    if _choice(rows, columns, plan) == "triton":
        exclude, function = plan.exclude, plan.function
        return _triton().pair_sum_grad(rows, columns, scale, offset, exclude, weight, function)
    return tiled.pair_sum_grad(rows, columns, scale, offset, plan, weight)


class _LogSumExp(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor | None, temperature: Tensor | None, plan: Plan
    ) -> tuple[Tensor | None, ...]:
        mirror, keys = columns is None, rows if columns is None else columns
        # Columns without gradient, such as a queue, may change before the backward pass.
        needed = ctx.needs_input_grad
        pull = not mirror and needed[0] and not needed[1] and plan.ring is None
        ctx.plan, ctx.pull = _decided(rows, keys, plan), pull
        held: Held | tuple[()] | None = ()
        if ctx.plan.kernel == "dense":
            results, pulled, held = tiled.forward(rows, keys, temperature, plan, pull, hold=True)
        else:
            results, pulled = values(rows, keys, temperature, ctx.plan, pull)
        if pull:
            ctx.save_for_backward(rows, temperature, pulled)
        elif any(needed):
            ctx.save_for_backward(rows, columns, temperature, results.lse, *(held or ()))
        ctx.mark_non_differentiable(*(x for x in (results.mean, results.square) if x is not None))
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, grad: Tensor, positive_grad: Tensor | None, *_: Any) -> Gradients:
        refuse_double_backward()
        plan, mirror = ctx.plan, ctx.plan.direction == "mirror"
        if ctx.pull:
            rows, temperature, pulled = ctx.saved_tensors
            d_rows = tiled.times(pulled, tiled.divided(grad, temperature))
            d_columns = None
        else:
            rows, columns, temperature, lse, *held = ctx.saved_tensors
            keys = rows if columns is None else columns
            given = positive_grad if plan.positives else None
            rest = (grad, given, ctx.needs_input_grad[1])
            if held:
                d_rows, d_columns = dense.backward(
                    rows, keys, temperature, plan, Held(*held), *rest
                )
            else:
                d_rows, d_columns = gradients(rows, keys, temperature, plan, lse, *rest)
            d_columns = None if d_columns is None else d_columns.to(keys.dtype)
        d_temperature = None
        if temperature is not None and ctx.needs_input_grad[2]:
            d_temperature = temperature_grad(rows, d_rows, temperature, mirror)
        return d_rows.to(rows.dtype), d_columns, d_temperature, None


class _PairSum(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, columns: Tensor, scale: Tensor, offset: Tensor, plan: Plan
    ) -> Tensor:
        ctx.plan, held = _decided(rows, columns, plan), None
        if ctx.plan.kernel == "dense":
            sums, held = tiled.pair_sum(rows, columns, scale, offset, plan, hold=True)
        else:
            sums = pair_values(rows, columns, scale, offset, ctx.plan)
        ctx.save_for_backward(rows, columns, scale, offset, held)
        return sums

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Gradients:
        refuse_double_backward()
        rows, columns, scale, offset, held = tensors = ctx.saved_tensors
        given = (rows, columns, scale, offset, ctx.plan, grad)
        parts: Gradients
        if held is None:
            parts = pair_gradients(*given, columns_too=ctx.needs_input_grad[1])
        else:
            parts = tiled.pair_sum_grad(*given, held)
        pairs = zip(parts, tensors, strict=False)
        return *(None if part is None else part.to(x.dtype) for part, x in pairs), None


def refuse_double_backward() -> None:
    """Raise if a backward pass is itself recorded (create_graph=True)."""
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the contrastive operator has no second derivative (create_graph=True). "
            "Compute similarities yourself and call criterion.from_similarities(pos, neg), "
            "which is plain torch and can be differentiated twice."
        )


def _decided(rows: Tensor, columns: Tensor, plan: Plan) -> Plan:
    """The plan with the implementation that runs; a ring decides for each block."""
    return plan if plan.ring is not None else plan._replace(kernel=_choice(rows, columns, plan))


def _choice(rows: Tensor, columns: Tensor, plan: Plan) -> str:
    """The name of `selected`, for tensors."""
    n, m = rows.shape[0], columns.shape[0]
    if plan.kernel in (None, "auto") and rows.is_cpu and n * m <= CPU_LIMIT:
        return "dense"  # what most calls come to, without asking further
    return selected(
        n, m, device=rows.device, kernel=plan.kernel, dtype=wide(rows).dtype, map=plan.map,
        function=plan.function, exclude=plan.exclude,
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
    if map is not None and map.name == "artanh" and map.parameters() != [1.0]:
        return "Triton's kernels know the unscaled map alone"
    return None if kernels.supported(map, function) else f"Triton's kernels lack {map or function}"


def _triton() -> ModuleType:
    return importlib.import_module("macl.losses.ops.triton.launch")
