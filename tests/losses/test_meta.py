"""Off the CPU nothing is read back: every loss runs on meta tensors; and its launches are few."""

from __future__ import annotations

import warnings
from typing import Any

import every_loss
import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from macl import MACL, ContrastiveLoss, InfoNCE, NTXent
from macl.losses import unit
from macl.losses.build import Inputs
from macl.losses.ops import selected, tiled

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


# What takes more than 60 launches, and why. The batch is the largest whose matrix is held on an
# accelerator; above, there is one launch of Triton's for each of these passes.
MORE = {
    "DualTemperature": 68,  # margins at two temperatures
    "cosine": 61,  # a τ that is computed from the step
    "learned": 62,  # the same, with its gradient
    "HCL": 112,  # two logsumexps, at τ/(1 + β) and τ/β, each with its gradient
    "per-anchor-hcl": 138,  # the same with one τ per anchor: gradients of τ in all parts
    "artanh": 90,  # a map of the whole matrix and of the positives, at two temperatures
    "DySTreSS-shifted": 61,  # its exponentials need each row's maximum
    "SigLIP": 61,  # a sum over pairs, with gradients to t and b
    "SupCon": 84,  # a logsumexp over all pairs and a sum over the positives
    "SupCon-in": 83,  # two logsumexps over different pairs, each with its gradient
    "SogCLR": 103,  # reads u of every sample, joins its anchors by sorting, writes u
    "ISogCLR": 140,  # reads, moves and writes a momentum and a τ per sample
    "FastCLIP-v0": 127,  # u of every sample, and a gradient to τ
    "FastCLIP-v1": 114,  # u of every sample, and γ of the epoch
    "FastCLIP-v2": 171,  # Adam per sample: four more numbers are read, moved and written
    "FastCLIP-v3": 133,  # as v0, with a price of τ
    "TempNet": 170,  # a network, forward and backward
}
# In their own form, "cross" both ways, a second logsumexp; v2 and TempNet from a second matrix, as
# τ differs between the directions, and TempNet with a second network.
CROSS = {
    "FastCLIP-v0": 139,
    "FastCLIP-v1": 126,
    "FastCLIP-v2": 210,
    "FastCLIP-v3": 145,
    "TempNet": 253,
}


def launches_of(criterion: ContrastiveLoss, **about: Tensor) -> list[str]:
    z1, z2 = (torch.randn(2048, 128, device="meta", requires_grad=True) for _ in range(2))
    criterion.zero_grad()  # adding to a gradient would be a launch
    with Launches() as launches:
        criterion(z1, z2, **about).backward()
    return launches.names


@pytest.mark.parametrize("name", every_loss.LOSSES)
def test_at_most_60_launches_at_2048_pairs(name: str) -> None:
    names = launches_of(every_loss.build(name, "both", 2048).to("meta"))
    assert len(names) <= MORE.get(name, 60)
    # The similarities and their gradient; columns apart with one τ per row; the margin at a second
    # temperature without gradient; HCL's two logsumexps.
    products = {"DualTemperature": 3, "artanh": 3, "per-anchor": 3, "HCL": 4, "per-anchor-hcl": 6}
    assert names.count("aten::mm") == products.get(name, 2)


@pytest.mark.parametrize("own_form", [False, True])
@pytest.mark.parametrize("name", every_loss.OTHERS)
def test_at_most_60_launches_of_the_other_losses(name: str, own_form: bool) -> None:
    form = {} if own_form else {"negatives": "both"}
    criterion = every_loss.OTHERS[name](2048, 128, **form).to("meta")
    bound = MORE.get(name, 60)
    if criterion.negatives == "cross":
        bound = CROSS.get(name, 60)
    for place in ("meta", "cpu"):  # of the samples' positions
        about = every_loss.about_samples(criterion, 2048, place)
        assert len(launches_of(criterion, **about)) <= bound


def test_at_most_60_launches_of_infonce_across_views() -> None:
    assert len(launches_of(InfoNCE().to("meta"))) <= 60


@pytest.mark.parametrize(("loss", "most"), [(NTXent, 90), (MACL, 112)])
def test_launches_with_several_positives(loss: type[ContrastiveLoss], most: int) -> None:
    """A logsumexp over the negatives and a sum over the positives: two matrices with gradients."""
    classes = torch.zeros(2048, dtype=torch.int64, device="meta")
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


