"""Whether the Triton kernels compute on this machine what plain torch computes.

Compilers and drivers differ, and these kernels are compiled where they run. The comparison takes
about a second after the kernels are compiled (some seconds more, once); its result is kept in the
user's cache folder.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Iterator
from pathlib import Path

import torch
import triton
from torch import Tensor

from macl import __version__
from macl.losses.kernels import triton as kernels
from macl.losses.kernels import triton_step as step
from macl.losses.kernels.interface import Exclusions

N, M, D = 197, 149, 100  # several tiles, the last of each kind incomplete
TEMPERATURE = 0.1


def _excluded(exclude: Exclusions, n: int, m: int, device: torch.device) -> Tensor:
    """(n, m) bool: the pairs that do not count."""
    i, j = torch.arange(n, device=device)[:, None], torch.arange(m, device=device)
    found = torch.zeros(n, m, dtype=torch.bool, device=device)
    for d in exclude.diagonals:
        found |= j - i == d
    if exclude.row_groups is not None and exclude.column_groups is not None:
        found |= exclude.row_groups[:, None] == exclude.column_groups
    return found


@functools.cache
def passes() -> bool:
    """The cached result for the current CUDA device; False without one, or where a kernel fails."""
    if not torch.cuda.is_available() or torch.cuda.get_device_capability() < (8, 0):
        return False  # before sm_80 there are neither bfloat16 nor tf32 products
    key = "|".join(
        (torch.cuda.get_device_name(), torch.__version__, triton.__version__, __version__)
    )
    folder = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    path = Path(folder).expanduser() / "macl" / "triton-check.json"
    try:
        known = json.loads(path.read_text())
    except (OSError, ValueError):
        known = {}
    if isinstance(known, dict) and isinstance(known.get(key), bool):
        return bool(known[key])
    try:
        result = agrees(torch.device("cuda"))
    except Exception:  # a compiler or driver that cannot run them, in whichever way
        return False  # not kept: it may be out of memory, or a driver that is replaced
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({**known, key: result}))
    except OSError:
        pass  # a cache that cannot be written costs a second per process
    return result


def agrees(device: torch.device) -> bool:
    """Whether every comparison with float64 is within its bound."""
    return all(error <= bound for _, error, bound in comparisons(device))


def comparisons(device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Name, error and bound of each kernel on small inputs of odd sizes."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator).to(device)

    wide = [torch.nn.functional.normalize(normal(k, D), dim=1) for k in (N, M)]
    groups = [torch.randint(9, (k,), generator=generator).to(device) for k in (N, M)]
    weight, column_weight = normal(N), normal(M)
    exclude = Exclusions((3,), groups[0], groups[1])
    out = _excluded(exclude, N, M, device)
    tau = torch.tensor(TEMPERATURE, device=device)
    scale, offset = torch.tensor(10.0, device=device), torch.tensor(-10.0, device=device)
    for dtype, bound in ((torch.float32, 1e-5), (torch.bfloat16, 1e-2)):
        rows, columns = (x.to(dtype) for x in wide)
        name = str(dtype).removeprefix("torch.")
        s = rows.double() @ columns.double().T
        logits = (s / TEMPERATURE).masked_fill(out, -torch.inf)
        lse, column_lse = logits.logsumexp(1), logits.logsumexp(0)
        found = kernels.lse(rows, columns, tau, exclude)
        lse_bound = 1e-6 + 4e-7 / TEMPERATURE if dtype == torch.float32 else 5e-5
        yield f"{name} lse", float((found - lse).abs().max()), lse_bound
        shares = weight[:, None] * (logits - lse[:, None]).exp()
        shares = shares + column_weight * (logits - column_lse).exp()
        gradient = kernels.lse_grad(
            rows, columns, tau, exclude, weight, found, column_weight, column_lse.float()
        )
        yield (
            f"{name} gradient",
            _relative(gradient, shares @ columns.double() / TEMPERATURE),
            bound,
        )
        x = offset + scale * s
        sums = kernels.pair_sum(rows, columns, scale, offset, exclude)
        exact = torch.nn.functional.softplus(x, threshold=50).masked_fill(out, 0)
        yield f"{name} pair sum", _relative(sums, exact.sum(1)), 1e-5
        slopes = (weight[:, None] * x.sigmoid()).masked_fill(out, 0)
        parts = kernels.pair_sum_grad(rows, columns, scale, offset, exclude, weight)
        expected = (
            scale * slopes @ columns.double(),
            scale * slopes.T @ rows.double(),
            (slopes * s).sum(),
            slopes.sum(),
        )
        for part, value, which in zip(
            parts, expected, ("rows", "columns", "scale", "offset"), strict=True
        ):
            yield f"{name} pair sum, {which}", _relative(part, value), bound
        yield from _row_comparisons(normal(N, D).to(dtype), normal(N, D).to(dtype), name, bound)


def _row_comparisons(
    z1: Tensor, z2: Tensor, name: str, bound: float
) -> Iterator[tuple[str, float, float]]:
    """Two views, each anchor against one negative: the row that follows its positive."""
    tau = torch.tensor(TEMPERATURE, device=z1.device)
    views = [z.double().requires_grad_() for z in (z1, z2)]
    u1, u2 = (z / z.norm(dim=1, keepdim=True) for z in views)
    positive, negative = (u1 * u2).sum(1), (u1 * u2.roll(-1, 0)).sum(1)
    loss = torch.nn.functional.softplus((negative - positive) / TEMPERATURE).mean()
    gradient = torch.cat(torch.autograd.grad(loss, views))
    unit = step.normalised(z1, z2)
    yield f"{name} unit rows", _relative(unit.rows, torch.cat([u1, u2]).detach()), 1e-6
    lse = (negative / TEMPERATURE).detach().float()
    mean, weights = step.anchors(lse, unit, tau, "softplus")
    yield f"{name} mean", _relative(mean, loss.detach()), 1e-5
    first, second = unit.rows.chunk(2)
    pull = weights[:, None] / tau
    pulls = torch.cat([pull * second.roll(-1, 0), (pull * first).roll(1, 0)])
    found = step.projected(pulls, unit, weights, tau, torch.ones_like(tau), z1.dtype)
    yield f"{name} gradient of the views", _relative(found, gradient), bound


def _relative(found: Tensor, exact: Tensor) -> float:
    return float((found - exact).abs().max() / exact.abs().max())
