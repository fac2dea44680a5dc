"""The temperature that finds its level: against bisection in float64, guards, ranks, state."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from macl import DCL, HCL, MACL, AutoTemperature, InfoNCE, NTXent, SogCLR
from macl.testing import assert_ddp_exact


def views(n: int = 48, dim: int = 16, noise: float = 0.5, shift: float = 0.0) -> tuple[Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    z = torch.randn(n, dim, generator=generator, dtype=torch.float64)
    z[:, 0] += shift
    return tuple(
        z + noise * torch.randn(n, dim, generator=generator, dtype=torch.float64) for _ in range(2)
    )


def kl_share(z1: Tensor, z2: Tensor, tau: float) -> float:
    """Mean KL(P̂ ‖ uniform) over log K of the anchors of both views, by a loop."""
    z = torch.nn.functional.normalize(torch.cat([z1, z2]), dim=1)
    n, total = len(z1), 0.0
    for i in range(2 * n):
        others = [j for j in range(2 * n) if j not in (i, (i + n) % (2 * n))]
        p = torch.softmax((z[others] @ z[i]) / tau, 0)
        total += math.log(len(others)) + float((p * p.log()).sum())
    return total / (2 * n) / math.log(2 * n - 2)


def level(z1: Tensor, z2: Tensor, share: float) -> float:
    """τ at which the share is reached, by bisection."""
    low, high = 0.005, 5.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if kl_share(z1, z2, middle) > share else (low, middle)
    return low


@pytest.mark.parametrize("start", [0.05, 0.2, 1.0])
@pytest.mark.parametrize("share", [0.2, 0.5])
def test_tau_reaches_the_level_of_the_target(start: float, share: float) -> None:
    z1, z2 = views()
    rule = AutoTemperature(share, temperature=start, tau_min=0.005, tau_max=5.0)
    criterion = NTXent(rule)
    for _ in range(60):
        criterion(z1, z2)
    found = float(rule.log_temperature.exp())
    assert found == pytest.approx(level(z1, z2, share), rel=1e-3)
    metrics = criterion.contrast(z1, z2).metrics()
    assert float(metrics["kl_share"]) == pytest.approx(kl_share(z1, z2, found), rel=1e-3)
    assert float(metrics["kl_target"]) == pytest.approx(share)


def test_evaluation_moves_nothing_and_a_step_moves_little() -> None:
    criterion = NTXent("auto")
    criterion.eval()
    criterion(*views())
    rule = criterion.temperature
    assert isinstance(rule, AutoTemperature)
    assert float(rule.log_temperature.exp()) == pytest.approx(0.2)
    criterion.train()
    before = rule.log_temperature.clone()
    criterion(*views())
    assert 0 < abs(float(rule.log_temperature - before)) <= rule.step + 1e-6


def test_embeddings_in_a_cone_keep_tau_at_its_start() -> None:
    z1, z2 = views(shift=20.0)
    assert level(z1, z2, 0.44) < 0.05  # where it would go
    criterion = NTXent(AutoTemperature(0.44, temperature=0.2, tau_min=0.01))
    for _ in range(40):
        criterion(z1, z2)
    assert float(criterion.contrast(z1, z2).temperature) == pytest.approx(0.2, rel=1e-5)
    with torch.no_grad():  # a τ that had come down before returns
        criterion.temperature.log_temperature.fill_(math.log(0.02))
    for _ in range(60):
        criterion(z1, z2)
    assert float(criterion.contrast(z1, z2).temperature) == pytest.approx(0.2, rel=1e-3)


def test_tau_stays_within_its_bounds() -> None:
    z1, z2 = views(noise=0.01)
    rule = AutoTemperature(0.95, temperature=0.2)
    criterion = NTXent(rule)
    for _ in range(60):
        criterion(z1, z2)
    assert float(rule.log_temperature.exp()) == pytest.approx(0.05)
    assert criterion.contrast(z1, z2).floored


def test_losses_without_w_have_a_higher_target() -> None:
    shares = [c.temperature.kl_share for c in (NTXent("auto"), MACL("auto", reweight=False))]
    assert shares == [0.44, 0.44]
    assert [c.temperature.kl_share for c in (DCL("auto"), MACL("auto"))] == [0.53, 0.53]


def test_state_travels_with_the_checkpoint() -> None:
    one, two = NTXent("auto"), NTXent("auto")
    for _ in range(5):
        one(*views())
    two.load_state_dict(one.state_dict())
    for _ in range(3):
        torch.testing.assert_close(one(*views()), two(*views()), rtol=0, atol=0)
    assert torch.equal(one.temperature.log_temperature, two.temperature.log_temperature)


def test_a_bank_and_groups_work() -> None:
    z1, z2 = views()
    criterion = InfoNCE("auto")
    criterion(z1, z2, bank=z1.flip(0))
    criterion(z1, z2, groups=torch.zeros(len(z1), dtype=torch.int64))  # no negative is left
    assert torch.isfinite(criterion.temperature.log_temperature)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: AutoTemperature(1.0), "kl_share"),
        (lambda: AutoTemperature(2.15), "kl_share is the share of log K"),
        (lambda: AutoTemperature(0.4, temperature=0.1, tau_min=0.2), "start temperature"),
        (lambda: NTXent("automatic"), '"auto"'),
        (lambda: HCL("auto"), "use a number"),
        (lambda: SogCLR("auto", size=8), "use a number"),
    ],
)
def test_mistakes(make: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()  # type: ignore[operator]


class Second(torch.nn.Module):
    """The loss at the τ that a first call has moved."""

    def __init__(self) -> None:
        super().__init__()
        self.criterion = NTXent("auto", gather=True)

    def forward(self, z1: Tensor, z2: Tensor) -> Tensor:
        self.criterion.load_state_dict(NTXent("auto").state_dict())
        self.criterion(z1, z2)
        return self.criterion(z1, z2)


@pytest.mark.slow
def test_ranks_have_the_tau_of_the_global_batch() -> None:
    assert_ddp_exact(Second(), worlds=(2,))
