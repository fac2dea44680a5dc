"""Whole losses on the Triton kernels in the interpreter, against the float64 loops of reference.py.

    TRITON_INTERPRET=1 python tests/losses/triton_fused.py

prints one line of JSON: {"checks": {case: [[check, error, bound], …]}, "launches": {case: names}}.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import reference
import torch
from torch import Tensor
from triton_reference import Dispatched, relative

from macl import DCL, MACL, ContrastiveLoss, FlatNCE, InfoNCE, NTXent
from macl.losses import contrastive, objectives, pairs, unit
from macl.losses.kernels.triton_launch import Launch

Check = tuple[str, float, float]
N, D = 18, 20  # more than one program of every kernel, the last incomplete


def views(n: int = N, dim: int = D, dtype: torch.dtype = torch.float32) -> Tensor:
    """(2, n, D) views that agree in part, of lengths other than 1."""
    one, noise = torch.randn(2, n, dim, generator=torch.Generator().manual_seed(n + dim)).unbind(0)
    return torch.stack([3 * one, one + noise]).to(dtype)


def compared(
    make: Callable[..., ContrastiveLoss],
    objective: str,
    z: Tensor,
    *,
    tau: float = 0.1,
    alpha: float = 0.0,
    threshold: float = 0.0,
    form: str = "both",
    scale: float = 1.0,
) -> Iterator[Check]:
    """The loss and its gradient, times `scale`, against the loops."""
    shape = {"negatives": "both" if form == "both" else "cross", "symmetric": form != "one"}
    criterion = make(kernel="triton", **shape)
    z1, z2 = (view.clone().requires_grad_() for view in z)
    loss = criterion(z1, z2)
    assert "Fused" in type(loss.grad_fn).__name__
    assert loss.dtype == torch.float32
    found = torch.cat(torch.autograd.grad(scale * loss, (z1, z2)))
    assert found.dtype == z.dtype
    n = z.shape[1]
    if form == "both":
        anchors = reference.both_views(n, None)
    else:
        anchors = reference.cross_view(n, None, form == "cross")
    values, gradient = reference.loss_and_gradient(
        reference.Loss(objective, tau, alpha=alpha, threshold=threshold),
        z.double().flatten(0, 1).tolist(),
        anchors,
        [scale / len(anchors)] * len(anchors),
    )
    yield "value", abs(loss.item() - math.fsum(values) / len(values)), 1e-6 + 4e-7 / tau
    bound = 1e-5 if z.dtype == torch.float32 else 1e-2
    yield "gradient", relative(found, torch.tensor(gradient, dtype=torch.float64)), bound


def nt_xent() -> Iterator[Check]:
    yield from compared(NTXent, "info_nce", views())
    yield from compared(lambda **form: NTXent(0.05, **form), "info_nce", views(3), tau=0.05)


def info_nce() -> Iterator[Check]:
    yield from compared(InfoNCE, "info_nce", views(), form="cross")
    yield from compared(InfoNCE, "info_nce", views(5), form="one")


def dcl() -> Iterator[Check]:
    yield from compared(DCL, "dcl", views())
    yield from compared(DCL, "dcl", views(5), form="one", scale=-3.0)


def flat_nce() -> Iterator[Check]:
    yield from compared(FlatNCE, "flat_nce", views(5), scale=3.0)


def macl() -> Iterator[Check]:
    def make(**form: Any) -> MACL:
        return MACL(0.1, 0.5, 0.2, **form)

    settings: dict[str, Any] = {"alpha": 0.5, "threshold": 0.2}
    yield from compared(make, "reweighted", views(), **settings)
    yield from compared(make, "reweighted", views(5), form="cross", **settings)
    # Positives that are equal: x is far below 0, where both parts of the ratio are small.
    easy = views(5)[:1].repeat(2, 1, 1)
    yield from compared(lambda **form: MACL(0.1, 0.0, **form), "reweighted", easy)
    plain = MACL(0.1, 0.5, 0.2, reweight=False, kernel="triton")
    yield from compared(lambda **form: plain, "info_nce", views(5), **settings)


def two_pairs() -> Iterator[Check]:
    return compared(NTXent, "info_nce", views(2, 1 + D))


def one_component() -> Iterator[Check]:
    return compared(NTXent, "info_nce", views(3, 1))


def wide() -> Iterator[Check]:
    """Rows longer than a row kernel takes at a time."""
    return compared(NTXent, "info_nce", views(3, 150))


def bfloat16() -> Iterator[Check]:
    return compared(MACL, "reweighted", views(5, dtype=torch.bfloat16), alpha=0.5)


def float16() -> Iterator[Check]:
    return compared(NTXent, "info_nce", views(5, dtype=torch.float16))


def extreme_lengths() -> Iterator[Check]:
    """Squares of these leave the range of float32; the gradient is in units of 1/length."""
    z = views(4)
    lengths = torch.tensor([1e-25, 1e25, 1.0, 1e-15])[:, None]
    found = gradients(NTXent(kernel="triton"), z * lengths)
    expected = gradients(NTXent(), z)
    yield "value", abs(float(found[0] - expected[0])), 5e-6
    for one, other in zip(found[1:], expected[1:], strict=True):
        yield "gradient", relative(one * lengths, other.double()), 1e-5


def zero_row() -> Iterator[Check]:
    """As in the other implementations: similarity 0 to all, no gradient of its own."""
    z = views(5)
    z[0, 3] = 0
    found, expected = gradients(MACL(kernel="triton"), z), gradients(MACL(kernel="torch"), z)
    for one, other in zip(found, expected, strict=True):
        yield "as in plain torch", relative(one, other.double()), 1e-5
    yield "no gradient", float(found[1][3].abs().max()), 0.0


def invalid_rows() -> Iterator[Check]:
    """NaN and ∞ give NaN, where values are not read back."""
    for value in (math.nan, math.inf):
        z = views(4)
        z[1, 2, 3] = value
        with as_on_a_device():
            for make in (NTXent, MACL, FlatNCE, DCL, InfoNCE):
                yield "NaN", 1.0 - float(make(kernel="triton")(*z).isnan()), 0.0
            _, one, two = gradients(NTXent(kernel="triton"), z)
        yield "gradient", float((~one.isnan()).sum() + (~two.isnan()).sum()), 0.0


def other_inputs() -> Iterator[Check]:
    """Views that are not contiguous, that need no gradient, one tensor twice."""
    z1, z2 = views(5)
    expected = NTXent()(z1, z2)
    criterion = NTXent(kernel="triton")
    across = criterion(z1.T.contiguous().T, z2.T.contiguous().T)
    yield "strides", abs(float(across - expected)), 5e-6
    frozen = criterion(z1, z2)
    yield "no gradient", abs(float(frozen - expected)) + float(frozen.requires_grad), 5e-6
    leaf = z1.clone().requires_grad_()
    (found,) = torch.autograd.grad(criterion(leaf, z2), leaf)
    yield "one view", relative(found, gradients(NTXent(), torch.stack([z1, z2]))[1].double()), 1e-5
    (found,) = torch.autograd.grad(criterion(leaf, leaf), leaf)
    twice = gradients(NTXent(), torch.stack([z1, z1]))
    yield "twice", float((found - twice[1] - twice[2]).abs().max()), 1e-6


def refusals() -> Iterator[Check]:
    """The same errors as elsewhere."""
    z1, z2 = (view.requires_grad_() for view in views(3))
    loss = NTXent(kernel="triton")(z1, z2)
    yield "twice", float(not raises("no second derivative", lambda: again(loss, z1))), 0.0
    broken = torch.full_like(z1, math.nan)
    yield "NaN", float(not raises("z2 has NaN", lambda: NTXent(kernel="triton")(z1, broken))), 0.0
    one = raises("single pair", lambda: NTXent(kernel="triton")(z1[:1], z2[:1]))
    yield "one pair", float(not one), 0.0


def compiled() -> Iterator[Check]:
    """While compiling, the operator takes its place, as one graph."""
    z = views(3)
    criterion = NTXent(kernel="triton")
    whole: Any = torch.compile(criterion, fullgraph=True, backend="aot_eager")
    for one, other in zip(gradients(whole, z), gradients(criterion, z), strict=True):
        yield "as in eager mode", relative(one, other.double()), 1e-5


def again(loss: Tensor, z: Tensor) -> None:
    torch.autograd.grad(loss, z, create_graph=True)


def raises(message: str, call: Callable[[], Any]) -> bool:
    try:
        call()
    except (RuntimeError, ValueError) as error:
        return message in str(error)
    return False


def gradients(criterion: ContrastiveLoss, z: Tensor) -> tuple[Tensor, ...]:
    leaves = [view.clone().requires_grad_() for view in z]
    loss = criterion(*leaves)
    return loss.detach(), *torch.autograd.grad(loss, leaves)


@contextmanager
def as_on_a_device() -> Iterator[None]:
    """No value is read back, as where the CPU does not hold them."""
    modules, reads = (unit, contrastive, objectives, pairs), unit.reads_values
    try:
        for module in modules:
            module.reads_values = lambda z: False  # type: ignore[attr-defined]
        yield
    finally:
        for module in modules:
            module.reads_values = reads  # type: ignore[attr-defined]


class Launches(Dispatched):
    """Names of the operators that launch a kernel, and of the Triton kernels, which do not run."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.is_view:
            return func(*args, **(kwargs or {}))
        return super().__torch_dispatch__(func, types, args, kwargs)


