"""Errors of published code: each is named with the test that shows that ours does not have it."""

from __future__ import annotations

import importlib
import math

import pytest
import torch
import torch.nn.functional as F
from temperature_cases import close
from torch import Tensor

from macl import DySTreSS, FastCLIP, ISogCLR, SigLIP, SogCLR, SupCon
from macl.losses.ops import ShiftedCosineTemperature

pytestmark = pytest.mark.filterwarnings("ignore:rho")

HERE = "test_temperatures_published"
IDENTITIES = "test_temperatures_identities"
STATE = "test_temperatures_state"
RANKS = "test_temperatures_distributed"
ALL_RANKS = f"{RANKS}.test_every_loss_is_that_of_one_process"

ERRORS = {
    "DySTreSS: the DCL file lets the gradient through τ(s)": (
        f"{IDENTITIES}.test_dystress_s_gradient_is_that_of_a_fixed_matrix_of_temperatures"
    ),
    "DySTreSS: the branch for c < 0 assigns to the wrong elements": (
        f"{HERE}.test_a_negative_shift_of_dystress"
    ),
    "DySTreSS: s/τ(s) that falls is not told": (
        f"{IDENTITIES}.test_dystress_warns_of_logits_that_fall"
    ),
    "SogCLR: exp(s/τ) overflows in half precision": (
        "test_temperatures_stability.test_half_precision_is_computed_in_float32"
    ),
    "SogCLR: exp(s/τ) overflows for a small τ": (
        f"{IDENTITIES}.test_small_temperatures_neither_overflow_nor_vanish"
    ),
    "SogCLR: a new sample beside known ones is weighted 1/γ": (
        f"{IDENTITIES}.test_a_new_sample_beside_known_ones_starts_at_its_own_g"
    ),
    "SogCLR: u is no buffer": f"{IDENTITIES}.test_state_is_saved",
    "SogCLR: of a repeated index the last one overwrites the others": (
        f"{HERE}.test_a_repeated_index_counts_with_the_mean"
    ),
    "SogCLR: the gather drops the gradients of other ranks' terms": ALL_RANKS,
    "SogCLR, bimodal copy: u1 + u2 is stored unhalved": (
        f"{HERE}.test_u_is_a_mean_over_negatives_and_views"
    ),
    "LibAUC: bimodal, 1/K is missing": f"{HERE}.test_u_is_a_mean_over_negatives_and_views",
    "LibAUC: bimodal, the positive is taken without the rank's offset": ALL_RANKS,
    "LibAUC: only u is exchanged, so τ differs between ranks": (
        f"{RANKS}.test_the_state_is_the_same_on_every_rank"
    ),
    "LibAUC: 'global_learnable' has mean(u)·τ, no logarithm and no h-term": (
        f"{HERE}.test_the_gradient_of_fastclip_s_tau"
    ),
    "iSogCLR: u, τ and momentum are in no checkpoint": (
        f"{STATE}.test_a_state_dict_continues_bit_for_bit"
    ),
    "iSogCLR, bimodal: the diagonal is in g": f"{IDENTITIES}.test_the_diagonal_is_not_a_negative",
    "iSogCLR, bimodal: u starts at 0": (f"{HERE}.test_u_is_a_mean_over_negatives_and_views"),
    "FastCLIP: the h-term of ∂τ is doubled": f"{HERE}.test_the_gradient_of_fastclip_s_tau",
    "FastCLIP: without a process group the embeddings' gradients double": (
        f"{IDENTITIES}.test_gamma_1_gives_tau_times_dcl"
    ),
    "FastCLIP v2: the factor τ_i is missing": f"{IDENTITIES}.test_fastclip_v2_has_the_factor_tau",
    "FastCLIP v0–v2: the value is Σg/u, not the objective": (
        f"{HERE}.test_the_value_of_fastclip_is_its_objective"
    ),
    "TempNet: the outer τmin is ignored, and dropout makes τ random": (
        f"{IDENTITIES}.test_tempnet_s_temperatures_obey_their_bounds_and_are_not_random"
    ),
    "SigLIP: masked blocks are weighted 0, and 0·NaN is NaN": (
        f"{HERE}.test_what_siglip_leaves_out_cannot_spoil_it"
    ),
    "SigLIP: divided by B² instead of by rows": (
        f"{IDENTITIES}.test_siglip_divides_by_rows_and_directions_agree"
    ),
    "SigLIP: ranks need equal batches": ALL_RANKS,
    "SigLIP: t' is clamped": f"{IDENTITIES}.test_siglip_s_scale_has_no_bound",
    "Temperature-free: no gradient past a clamp at 1 − 1e-6": (
        f"{IDENTITIES}.test_temperature_free_has_a_finite_slope_at_equal_positives"
    ),
    "Cosine schedule: ours moved at each step, published is constant within an epoch": (
        f"{IDENTITIES}.test_the_schedule_of_the_paper_is_constant_within_an_epoch"
    ),
    "CLIP's scale: with objectives without W τ falls to its bound": (
        f"{IDENTITIES}.test_a_learned_temperature_without_w_is_warned_of_and_runs_to_its_bound"
    ),
    "SupCon: the maximum includes the row itself, so τ ≲ 0.01 gives log 0": (
        f"{HERE}.test_sup_con_at_a_very_small_temperature"
    ),
    "SupCon: anchors without positives enter the mean as 0": (
        "test_temperatures_reference.test_sup_con_of_one_view_leaves_out_anchors_without_positives"
    ),
    "SupCon: the loss is multiplied by τ/0.07": (
        f"{IDENTITIES}.test_sup_con_of_distinct_labels_is_nt_xent"
    ),
}


