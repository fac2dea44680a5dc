"""MoCo: the key branch, the queue, and what must not leak between them."""

from __future__ import annotations

import copy
from typing import Any

import loops
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import InfoNCE
from macl.methods import MoCo

N, IN, OUT, QUEUE, TAU = 4, 5, 3, 7, 0.2


def views(seed: int) -> tuple[Tensor, Tensor]:
    x1, x2 = torch.randn(
        2, N, IN, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )
    return x1, x2


def moco(**settings: Any) -> MoCo:
    torch.manual_seed(3)
    encoder = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh())
    settings = {"queue_size": QUEUE, "momentum": 0.5, "splits": 2, **settings}
    method = MoCo(encoder, nn.Linear(OUT, OUT), InfoNCE(TAU), OUT, **settings).double()
    # The first rows were drawn in float32, and the loss takes them as unit rows.
    method.queue.rows = unit(method.queue.rows)
    return method


def unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=1, keepdim=True)


def test_two_steps_are_those_of_the_loop() -> None:
    """EMA before the keys, negatives from the queue as it was, then the keys enter it."""
    method = moco()
    # The loss takes the queue as it is, so its rows have to be of length 1 in double precision too.
    method.queue.rows.copy_(F.normalize(method.queue.rows, dim=1))
    slow = copy.deepcopy(nn.Sequential(method.encoder, method.projector))
    bank = list(method.queue.rows.clone())
    optimizer = torch.optim.SGD(method.parameters(), lr=0.5)
    for step in range(2):
        x1, x2 = views(step)
        query = method.projector(method.encoder(x1)).detach()
        fast = nn.Sequential(method.encoder, method.projector)
        for key, q in zip(slow.parameters(), fast.parameters(), strict=True):
            key.data = 0.5 * key.data + 0.5 * q.data
        keys = slow(x2).detach()
        values = [loops.info_nce(query[i], keys[i], bank, TAU) for i in range(N)]

        optimizer.zero_grad()
        result = method(x1, x2)
        result.loss.backward()
        optimizer.step()

        assert result.loss.item() == pytest.approx(sum(values) / N, abs=1e-12)
        for i in range(N):
            bank[(step * N + i) % QUEUE] = unit(keys)[i]
        stored = method.state_dict()
        torch.testing.assert_close(stored["queue.rows"], torch.stack(bank))
        assert int(stored["queue.pointer"]) == (step + 1) * N % QUEUE


def test_the_gradient_does_not_see_the_new_keys_in_the_queue() -> None:
    """Keys wait until the backward pass is over: the gradient is that of the queue as it was."""
    method = moco(momentum=1.0)
    x1, x2 = views(0)
    before, keys = method.queue.rows.clone(), method.key_projector(method.key_encoder(x2))
    method(x1, x2).loss.backward()
    got = [p.grad.clone() for p in method.encoder.parameters() if p.grad is not None]
    method.zero_grad()
    InfoNCE(TAU)(method.projector(method.encoder(x1)), keys, bank=before).backward()
    for one, parameter in zip(got, method.encoder.parameters(), strict=True):
        torch.testing.assert_close(one, parameter.grad)


def test_the_loss_uses_the_queue_itself() -> None:
    """No copy of 65536 rows per step; keys enter when the next batch begins."""
    method = moco()
    (contrasted,) = method.contrasted(method.encode(*views(0)))
    assert contrasted.bank is method.queue.rows
    before = method.queue.rows.clone()
    method(*views(0))
    assert torch.equal(method.queue.rows, before)
    assert method.queue.waiting is not None
    method.prepare()
    assert not torch.equal(method.queue.rows, before)
    assert method.queue.waiting is None


def test_waiting_keys_belong_to_the_state_that_they_were_made_in() -> None:
    method = moco()
    stored = copy.deepcopy(method.state_dict())
    method(*views(0))
    method.load_state_dict(stored)
    method.queue.flush()
    assert torch.equal(method.queue.rows, stored["queue.rows"])


def test_the_key_branch_starts_as_a_copy_and_gets_no_gradient() -> None:
    method = moco()
    for slow, fast in (
        (method.key_encoder, method.encoder),
        (method.key_projector, method.projector),
    ):
        for key, query in zip(slow.parameters(), fast.parameters(), strict=True):
            assert torch.equal(key, query)
            assert key.data_ptr() != query.data_ptr()
    result = method(*views(0))
    result.loss.backward()
    for name, parameter in method.named_parameters():
        is_key = name.startswith("key_")
        assert parameter.requires_grad is not is_key
        assert (parameter.grad is None) is is_key


class Remembering(nn.Module):
    """Passes rows on and keeps the batches that it saw."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(()))
        self.seen: list[Tensor] = []

    def forward(self, x: Tensor) -> Tensor:
        self.seen.append(x.detach())
        return x * self.weight


def test_split_shuffling_does_not_change_whose_key_is_whose() -> None:
    method = MoCo(Remembering(), nn.Identity(), InfoNCE(TAU), IN, queue_size=QUEUE, splits=3)
    method = method.double()
    x1, x2 = (torch.cat([v, v + 1]) for v in views(0))
    torch.manual_seed(0)
    query, keys = method.encode(x1, x2)
    assert torch.equal(query, x1)
    assert torch.equal(keys, x2)
    parts = method.key_encoder.seen
    assert len(parts) == 3
    shuffled = torch.cat(parts)
    assert not torch.equal(shuffled, x2)
    assert {tuple(row.tolist()) for row in shuffled} == {tuple(row.tolist()) for row in x2}


def test_batch_norm_of_the_keys_sees_the_parts() -> None:
    """The statistics of a key's batch are not those of the queries' batch: the shortcut is shut."""
    method = MoCo(nn.BatchNorm1d(IN), nn.Identity(), InfoNCE(TAU), IN, queue_size=QUEUE, splits=2)
    x = views(0)[0].float()
    torch.manual_seed(0)
    query, keys = method.encode(x, x)
    assert not torch.allclose(query, keys)
    torch.manual_seed(0)
    first = torch.randperm(N)[: N // 2]
    alone = nn.BatchNorm1d(IN)(x[first])
    torch.testing.assert_close(keys[first], alone)


def test_small_batches_are_split_in_fewer_parts() -> None:
    """Batch normalization needs two samples a part; nine parts of a batch of four would fail."""
    method = MoCo(nn.BatchNorm1d(IN), nn.Identity(), InfoNCE(TAU), IN, queue_size=QUEUE, splits=9)
    assert method(*(v.float() for v in views(0))).loss.isfinite()


def test_evaluation_changes_nothing() -> None:
    method = moco().eval()
    before = copy.deepcopy(method.state_dict())
    method(*views(0))
    for name, value in method.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_queue_and_pointer_are_in_the_state() -> None:
    method, other = moco(), moco()
    method(*views(0))
    assert {"queue.rows", "queue.pointer"} <= set(method.state_dict())
    other.load_state_dict(method.state_dict())
    assert torch.equal(other.queue.rows, method.queue.rows)
    assert int(other.queue.pointer) == N


@pytest.mark.parametrize("momentum", [-0.1, 1.1])
def test_a_senseless_momentum_is_refused(momentum: float) -> None:
    with pytest.raises(ValueError, match="between 0 and 1"):
        moco(momentum=momentum)