@pytest.mark.parametrize("name", [*every_loss.OTHERS, "HCL", "per-anchor-hcl"])
def test_tiles_and_the_held_matrix_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiled, "CPU_TILE", 5)
    views = torch.randn(2, 7, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for kernel in ("dense", "tiled"):
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


@pytest.mark.parametrize("device", ["meta", "xpu", "mps"])
def test_plain_torch_runs_on_other_devices(device: str) -> None:
    assert selected(100, device=device).name == "dense"
    assert selected(10_000, device=device).name == "tiled"


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
@pytest.mark.parametrize("negatives", ["both", "cross"])
def test_invalid_input_gives_nan_unless_validated(
    value: float, negatives: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a device whose values are not read back."""
    from macl.losses import base

    for module in (unit, base):
        monkeypatch.setattr(module, "reads_values", lambda z: False)
    z1, z2 = torch.randn(2, 4, 3, generator=torch.Generator().manual_seed(0)).unbind(0)
    z1[2, 1] = value
    assert MACL(negatives=negatives, kernel="tiled")(z1, z2).isnan()
    with pytest.raises(ValueError, match=r"z1 has NaN.*row 2"):
        MACL(negatives=negatives, kernel="tiled", validate=True)(z1, z2)
    with pytest.raises(ValueError, match="0 or more"):
        MACL(validate=True)(z2, z2, weights=-torch.ones(4))
    zero = torch.zeros(1, 3, requires_grad=True)
    bank = torch.randn(5, 3)
    loss = MACL(kernel="tiled")(zero, z2[:1], bank=bank)
    (gradient,) = torch.autograd.grad(loss, zero)
    assert loss.isfinite()
    assert bool((gradient == 0).all())


HALF, WHOLE = torch.float16, torch.float32


@pytest.mark.parametrize(
    ("precision", "given", "stored"),
    [
        ("auto", WHOLE, WHOLE),
        ("auto", HALF, HALF),
        ("auto", torch.bfloat16, HALF),
        ("float16", WHOLE, HALF),
        ("float32", torch.bfloat16, WHOLE),
        ("float16", torch.float64, torch.float64),
    ],
)
def test_precision_of_unit_rows(precision: Any, given: torch.dtype, stored: torch.dtype) -> None:
    """Of every form; on the CPU half precision would be slower, and is not used."""
    z1, z2, bank = (torch.randn(n, 4, device="meta", dtype=given) for n in (6, 6, 9))
    for form in ({}, {"negatives": "cross"}):
        (side, *_) = MACL(precision=precision, **form).pairs(Inputs(z1, z2)).sides
        assert side.rows.dtype == stored
    (side,) = MACL(precision=precision).pairs(Inputs(z1, z2, bank)).sides
    assert side.rows.dtype == stored
    on_cpu = torch.randn(6, 4).to(given)
    (side, *_) = MACL(precision=precision).pairs(Inputs(on_cpu, on_cpu)).sides
    assert side.rows.dtype in (WHOLE, torch.float64)
    with pytest.raises(ValueError, match='precision is "auto", "float32" or "float16"'):
        MACL(precision="tf32")  # type: ignore[arg-type]


class Formed(Exception):
    """The pairs are there: what follows needs a GPU."""


@pytest.mark.parametrize(
    ("autocast", "precision", "given", "stored"),
    [
        (None, "auto", WHOLE, WHOLE),
        (torch.bfloat16, "auto", WHOLE, HALF),  # as of an encoder that ends in a normalization
        (torch.float16, "auto", WHOLE, HALF),
        (torch.bfloat16, "float32", WHOLE, WHOLE),
        (torch.bfloat16, "auto", torch.float64, torch.float64),
    ],
)
def test_autocast_asks_for_half_precision_whatever_the_embeddings_are(
    autocast: torch.dtype | None, precision: Any, given: torch.dtype, stored: torch.dtype
) -> None:
    """On a GPU, of which there are fake tensors here."""

    class Stops(MACL):
        def pairs(self, inputs: Inputs) -> Any:
            formed = super().pairs(inputs)
            assert {side.rows.dtype for side in formed.sides} == {stored}
            raise Formed

    before = torch.get_autocast_dtype("cuda")
    with FakeTensorMode(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch: autocast on CUDA without a GPU
        z1, z2 = (torch.randn(6, 4, device="cuda", dtype=given) for _ in range(2))
        torch.set_autocast_enabled("cuda", autocast is not None)
        torch.set_autocast_dtype("cuda", autocast or before)
        try:
            for form in ({}, {"negatives": "cross"}, {"dims": (2, None)}):
                with pytest.raises(Formed):
                    Stops(precision=precision, **form)(z1, z2)
        finally:
            torch.set_autocast_enabled("cuda", False)
            torch.set_autocast_dtype("cuda", before)