@pytest.mark.parametrize("error", ERRORS)
def test_every_error_has_its_test(error: str) -> None:
    module, _, name = ERRORS[error].partition(".")
    assert callable(getattr(importlib.import_module(module), name))


def views(n: int = 6, dim: int = 4, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    z = torch.randn(2, n, dim, generator=generator, dtype=torch.float64)
    return z[0].requires_grad_(), z[1].requires_grad_()


def similarities(z1: Tensor, z2: Tensor) -> Tensor:
    return F.normalize(z1, dim=1) @ F.normalize(z2, dim=1).T


@pytest.mark.parametrize("shift", [-0.3, -1.0, 0.0, 0.4])
def test_a_negative_shift_of_dystress(shift: float) -> None:
    """τmax above c and the wave below, element by element, in any order of similarities."""
    order = torch.randperm(401, generator=torch.Generator().manual_seed(1))
    s = torch.linspace(-1, 1, 401, dtype=torch.float64)[order]
    got = ShiftedCosineTemperature(0.04, 0.05, shift, 0.7).temperature(s)
    for value, tau in zip(s.tolist(), got.tolist(), strict=True):
        wave = 0.04 + 0.005 * (1 + math.cos(math.pi * (value - shift) / 0.7))
        assert tau == pytest.approx(0.05 if value > shift else wave, abs=1e-12)
    DySTreSS(0.04, 0.05, shift=shift)(*views())


def test_a_repeated_index_counts_with_the_mean() -> None:
    """A sampler pads an epoch with samples that it repeats, here within one batch."""
    z1, z2 = views()
    indices = torch.tensor([0, 1, 2, 3, 4, 0])
    apart = SogCLR(0.2, size=6, negatives="cross").double()
    apart(z1, z2, indices=torch.arange(6))
    criterion = SogCLR(0.2, size=6, negatives="cross").double()
    criterion(z1, z2, indices=indices)
    u, single = (c.state.get_buffer("log_u").exp() for c in (criterion, apart))
    close(u[:, 0], (single[:, 0] + single[:, 5]) / 2)
    close(u[:, 1:5], single[:, 1:5])
    isog = ISogCLR(0.2, size=6, rho=0.1).double()
    reverse = ISogCLR(0.2, size=6, rho=0.1).double()
    isog(z1, z2, indices=indices)
    back = torch.arange(6).flip(0)
    reverse(z1[back], z2[back], indices=indices[back])
    for one, two in zip(isog.state.buffers(), reverse.state.buffers(), strict=True):
        close(one, two)  # whichever comes last


def test_u_is_a_mean_over_negatives_and_views() -> None:
    n, tau = 6, 0.25
    z1, z2 = views(n)
    own = torch.eye(n, dtype=torch.bool)
    with torch.no_grad():
        s = similarities(z1, z2)
        h = (s - s.diagonal()[:, None]) / tau
        g1 = h.exp().masked_fill(own, 0).sum(1) / (n - 1)
        g2 = ((s.T - s.diagonal()[:, None]) / tau).exp().masked_fill(own, 0).sum(1) / (n - 1)
    bimodal = ISogCLR(tau, size=n, negatives="cross").double()
    bimodal(z1, z2, indices=torch.arange(n))
    close(bimodal.state.get_buffer("log_u").exp(), torch.stack([g1, g2]))
    with torch.no_grad():
        both = torch.cat([z1, z2])
        e = (similarities(both, both) / tau).exp()
        masked = own.repeat(2, 2)  # oneself and one's positive
        mean = e.masked_fill(masked, 0).sum(1) / (2 * n - 2)
    shared = SogCLR(tau, size=n).double()
    shared(z1, z2, indices=torch.arange(n))
    close(shared.state.get_buffer("log_u")[0].exp(), (mean[:n] + mean[n:]) / 2)


def test_the_gradient_of_fastclip_s_tau() -> None:
    """∂τ = mean over anchors of log u + ρ − (g/u)·E(h/τ), each part once, at u ≠ g."""
    n, tau, rho = 6, 0.2, 0.3
    z1, z2 = views(n)
    v3 = FastCLIP(tau, size=n, rho=rho, gamma=0.5, gamma_epochs=0).double()
    v3(*views(n, seed=5), indices=torch.arange(n))  # u of other embeddings
    before = v3.state.get_buffer("log_u").clone()
    v3.zero_grad()
    v3(z1, z2, indices=torch.arange(n)).backward()
    own = torch.eye(n, dtype=torch.bool)
    with torch.no_grad():
        s = similarities(z1, z2)
        expected, mistaken = [], []
        for side, rows in enumerate((s, s.T)):
            h = (rows - s.diagonal()[:, None]) / tau
            e = h.exp().masked_fill(own, 0)
            g = e.sum(1) / (n - 1)
            u = 0.5 * before[side].exp() + 0.5 * g
            h_term = (e * h).sum(1) / (n - 1) / u
            expected.append((u.log() + rho - h_term).mean())
            mistaken += [(u.log() + rho - 2 * h_term).mean(), u.mean()]
    (log_tau,) = v3.parameters()
    assert log_tau.grad is not None
    slope = log_tau.grad / log_tau.detach().exp()
    sign = torch.sign(slope / torch.stack(expected).mean())  # the parameter may be −log τ
    close(slope * sign, torch.stack(expected).mean(), 1e-6)
    for wrong in mistaken:
        assert abs(float(slope * sign - wrong)) > 1e-2


def test_the_value_of_fastclip_is_its_objective() -> None:
    n, tau = 6, 0.2
    z1, z2 = views(n)
    for version in (0, 1):
        criterion = FastCLIP(tau, size=n, version=version, gamma_epochs=0).double()  # type: ignore[arg-type]
        loss = criterion(z1, z2, indices=torch.arange(n))
        close(loss, criterion.state.get_buffer("log_u").mean())


def test_what_siglip_leaves_out_cannot_spoil_it() -> None:
    """A pair whose logit overflows when multiplied by a weight of 0 would give NaN."""
    z1, z2 = (z.detach().float() for z in views())
    z2[1] = z1[0]  # a false negative at s = 1
    z1, z2 = z1.requires_grad_(), z2.requires_grad_()
    criterion = SigLIP(1e-15, bias=0.0)
    groups = torch.tensor([0, 0, 1, 2, 3, 4])
    loss = criterion(z1, z2, groups=groups)
    gradients = torch.autograd.grad(loss, (z1, z2, *criterion.parameters()))
    assert loss.isfinite()
    for each in gradients:
        assert each.isfinite().all()
    # With distinct groups nothing is left out, and the false negative counts.
    assert criterion(z1, z2).item() > loss.item()


@pytest.mark.parametrize("form", ["out", "in"])
@pytest.mark.parametrize("tau", [0.01, 0.003, 0.001])
def test_sup_con_at_a_very_small_temperature(tau: float, form: str) -> None:
    """The nearest other row is far below the row itself: exp((s − 1)/τ) is 0 in float32."""
    labels = torch.tensor([0, 1, 0, 1, 2, 2])
    z1, z2 = (z.detach() for z in views(dim=3, seed=3))
    exact = SupCon(tau, form=form)(z1, z2, labels=labels)  # type: ignore[arg-type]
    single = [z.float().requires_grad_() for z in (z1, z2)]
    loss = SupCon(tau, form=form)(*single, labels=labels)  # type: ignore[arg-type]
    gradients = torch.autograd.grad(loss, single)
    torch.testing.assert_close(loss, exact.float(), rtol=1e-4, atol=1e-4)
    for each in gradients:
        assert each.isfinite().all()
        assert bool(each.any())
