"""`macl.cached` takes the plain step's gradient in chunks; `macl.plan` says which chunk fits."""

from __future__ import annotations

import os
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

import macl
from macl import MACL, InfoNCE, LearnedTemperature, NTXent
from macl.testing import assert_ddp_exact

IN, OUT, ROWS = 6, 5, 11


def encoder(*more: nn.Module) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(IN, 8), nn.Tanh(), *more, nn.Linear(8, OUT)).double()


def views(count: int = 2, rows: int = ROWS) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return list(torch.randn(count, rows, IN, dtype=torch.float64, generator=generator))


def step_of(modules: Any, loss: Tensor) -> list[Tensor]:
    parameters = [p for module in modules for p in module.parameters()]
    return [loss.detach(), *torch.autograd.grad(loss, parameters)]


def same(one: list[Tensor], two: list[Tensor]) -> None:
    assert len(one) == len(two) > 1
    for a, b in zip(one, two, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)
    assert max(float(b.abs().max()) for b in two[1:]) > 1e-4


@pytest.mark.parametrize("chunk", [1, 3, 10, 64])
def test_the_step_is_the_plain_one(chunk: int) -> None:
    net = encoder()
    one, two = views()
    got = step_of([net], macl.cached(net, MACL(alpha=1.0), chunk=chunk)(one, two))
    same(got, step_of([net], MACL(alpha=1.0)(net(one), net(two))))


def test_hard_negatives_groups_and_a_learned_temperature() -> None:
    net, criterion = encoder(), InfoNCE(LearnedTemperature(0.2)).double()
    one, two, three, four = views(4)
    groups = torch.arange(ROWS) // 2
    step = macl.cached(net, criterion, chunk=4)
    assert {id(p) for p in step.parameters()} == {
        id(p) for module in (net, criterion) for p in module.parameters()
    }
    got = step_of([net, criterion], step(one, two, three, four, groups=groups))
    hard = net(torch.cat([three, four]))
    plain = criterion(net(one), net(two), hard=hard, groups=groups)
    same(got, step_of([net, criterion], plain))


