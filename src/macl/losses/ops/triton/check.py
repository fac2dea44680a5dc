"""Whether the Triton kernels can be used on a device, and if not, why.

Compilers and drivers differ, and these kernels are compiled where they run. So they are compared
once with the tiled implementation in float64, without autograd: the answer is the same in every
context.
The comparison takes about a second after the kernels are compiled (some seconds more, once). That a
device passed is kept in the user's cache folder; a failure is not, as its cause may go away.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib.util
import os
import warnings
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from macl import __version__
from macl.losses.ops import tiled
from macl.losses.ops.exclusions import Exclusions, Relation
from macl.losses.ops.tiled import Operands, Plan

SHAPES = ((133, 600, 128, False), (133, 133, 100, True), (37, 75, 400, False))
"""Rows, columns, width, groups of the comparison: a width of one tile, of a part of one, of several
pieces; several column splits."""
_reasons: dict[str, str] = {}
"""What this process knows, by device."""


def unavailable(device: torch.device) -> str:
    """The reason not to use the kernels on `device`; empty if they run there and agree.

    For an accelerator that cannot use them the reason is a warning, once per process.
    """
    if str(device) == "cuda" and torch.cuda.is_available():
        device = torch.device("cuda", torch.cuda.current_device())
    if str(device) in _reasons:
        return _reasons[str(device)]
    reason = missing(device)
    if not reason and not _marker(device).exists():
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            return "they are not checked yet, and a CUDA graph is being captured"
        try:
            reason = disagreement(device)
        except torch.cuda.OutOfMemoryError:
            return "there was no memory for checking them"  # the next call tries again
        except Exception as error:  # a compiler or driver that cannot run them, in whichever way
            reason = f"{type(error).__name__}: {str(error)[:300]}"
        if not reason:
            _remember(device)
    _reasons[str(device)] = reason
    if reason and device.type in ("cuda", "xpu"):
        warnings.warn(
            f"the Triton kernels are not used on {device}: {reason}. Plain torch computes the "
            "same, in more time.",
            stacklevel=2,
        )
    return reason


def missing(device: torch.device) -> str:
    """What the kernels need and `device` or the installation does not have."""
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cpu":
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"
        return "" if interpreted else "they need a GPU (or TRITON_INTERPRET=1)"
    if device.type != "cuda" or torch.version.hip is not None:
        name = "ROCm" if device.type == "cuda" else device.type
        return f"they are written and compiled for NVIDIA GPUs, and never ran on {name}"
    if not torch.cuda.is_available():
        return "CUDA is not available"
    if torch.cuda.get_device_capability(device) < (8, 0):
        return "they need a GPU of compute capability 8.0 or more (A100, RTX 30 and later)"
    return ""


def key(device: torch.device) -> str:
    """Identifies what the comparison depends on: device, driver and versions."""
    from triton import __version__ as triton_version  # the package may have another name

    versions = [f"torch {torch.__version__}", f"triton {triton_version}", f"macl {__version__}"]
    parts = [str(device), *versions]
    if device.type == "cuda":
        properties = torch.cuda.get_device_properties(device)
        driver = torch._C._cuda_getDriverVersion()  # type: ignore[attr-defined]
        parts += [properties.name, f"sm_{properties.major}{properties.minor}", f"driver {driver}"]
    return "|".join(parts)


def _marker(device: torch.device) -> Path:
    """An empty file that exists if the device passed: nothing to read or to write in part."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "macl"
    return folder / f"triton-check-{hashlib.sha256(key(device).encode()).hexdigest()[:16]}"


def _remember(device: torch.device) -> None:
    with contextlib.suppress(OSError):  # a cache that cannot be written costs a second per process
        _marker(device).parent.mkdir(parents=True, exist_ok=True)
        _marker(device).touch()


def disagreement(device: torch.device) -> str:
    """The first comparison whose error is beyond its bound; empty if all agree."""
    for name, error, bound in comparisons(device):
        if not error <= bound:  # NaN is wrong too
            return f"{name} differs from plain torch by {error:.1e}, more than {bound:.0e}"
    return ""


def comparisons(device: torch.device) -> Iterator[tuple[str, float, float]]:
    """Name, error and bound of each kernel on small inputs of odd sizes, against float64."""
    from macl.losses.ops.triton import launch

    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> Tensor:
        x = torch.randn(*shape, generator=generator, dtype=torch.float32, device="cpu")
        return x.to(device)

    tau, scale, offset = (torch.tensor(x, device=device) for x in (0.1, 10.0, -10.0))
    for n, m, dim, grouped in SHAPES:
        i, j = torch.arange(n, device=device), torch.arange(m, device=device)
        exclude = Exclusions((3,), Relation(i % 9, j % 7) if grouped else None)
        unit = [torch.nn.functional.normalize(normal(k, dim), dim=1) for k in (n, m)]
        weight, column_weight = normal(n), normal(m)
        for dtype, lse_bound, bound in ((torch.float32, 5e-6, 1e-5), (torch.float16, 5e-5, 1e-3)):
            rows, columns = (x.to(dtype) for x in unit)
            exact = Operands(rows.double(), columns.double(), tau.double())
            name = f"{str(dtype).removeprefix('torch.')}, D = {dim}: "
            both = Plan(exclude, "both")
            lse = tiled.forward(exact, both)[0].lse
            computed = launch.lse(rows, columns, tau, exclude)
            yield name + "logsumexp", float((computed - lse[:n]).abs().max()), lse_bound
            gradient = launch.lse_grad(
                rows, columns, tau, exclude, weight, computed, column_weight, lse[n:].float()
            )
            weights = torch.cat([weight, column_weight]).double()
            expected, _ = tiled.backward(exact, both, lse, weights, columns_too=False)
            yield name + "gradient", _relative(gradient, expected), bound
            if not grouped:
                continue
            exact, plan = Operands(*exact[:2], scale, offset), Plan(exclude, function="softplus")
            sums = launch.pair_sum(rows, columns, scale, offset, exclude)
            yield name + "pair sum", _relative(sums, tiled.pair_sum(exact, plan)[0]), 1e-5
            parts = launch.pair_sum_grad(rows, columns, scale, offset, exclude, weight)
            exact_parts = tiled.pair_sum_grad(exact, plan, weight.double())
            for part, truth, which in zip(parts, exact_parts, Operands._fields, strict=True):
                # Terms of either sign cancel in that of the scale.
                limit = 10 * bound if which == "scale" else bound
                yield f"{name}pair sum, {which}", _relative(part, truth), limit


def _relative(computed: Tensor, exact: Tensor) -> float:
    return float((computed - exact).abs().max() / exact.abs().max())
