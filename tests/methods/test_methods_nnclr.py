"""NNCLR: the positive is the nearest neighbor in the support set."""

from __future__ import annotations

import copy

import loops
import pytest
import torch
from torch import Tensor, nn

from macl import InfoNCE, NTXent
from macl.methods import NNCLR

N, IN, OUT, QUEUE, TAU = 4, 5, 3, 9, 0.2


def views(seed: int = 0) -> tuple[Tensor, Tensor]:
    x1, x2 = torch.randn(
        2, N, IN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return x1, x2


def nnclr() -> NNCLR:
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh())
    loss = InfoNCE(TAU, symmetric=False)
    heads = nn.Linear(OUT, OUT), nn.Linear(OUT, OUT)
    return NNCLR(encoder, *heads, loss, OUT, queue_size=QUEUE).double()


def one_direction(z: Tensor, p: Tensor, bank: Tensor) -> float:
    """Anchors are neighbors of one view, candidates the predictions of the other."""
    values = []
    for i in range(N):
        neighbor = loops.nearest(z[i], bank)
        others = [p[j] for j in range(N) if j != i]
        values.append(loops.info_nce(neighbor, p[i], others, TAU))
    return sum(values) / N


def test_the_loss_is_that_of_the_loop_and_one_view_enters_the_support_set() -> None:
    method = nnclr()
    x1, x2 = views()
    z1, z2 = (method.projector(method.encoder(x)).detach() for x in (x1, x2))
    p1, p2 = (method.predictor(z).detach() for z in (z1, z2))
    bank = method.queue.rows.clone()
    result = method(x1, x2)
    expected = (one_direction(z1, p2, bank) + one_direction(z2, p1, bank)) / 2
    assert result.loss.item() == pytest.approx(expected, abs=1e-12)
    bank[:N] = z1 / z1.norm(dim=1, keepdim=True)
    torch.testing.assert_close(method.queue.rows, bank)
    assert int(method.queue.pointer) == N


def test_without_the_predictor_the_loss_would_be_another() -> None:
    method = nnclr()
    other = copy.deepcopy(method)
    other.predictor = nn.Identity()
    assert method(*views()).loss.item() != pytest.approx(other(*views()).loss.item(), rel=1e-3)


def test_neighbors_carry_no_gradient_and_all_parts_learn() -> None:
    method = nnclr()
    z1, z2, p1, p2 = method.encode(*views())
    assert not z1.requires_grad
    assert not z2.requires_grad
    method.step(z1, z2, p1, p2).loss.backward()
    for name, parameter in method.named_parameters():
        assert parameter.grad is not None, name
        assert float(parameter.grad.abs().sum()) > 0, name
    assert not method.queue.rows.requires_grad


def test_evaluation_changes_nothing() -> None:
    method = nnclr().eval()
    before = copy.deepcopy(method.state_dict())
    method(*views())
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_the_support_set_is_in_the_state() -> None:
    method, other = nnclr(), nnclr()
    method(*views())
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.queue.rows, method.queue.rows)
    assert int(other.queue.pointer) == N


def test_half_precision_predictions_meet_the_full_precision_support_set() -> None:
    method = nnclr().float()
    with torch.autocast("cpu", torch.bfloat16):
        result = method(*(x.float() for x in views()))
    result.loss.backward()
    assert result.loss.dtype == torch.float32
    assert result.loss.isfinite()


@pytest.mark.parametrize("loss", [NTXent(), InfoNCE()])
def test_a_loss_of_another_form_is_refused(loss: NTXent | InfoNCE) -> None:
    with pytest.raises(ValueError, match="symmetric=False"):
        NNCLR(nn.Identity(), nn.Identity(), nn.Identity(), loss, 3, queue_size=4)