class Words(nn.Module):
    """Takes what tokenizers give."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(20, OUT, dtype=torch.float64)

    def forward(self, tokens: Any = None, **given: Tensor) -> Any:
        tokens = tokens or given
        weight = tokens["attention_mask"][..., None].to(torch.float64)
        return {"pooled": (self.table(tokens["input_ids"]) * weight).sum(1)}


def test_two_towers_mappings_and_tuples() -> None:
    class Sum(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = encoder()

        def forward(self, one: Tensor, two: Tensor) -> Tensor:
            return self.inner(one + two)

    pictures, words = Sum(), Words()
    tokens = {
        "input_ids": torch.arange(4 * ROWS).reshape(ROWS, 4) % 20,
        "attention_mask": torch.ones(ROWS, 4).triu(-7),
    }

    def call(module: nn.Module, view: Any) -> Tensor:
        return module(*view) if isinstance(view, tuple) else module(**view)["pooled"]

    one, two = views()
    step = macl.cached([pictures, words], InfoNCE(0.2), chunk=4, call=call)
    got = step_of([pictures, words], step((one, two), tokens))
    plain = InfoNCE(0.2)(pictures(one, two), words(tokens)["pooled"])
    same(got, step_of([pictures, words], plain))
    with pytest.raises(TypeError, match="call=…"):
        macl.cached(words, InfoNCE())(tokens, tokens)


def test_dropout_is_replayed_and_statistics_are_updated_once() -> None:
    net = encoder(nn.BatchNorm1d(8, momentum=0.5), nn.Dropout(0.5))
    one, two = views()
    kept = [b.clone() for b in net.buffers()]
    torch.manual_seed(3)
    loss = macl.cached(net, NTXent(), chunk=4)(one, two)
    torch.rand(7)  # whatever happens between the passes
    got = step_of([net], loss) + [b.clone() for b in net.buffers()]
    for buffer, before in zip(net.buffers(), kept, strict=True):
        buffer.data.copy_(before)
    torch.manual_seed(3)
    by_hand = [torch.cat([net(part) for part in view.tensor_split(3)]) for view in (one, two)]
    same(got, step_of([net], NTXent()(*by_hand)) + list(net.buffers()))


def test_autocast_and_a_scaler() -> None:
    """The recomputed chunks are in bfloat16 too, outside the context; the scale reaches them."""
    net = encoder().float()
    one, two = (view.float() for view in views())

    def by_hand(*batch: Tensor) -> Tensor:
        parts = [torch.cat([net(part) for part in view.tensor_split(3)]) for view in batch]
        return MACL()(*parts)

    found = []
    for loss in (macl.cached(net, MACL(), chunk=4), by_hand):
        scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
        optimizer = torch.optim.SGD(net.parameters(), lr=0.0)
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            value = loss(one, two)
        scaler.scale(value).backward()
        scaler.unscale_(optimizer)
        found.append([p.grad.clone() for p in net.parameters() if p.grad is not None])
    same(*found)


def test_one_chunk_is_held_at_a_time() -> None:
    """What autograd keeps between the passes grows with embeddings, not with hidden layers."""
    net = nn.Sequential(
        nn.Linear(IN, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 4)
    )
    one, two = torch.randn(2, 512, IN)

    def kept(loss: Any) -> int:
        sizes: dict[int, int] = {}

        def pack(tensor: Tensor) -> Tensor:
            sizes[tensor.untyped_storage().data_ptr()] = tensor.untyped_storage().nbytes()
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            value = loss(one, two)
        del value
        return sum(sizes.values())

    plain = kept(lambda a, b: MACL()(net(a), net(b)))
    assert kept(macl.cached(net, MACL(), chunk=16)) < plain / 4


class Rank(nn.Module):
    """A step in chunks of the embeddings that `assert_ddp_exact` makes."""

    def __init__(self) -> None:
        super().__init__()
        self.step = macl.cached(
            nn.Linear(5, 4, dtype=torch.float64), MACL(alpha=1.0, gather=True), 2
        )

    def forward(self, one: Tensor, two: Tensor) -> Tensor:
        return self.step(one, two)


@pytest.mark.slow
def test_several_processes_compute_what_one_does() -> None:
    torch.manual_seed(0)
    assert_ddp_exact(Rank(), worlds=(2,))


def test_ddp_around_the_step_exchanges_gradients_once(tmp_path: Any) -> None:
    import torch.distributed as dist
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group("gloo", f"file://{tmp_path}/meet", world_size=1, rank=0)
    try:
        net, exchanges = encoder(nn.Dropout(0.3)), []

        def counted(state, bucket):  # type: ignore[no-untyped-def]
            exchanges.append(bucket.index())
            return default_hooks.allreduce_hook(None, bucket)

        step = DistributedDataParallel(macl.cached(net, MACL(gather=True), chunk=3))
        step.register_comm_hook(None, counted)
        for _ in range(2):
            step(*views()).backward()
        assert exchanges == [0, 0]
        assert net[0].weight.grad.abs().sum() > 0
        with pytest.raises(ValueError, match="wrap the step"):
            macl.cached(DistributedDataParallel(net), MACL())
    finally:
        dist.destroy_process_group()


def test_what_cannot_work_is_refused() -> None:
    with pytest.raises(TypeError, match="torch module"):
        macl.cached([len], MACL())
    with pytest.raises(ValueError, match="1 or more"):
        macl.cached(encoder(), MACL(), chunk=0)


def wide() -> nn.Module:
    return nn.Sequential(nn.Linear(IN, 100), nn.Tanh(), nn.Linear(100, OUT))


def test_a_plan_counts_what_is_kept() -> None:
    net = wide()
    sample = torch.randn(8, IN)
    roomy = macl.plan(net, sample, batch=1000, memory=10**9)
    assert (roomy.chunk, roomy.extra_compute) == (None, 0)
    assert "no chunks" in str(roomy)
    # Kept for the backward pass: the 100 outputs of tanh, which the last layer takes too.
    weights = sum(p.nbytes for p in net.parameters())
    fixed = 3 * weights + 2 * 1000 * 4 * (IN + 4 * OUT)
    assert roomy.plain_bytes == fixed + 2 * 1000 * 400
    tight = macl.plan(net, sample, batch=1000, memory=fixed + 64 * 400)
    assert (tight.chunk, tight.cached_bytes) == (64, fixed + 64 * 400)
    # Multiplications: the forward pass f, weights again f, and inputs but for the first layer's.
    forward, inputs = IN * 100 + 100 * OUT, 100 * OUT
    assert tight.extra_compute == pytest.approx(forward / (2 * forward + inputs))
    assert "chunk=64" in str(tight)
    with pytest.raises(ValueError, match="smaller batch"):
        macl.plan(net, sample, batch=1000, memory=fixed)
    with pytest.raises(ValueError, match="2 or more"):
        macl.plan(net, sample[:1], batch=1000)


def test_a_plan_changes_nothing() -> None:
    net = encoder(nn.BatchNorm1d(8), nn.Dropout(0.5))
    before, state = torch.get_rng_state(), [b.clone() for b in net.buffers()]
    assert macl.plan(net, views()[0], batch=64).chunk is None
    assert torch.equal(torch.get_rng_state(), before)
    assert all(map(torch.equal, net.buffers(), state))
    assert all(p.grad is None for p in net.parameters())


def test_the_planned_chunk_works() -> None:
    net = wide()
    one, two = torch.randn(2, 300, IN)
    chunk = macl.plan(net, one[:8], batch=300, memory=150_000).chunk
    assert chunk is not None
    normalized = partial(F.normalize, dim=1)
    macl.cached(net, lambda a, b: MACL()(normalized(a), normalized(b)), chunk)(one, two).backward()
