"""Several positives with hard negatives, banks, groups and a guide; widths: against loops."""

from __future__ import annotations

import math
from typing import Any

import composition_reference as reference
import pytest
import torch
import torch.nn.functional as F
from composition_reference import Batch
from torch import Tensor

from macl import DCL, MACL, ContrastiveLoss, InfoNCE, NTXent, SigLIP, SupCon
from macl.losses.ops import tiled

N, DIM, EXTRA, TAU = 6, 4, 5, 0.3
FORMS = ("both", "cross", "one-direction", "bank", "hard")
LOSSES: dict[str, Any] = {
    "InfoNCE": InfoNCE,
    "NTXent": NTXent,
    "DCL": DCL,
    "MACL": lambda tau, **options: MACL(tau, 1.0, 0.0, **options),
    "SupCon": SupCon,
    "SigLIP": SigLIP,
}
LABELS = [{0}, {0, 3}, {1}, {1, 2}, {2}, {0}]
LISTED = [(0, 0), (0, 3), (1, 1), (2, 2), (2, 5), (3, 3), (4, 0), (5, 5)]
"""z2's row 4 has no positive."""


def batch_of(form: str, positives: str, grouped: bool, rows: int = N) -> Batch:
    generator = torch.Generator().manual_seed(3)
    parts = torch.randn(N + rows + EXTRA, DIM, generator=generator).double()
    z1, z2, extra = (part.requires_grad_() for part in parts.split([N, rows, EXTRA]))
    batch = Batch(form, z1, z2, extra)
    if positives in ("labels", "several labels"):
        whole = positives == "several labels"
        batch.labels = LABELS if whole else [{min(labels)} for labels in LABELS]
    elif positives != "partner":
        weighted = positives == "weights"
        batch.listed = [
            (r, c, 0.5 + k if weighted else 1.0) for k, (r, c) in enumerate(LISTED) if c < rows
        ]
    if grouped:
        batch.groups = [0, 1, 2, 0, 3, 4]
        batch.extra_groups = [0, 2, 5, 6, 4]
    return batch


def call(criterion: ContrastiveLoss, batch: Batch) -> Tensor:
    more: dict[str, Any] = {}
    if batch.form in ("bank", "hard"):
        more[batch.form] = batch.extra
    if batch.groups is not None:
        more["groups"] = torch.tensor(batch.groups)
        if batch.form in ("bank", "hard"):
            more[f"{batch.form}_groups"] = torch.tensor(batch.extra_groups)
    if batch.labels is not None:
        many = any(len(labels) > 1 for labels in batch.labels)
        hot = torch.tensor([[k in labels for k in range(4)] for labels in batch.labels])
        more["positives"] = hot if many else torch.tensor([min(labels) for labels in batch.labels])
    elif batch.listed is not None:
        rows, columns, weights = zip(*batch.listed, strict=True)
        more["positives"] = (torch.tensor(rows), torch.tensor(columns))
        if set(weights) != {1.0}:
            more["positives"] += (torch.tensor(weights).double(),)
    if batch.guide is not None:
        more["guide"] = batch.guide
    return criterion(batch.z1, batch.z2, **more)


def options_of(batch: Batch) -> dict[str, Any]:
    negatives = "both" if batch.form == "both" else "cross"
    return {
        "negatives": negatives,
        "symmetric": batch.form in ("cross", "hard"),
        "guide_margin": batch.margin,
        "guide_relative": batch.relative,
    }


