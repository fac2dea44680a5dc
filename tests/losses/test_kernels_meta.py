"""Off the CPU nothing is read back: every loss runs on meta tensors; and its launches are few."""

from __future__ import annotations

from typing import Any

import every_loss
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from macl import MACL
from macl.losses import unit
from macl.losses.kernels import selected

ALLOCATIONS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided"}


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("form", every_loss.FORMS)
@pytest.mark.parametrize("name", every_loss.LOSSES)
def test_forward_and_backward_on_meta_tensors(name: str, form: str, grouped: bool) -> None:
    n, extra = 6, 9
    criterion = every_loss.build(name, form, n).to("meta")
    z1, z2, more = (
        torch.randn(rows, 4, device="meta", requires_grad=True) for rows in (n, n, extra)
    )
    groups, more_groups = (torch.zeros(k, dtype=torch.int64, device="meta") for k in (n, extra))
    call = every_loss.keywords(form, more, groups, more_groups)
    if not grouped:
        call = {key: value for key, value in call.items() if "groups" not in key}
    weights = torch.rand(n, device="meta")
    story = criterion.contrast(z1, z2, weights=weights, **call)
    (story.loss + criterion(z1, z2, **call)).backward()
    leaves = [z1, z2, *criterion.parameters(), *([more] if form in ("bank", "hard") else [])]
    assert all(leaf.grad is not None and leaf.grad.is_meta for leaf in leaves)
    figures = (story.info_nce, story.alignment, story.floored, story.effective_anchors)
    assert all(figure.is_meta and figure.ndim == 0 for figure in figures)
    assert len(story.margin) == every_loss.anchors(form, n)


def test_similarities_on_meta_tensors() -> None:
    pos, neg = (torch.rand(*shape, device="meta", requires_grad=True) for shape in ((5, 1), (5, 3)))
    MACL().from_similarities(pos, neg).backward()
    assert pos.grad is not None


class Launches(TorchDispatchMode):
    """Counts the operators that run a kernel on the device: all but views and allocations."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = func._schema.name.split("::")[1]
        on_host = isinstance(out, Tensor) and out.device.type == "cpu"
        if not (func.is_view or on_host or name in ALLOCATIONS or name == "promote_types"):
            self.names.append(func._schema.name)
        return out


# Two logsumexps with gradients, and some thirty operations on n numbers for the debiased term:
# HCL. A map of nine operations, twice: the dual temperature at artanh.
MORE = {"HCL": 105, "per-anchor-hcl": 127, "artanh": 85}


@pytest.mark.parametrize("name", every_loss.LOSSES)
def test_at_most_60_launches_at_4096_pairs(name: str) -> None:
    criterion = every_loss.build(name, "both", 4096).to("meta")
    z1, z2 = (torch.randn(4096, 128, device="meta", requires_grad=True) for _ in range(2))
    with Launches() as launches:
        criterion(z1, z2).backward()
    assert len(launches.names) <= MORE.get(name, 60)
    # Forward, again backward, and the gradient; columns apart with one τ per row; the margin at a
    # second temperature without gradient.
    products = {"DualTemperature": 4, "artanh": 4, "HCL": 6, "per-anchor": 4, "per-anchor-hcl": 8}
    assert launches.names.count("aten::mm") == products.get(name, 3)


def test_plain_torch_runs_on_other_devices() -> None:
    assert selected("meta") == "torch"
    assert selected("xpu") == "torch"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("negatives", ["both", "cross"])
def test_invalid_input_gives_nan_unless_validated(
    value: float, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device whose values are not read back."""
    from macl.losses import contrastive, objectives, pairs

    for module in (unit, contrastive, objectives, pairs):
        monkeypatch.setattr(module, "reads_values", lambda z: False)
    z1, z2 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).unbind(0)
    z1[2, 1] = value
    assert MACL(negatives=negatives, kernel="torch")(z1, z2).isnan()
    with pytest.raises(ValueError, match=r"z1 has NaN.*row 2"):
        MACL(negatives=negatives, kernel="torch", validate=True)(z1, z2)
    with pytest.raises(ValueError, match="0 or more"):
        MACL(validate=True)(z2, z2, weights=-torch.ones(4))
    zero = torch.zeros(1, 3, requires_grad=True)
    bank = torch.randn(5, 3)
    loss = MACL(kernel="torch")(zero, z2[:1], bank=bank)
    (gradient,) = torch.autograd.grad(loss, zero)
    assert loss.isfinite()
    assert bool((gradient == 0).all())
