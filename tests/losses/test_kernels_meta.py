"""Off the CPU nothing is read back: every loss runs on meta tensors; and its launches are few."""

from __future__ import annotations

from typing import Any

import every_loss
import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from macl import MACL, ContrastiveLoss, InfoNCE, NTXent
from macl.losses import unit
from macl.losses.kernels import selected, tiles

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


# What takes more than 60 launches, and why.
MORE = {
    "per-anchor-hcl": 71,  # one τ per anchor: no symmetric matrix, and gradients of τ in all parts
    "artanh": 68,  # a map of the whole matrix, at two temperatures
    "SupCon-in": 76,  # two logsumexps over different pairs, each with its gradient
    "ISogCLR": 76,  # reads, moves and writes a momentum and a τ per sample
    "FastCLIP-v0": 63,  # u of every sample, and a gradient to τ
    "FastCLIP-v2": 92,  # Adam per sample: four more numbers are read, moved and written
    "FastCLIP-v3": 69,  # as v0, with a price of τ
    "TempNet": 119,  # a network, forward and backward
}
# In their own form, "cross" both ways, a second logsumexp; v2 and TempNet from a second matrix, as
# τ differs between the directions, and TempNet with a second network.
CROSS = {
    "FastCLIP-v0": 76,
    "FastCLIP-v1": 70,
    "FastCLIP-v2": 125,
    "FastCLIP-v3": 82,
    "TempNet": 214,
}
# Positions that are on the device cannot be read: equal ones are looked for there, by sorting.
ON_DEVICE, ON_DEVICE_MOVING = 12, 16


def launches_of(criterion: ContrastiveLoss, **about: Tensor) -> list[str]:
    z1, z2 = (torch.randn(4096, 128, device="meta", requires_grad=True) for _ in range(2))
    criterion.zero_grad()  # adding to a gradient would be a launch
    with Launches() as launches:
        criterion(z1, z2, **about).backward()
    return launches.names


@pytest.mark.parametrize("name", every_loss.LOSSES)
def test_at_most_60_launches_at_4096_pairs(name: str) -> None:
    names = launches_of(every_loss.build(name, "both", 4096).to("meta"))
    assert len(names) <= MORE.get(name, 60)
    # Forward, again backward, and the gradient; columns apart with one τ per row; the margin at a
    # second temperature without gradient.
    products = {"DualTemperature": 4, "artanh": 4, "per-anchor": 4, "per-anchor-hcl": 4}
    assert names.count("aten::mm") == products.get(name, 3)


@pytest.mark.parametrize("own_form", [False, True])
@pytest.mark.parametrize("name", every_loss.OTHERS)
def test_at_most_60_launches_of_the_other_losses(name: str, own_form: bool) -> None:
    form = {} if own_form else {"negatives": "both"}
    criterion = every_loss.OTHERS[name](4096, 128, **form).to("meta")
    bound = MORE.get(name, 60)
    if criterion.negatives == "cross":
        bound = CROSS.get(name, 60)
    on_device = every_loss.about_samples(criterion, 4096, "meta")
    if criterion.takes_indices:
        on_host = every_loss.about_samples(criterion, 4096, "cpu")
        assert len(launches_of(criterion, **on_host)) <= bound
        bound += ON_DEVICE_MOVING if criterion.moves_temperature else ON_DEVICE
    assert len(launches_of(criterion, **on_device)) <= bound


def test_at_most_60_launches_of_infonce_across_views() -> None:
    assert len(launches_of(InfoNCE().to("meta"))) <= 60


@pytest.mark.parametrize(("loss", "most"), [(NTXent, 77), (MACL, 91)])
def test_launches_with_several_positives(loss: type[ContrastiveLoss], most: int) -> None:
    """A logsumexp over the negatives and a sum over the positives: two matrices with gradients."""
    classes = torch.zeros(4096, dtype=torch.int64, device="meta")
    assert len(launches_of(loss().to("meta"), positives=classes)) <= most


@pytest.mark.parametrize("form", ["both", "cross"])
@pytest.mark.parametrize("name", every_loss.OTHERS)
def test_the_other_losses_on_meta_tensors(name: str, form: str) -> None:
    criterion = every_loss.OTHERS[name](6, 4, negatives=form).to("meta")
    z1, z2 = (torch.randn(6, 4, device="meta", requires_grad=True) for _ in range(2))
    about = every_loss.about_samples(criterion, 6, "meta")
    story = criterion.contrast(z1, z2, **about)
    (story.loss + criterion(z1, z2, **about)).backward()
    assert all(leaf.grad is not None for leaf in (z1, z2, *criterion.parameters()))
    assert all(figure.is_meta for figure in story.metrics().values())


@pytest.mark.parametrize("rows", [tiles.CPU_BAND, 20])
@pytest.mark.parametrize("name", [*every_loss.OTHERS, "HCL", "per-anchor-hcl"])
def test_plain_torch_in_one_band_and_in_several(
    name: str, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Positives apart from the logsumexp, mean logits and HCL's one pass, against the CPU's way."""
    views = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for kernel, band in ((None, tiles.CPU_BAND), ("torch", rows)):
        monkeypatch.setattr(tiles, "CPU_BAND", band)
        torch.manual_seed(0)
        if name in every_loss.OTHERS:
            criterion = every_loss.OTHERS[name](7, 4, negatives="both", kernel=kernel)
        else:
            criterion = every_loss.build(name, "both", 7, kernel=kernel)
        criterion.double()
        about = every_loss.about_samples(criterion, 7, "cpu")
        for _ in range(2):  # the second batch meets the state that the first one left
            z1, z2 = (view.clone().requires_grad_() for view in views)
            loss = criterion(z1, z2, **about)
            inputs = [z1, z2, *criterion.parameters()]
            found.append([loss, *torch.autograd.grad(loss, inputs), *criterion.buffers()])
    for one, other in zip(found[1], found[3], strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


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