def check(name: str, batch: Batch, kernel: str) -> None:
    criterion = LOSSES[name](TAU, kernel=kernel, **options_of(batch)).double()
    if name == "SigLIP":  # its parameter was made in single precision
        criterion.temperature.log_scale.data.fill_(-math.log(TAU))
    leaves = [batch.z1, batch.z2, *([batch.extra] if batch.form in ("bank", "hard") else [])]
    got, expected = call(criterion, batch), reference.loss_of(name, batch, TAU)
    torch.testing.assert_close(got, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(
        torch.autograd.grad(got, leaves, allow_unused=True),
        torch.autograd.grad(expected, leaves, allow_unused=True),
        rtol=1e-9,
        atol=1e-10,
    )


@pytest.mark.parametrize("grouped", [False, True])
@pytest.mark.parametrize("positives", ["labels", "several labels", "listed", "weights"])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_several_positives(
    name: str, form: str, positives: str, grouped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = batch_of(form, positives, grouped)
    if name == "SupCon" and batch.listed is not None:
        with pytest.raises(ValueError, match="labels, not a list"):
            call(SupCon(TAU, **options_of(batch)), batch)
        return
    monkeypatch.setattr(tiled, "CPU_TILE", 4)
    for kernel in ("dense", "tiled"):
        check(name, batch, kernel)


@pytest.mark.parametrize("kernel", ["dense", "tiled"])
@pytest.mark.parametrize("form", ["cross", "one-direction", "hard", "bank"])
@pytest.mark.parametrize("name", ["InfoNCE", "DCL", "MACL", "SigLIP"])
def test_views_of_different_lengths(name: str, form: str, kernel: str) -> None:
    check(name, batch_of(form, "weights", False, rows=4), kernel)


@pytest.mark.parametrize("positives", ["partner", "labels"])
@pytest.mark.parametrize(("margin", "relative"), [(0.0, False), (0.3, False), (0.4, True)])
@pytest.mark.parametrize("form", ["both", "cross", "one-direction", "hard"])
@pytest.mark.parametrize("name", ["InfoNCE", "MACL", "SigLIP"])
def test_a_guide_excludes_what_it_finds_more_similar(
    name: str,
    form: str,
    margin: float,
    relative: bool,
    positives: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    batch = batch_of(form, positives, grouped=form == "cross")
    generator = torch.Generator().manual_seed(4)
    g1, g2, g3 = torch.randn(N + N + EXTRA, 3, generator=generator).split([N, N, EXTRA])
    g2 = g1 + 0.8 * g2
    batch.guide = (g1, g2, g3) if form == "hard" else (g1, g2)
    batch.margin, batch.relative = margin, relative
    unguided = Batch(**{**batch.__dict__, "guide": None})
    before, after = (
        sum(len(anchor.negatives) for anchor in reference.anchors_of(b)) for b in (unguided, batch)
    )
    assert 0 < after < before  # the guide has something to say here, and not everything
    monkeypatch.setattr(tiled, "CPU_TILE", 4)
    for kernel in ("dense", "tiled"):
        check(name, batch, kernel)


def test_hard_negatives_that_the_guide_does_not_judge_all_count() -> None:
    batch = batch_of("hard", "partner", False)
    g1, g2 = torch.randn(2, N, 3, generator=torch.Generator().manual_seed(4))
    batch.guide = (g1, g2)
    check("InfoNCE", batch, "dense")


def test_a_guide_gets_no_gradient() -> None:
    batch = batch_of("both", "partner", False)
    guide = torch.randn(2, N, 3, requires_grad=True)
    value = NTXent()(batch.z1, batch.z2, guide=(guide[0], guide[1]))
    assert torch.autograd.grad(value, guide, allow_unused=True) == (None,)


@pytest.mark.parametrize("weights", [None, (0.5, 2.0, 1.0)])
@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name", LOSSES)
def test_the_loss_of_several_widths(
    name: str, form: str, weights: tuple[float, ...] | None
) -> None:
    batch = batch_of(form, "labels", False)
    batch.guide = None if form == "bank" else tuple(torch.randn(2, N, 3))
    dims = (2, 3, None)
    options = options_of(batch)
    whole = call(LOSSES[name](TAU, dims=dims, dim_weights=weights, **options).double(), batch)
    parts = []
    for dim in dims:
        cut = {key: getattr(batch, key)[:, :dim] for key in ("z1", "z2", "extra")}
        part = Batch(**{**batch.__dict__, **cut})
        parts.append(call(LOSSES[name](TAU, **options).double(), part))
    shares = weights or (1 / 3,) * 3
    expected = sum(w * p for w, p in zip(shares, parts, strict=True))
    torch.testing.assert_close(whole, expected)
    leaves = [batch.z1, batch.z2]
    torch.testing.assert_close(
        torch.autograd.grad(whole, leaves), torch.autograd.grad(expected, leaves)
    )


def test_each_width_is_logged_and_a_unit_bank_is_normalized_anew() -> None:
    batch = batch_of("bank", "partner", False)
    bank = F.normalize(batch.extra.detach(), dim=1)
    criterion = NTXent(0.2, dims=(2, None))
    found = criterion.contrast(batch.z1, batch.z2, bank=bank, bank_is_unit=True)
    metrics = found.metrics()
    one = NTXent(0.2)(batch.z1[:, :2], batch.z2[:, :2], bank=bank[:, :2])
    two = NTXent(0.2)(batch.z1, batch.z2, bank=bank)
    torch.testing.assert_close(metrics["loss_2"], one.detach())
    torch.testing.assert_close(metrics[f"loss_{DIM}"], two.detach())
    torch.testing.assert_close(found.loss, (one + two) / 2)
    torch.testing.assert_close(metrics["info_nce"], two.detach())  # of the whole width