def launches(criterion: ContrastiveLoss, dtype: torch.dtype = torch.float32) -> list[str]:
    """What a step at N = 4,096 launches, forward and backward."""
    z1, z2 = (torch.randn(4096, 128).to(dtype).requires_grad_() for _ in range(2))
    run, counted = Launch.run, Launches()
    Launch.run = lambda self: counted.names.append(f"triton {self.kernel}")  # type: ignore
    try:
        with as_on_a_device(), counted:
            criterion(z1, z2).backward()
    finally:
        Launch.run = run  # type: ignore[method-assign]
    return counted.names


LAUNCHES: dict[str, Callable[[], list[str]]] = {
    "NTXent": lambda: launches(NTXent(kernel="triton")),
    "NTXent bfloat16": lambda: launches(NTXent(kernel="triton"), torch.bfloat16),
    "MACL": lambda: launches(MACL(kernel="triton")),
    "MACL bfloat16": lambda: launches(MACL(kernel="triton"), torch.bfloat16),
    "DCL": lambda: launches(DCL(kernel="triton")),
    "FlatNCE": lambda: launches(FlatNCE(kernel="triton")),
    "InfoNCE": lambda: launches(InfoNCE(kernel="triton")),
    "MACL cross": lambda: launches(MACL(kernel="triton", negatives="cross")),
}
CASES: dict[str, Callable[[], Iterator[Check]]] = {
    case.__name__: case
    for case in (
        nt_xent, info_nce, dcl, flat_nce, macl, two_pairs, one_component, wide, bfloat16, float16,
        extreme_lengths, zero_row, invalid_rows, other_inputs, refusals,
        compiled,
    )
}  # fmt: skip


def main() -> None:
    torch.set_num_threads(1)
    found = {"checks": {name: list(case()) for name, case in CASES.items()}}
    print(json.dumps({**found, "launches": {name: count() for name, count in LAUNCHES.items()}}))


if __name__ == "__main__":
    main()
