"""2 and 4 processes (gloo) give the gradient that one process computes from the whole batch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from macl import DCLW, MACL, ContrastiveLoss, InfoNCE, LearnedTemperature, distributed
from tiny import run_ranks

DIM, OUT, BANK = 5, 4, 7
EVEN = {2: [4, 4], 4: [3, 3, 3, 3]}
UNEVEN = {2: [5, 2], 4: [4, 1, 3, 2]}
# MACL with a strong α: were A not global, every rank would have its own temperature.
LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "both": (MACL, {"alpha": 1.0}),
    "cross": (MACL, {"alpha": 1.0, "negatives": "cross"}),
    "one-direction": (MACL, {"alpha": 1.0, "negatives": "cross", "symmetric": False}),
    "bank": (MACL, {"alpha": 1.0}),
    "hard": (InfoNCE, {}),
    "dclw": (DCLW, {}),
    "small-tau": (MACL, {"temperature": 0.001}),
    "learned": (InfoNCE, {"temperature": "learned"}),
}
EXTRAS = (("plain", True), ("plain", False), ("groups", False), ("weights", False))
CASES = [(form, extra, even) for form in LOSSES for extra, even in EXTRAS]


def criterion_of(form: str, gather: bool) -> ContrastiveLoss:
    build, arguments = LOSSES[form]
    if arguments.get("temperature") == "learned":
        arguments = {"temperature": LearnedTemperature(0.2)}
    return build(gather=gather, **arguments).double()


def batch(total: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(total)
    x = torch.randn(2 * total + 2 * BANK, DIM, generator=generator, dtype=torch.float64)
    x1, x2, bank, hard = x.split([total, total, BANK, BANK])
    groups = torch.arange(total) % 3
    weights = torch.linspace(0.5, 2, total, dtype=torch.float64)
    return {"x1": x1, "x2": x2, "bank": bank, "hard": hard, "groups": groups, "weights": weights}


def step(form: str, extra: str, total: int, mine: slice, gather: bool) -> dict[str, Tensor]:
    """Loss, A, and the gradients of a model and of the criterion, from the rows `mine`."""
    torch.manual_seed(0)
    model, criterion = nn.Linear(DIM, OUT).double(), criterion_of(form, gather)
    data = batch(total)
    negatives: dict[str, Tensor] = {}
    if form == "bank":
        negatives["bank"] = model(data["bank"]).detach()
    if form == "hard":  # every rank brings its own; together they are all of them
        share = slice(mine.start * BANK // total, mine.stop * BANK // total)
        negatives["hard"] = model(data["hard"][share])
    if extra == "groups":
        negatives["groups"] = data["groups"][mine]
        if form == "bank":
            negatives["bank_groups"] = torch.arange(BANK) % 4
        if form == "hard":
            negatives["hard_groups"] = (torch.arange(BANK) % 4)[share]
    if extra == "weights":
        negatives["weights"] = data["weights"][mine]
    told = criterion.contrast(model(data["x1"][mine]), model(data["x2"][mine]), **negatives)
    told.loss.backward()
    gradient = torch.cat(
        [
            p.grad.flatten()
            for p in (*model.parameters(), *criterion.parameters())
            if p.grad is not None
        ]
    )
    return {"loss": told.loss.detach(), "alignment": told.alignment, "gradient": gradient}


def rank_rows(sizes: list[int], rank: int) -> slice:
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def worker(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    results = []
    for form, extra, even in CASES:
        sizes = (EVEN if even else UNEVEN)[world]
        result = step(form, extra, sum(sizes), rank_rows(sizes, rank), gather=True)
        for name in ("loss", "gradient"):  # what DistributedDataParallel does
            dist.all_reduce(result[name])
            result[name] /= world
        results.append(result)
    values = torch.arange(rank + 1.0) + rank
    helpers = {
        "global_mean": distributed.global_mean(values),
        "global_sum": distributed.global_sum(values.sum()),
        "sizes": torch.tensor(distributed.batch_sizes(len(values))),
        "any": torch.tensor([distributed.any_rank(rank == 1), distributed.any_rank(False)]),
        "gathered": distributed.gather(values, list(range(1, world + 1))),
    }
    helpers |= quietly(rank, world) | in_pairs(rank)
    torch.save({"results": results, "helpers": helpers}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


def quietly(rank: int, world: int) -> dict[str, Tensor]:
    """The gradient of gathered rows with known sizes, without all-reduce or exchange of sizes."""
    rows = torch.full((3, 2), float(rank), requires_grad=True)
    with pytest.MonkeyPatch.context() as patch, distributed.equal_batches():
        patch.setattr(dist, "all_reduce", None)
        patch.setattr(distributed, "_between_hosts", None)
        found = distributed.gather(rows, distributed.batch_sizes(3))
        (found.sum(1) @ torch.arange(3.0 * world)).backward()
    assert rows.grad is not None
    return {"quiet": found.detach(), "quiet-gradient": rows.grad}


def pair_batch(number: int) -> Tensor:
    """(2, 6, 4) both views of what two ranks hold together."""
    generator = torch.Generator().manual_seed(number)
    return torch.randn(2, 6, 4, generator=generator, dtype=torch.float64)


def in_pairs(rank: int) -> dict[str, Tensor]:
    """What two neighboring ranks exchange between themselves, of unequal lengths."""
    pairs = [dist.new_group([first, first + 1]) for first in range(0, dist.get_world_size(), 2)]
    pair = pairs[rank // 2]
    rows = torch.arange(rank + 1.0, requires_grad=True)
    sizes = distributed.batch_sizes(len(rows), pair)
    found = distributed.gather(rows, sizes, pair)
    (found.sum() * (rank + 1)).backward()
    assert rows.grad is not None
    assert distributed.rank(pair) == rank % 2
    losses = {}
    for gather in (True, "ring"):
        criterion = MACL(alpha=1.0, gather=gather, process_group=pair).double()  # type: ignore[arg-type]
        one, two = pair_batch(rank // 2)[:, 3 * (rank % 2) : 3 * (rank % 2) + 3]
        view = one.clone().requires_grad_()
        told = criterion.contrast(view, two)
        told.loss.backward()
        assert view.grad is not None
        assert told.spread.effective_anchors.ndim == 0
        losses[f"pair-loss-{gather}"] = torch.cat([told.alignment[None], view.grad.flatten()])
    return losses | {
        "pair-sizes": torch.tensor(sizes),
        "pair": found.detach(),
        "pair-gradient": rows.grad,
        "pair-mean": distributed.global_mean(rows, pair),
        "pair-any": torch.tensor(distributed.any_rank(rank == 0, pair)),
    }


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo backend")
    folder: Path = tmp_path_factory.mktemp(f"world{request.param}")
    world = request.param
    mp.start_processes(worker, (world, str(folder)), nprocs=world, start_method="forkserver")
    return [torch.load(folder / f"{r}.pt", weights_only=True) for r in range(request.param)]


def test_every_form_gives_the_single_process_gradient(ranks: Any) -> None:
    world = len(ranks)
    for number, (form, extra, even) in enumerate(CASES):
        total = sum((EVEN if even else UNEVEN)[world])
        expected = step(form, extra, total, slice(0, total), gather=False)
        for got in ranks:
            for name, truth in expected.items():
                torch.testing.assert_close(
                    got["results"][number][name],
                    truth,
                    rtol=1e-10,
                    atol=1e-10,
                    msg=lambda text, at=(form, extra, even, name): f"{at}: {text}",
                )


def test_helpers_see_every_rank(ranks: Any) -> None:
    world = len(ranks)
    everything = [float(r + i) for r in range(world) for i in range(r + 1)]
    for got in ranks:
        helpers = got["helpers"]
        assert helpers["global_mean"].item() == pytest.approx(sum(everything) / len(everything))
        assert helpers["global_sum"].item() == pytest.approx(sum(everything))
        assert helpers["sizes"].tolist() == list(range(1, world + 1))
        assert helpers["any"].tolist() == [True, False]
        assert helpers["gathered"].tolist() == everything


def test_equal_shares_need_no_exchange_of_sizes(ranks: Any) -> None:
    world = len(ranks)
    for rank, got in enumerate(ranks):
        helpers = got["helpers"]
        assert helpers["quiet"].tolist() == [[float(r)] * 2 for r in range(world) for _ in range(3)]
        expected = world * torch.arange(3.0 * rank, 3.0 * rank + 3)
        assert torch.equal(helpers["quiet-gradient"], expected[:, None].expand(3, 2))


def test_a_process_group_exchanges_among_its_own_ranks(ranks: Any) -> None:
    for rank, got in enumerate(ranks):
        helpers, first = got["helpers"], rank // 2 * 2
        values = [float(i) for r in (first, first + 1) for i in range(r + 1)]
        assert helpers["pair-sizes"].tolist() == [first + 1, first + 2]
        assert helpers["pair"].tolist() == values
        assert helpers["pair-gradient"].tolist() == [2.0 * first + 3] * (rank + 1)
        assert helpers["pair-mean"].item() == pytest.approx(sum(values) / len(values))
        assert helpers["pair-any"].item() == (first == 0)


def test_a_loss_gathers_among_the_ranks_of_its_group(ranks: Any) -> None:
    for rank, got in enumerate(ranks):
        one, two = pair_batch(rank // 2)
        view = one.clone().requires_grad_()
        alone = MACL(alpha=1.0).double().contrast(view, two)
        alone.loss.backward()
        assert view.grad is not None
        mine = 2 * view.grad[3 * (rank % 2) : 3 * (rank % 2) + 3]  # a mean over half the anchors
        expected = torch.cat([alone.alignment[None], mine.flatten()])
        for gather in (True, "ring"):
            torch.testing.assert_close(got["helpers"][f"pair-loss-{gather}"], expected)


def test_alone_nothing_is_communicated() -> None:
    values = torch.tensor([1.0, 2.0], requires_grad=True)
    assert (distributed.world_size(), distributed.rank()) == (1, 0)
    assert distributed.gather(values, [2]) is values
    assert distributed.global_mean(values) == 1.5
    assert not distributed.global_mean(values).requires_grad
    assert distributed.batch_sizes(2) == [2]
    assert distributed.any_rank(True)


def test_gather_without_a_process_group_is_the_local_loss() -> None:
    z1, z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(MACL(gather=True)(z1, z2), MACL()(z1, z2))


ENDS = """
import torch, torch.distributed as dist
from macl import NTXent


dist.init_process_group("gloo")
z = torch.randn(4, 8, requires_grad=True)
NTXent(gather=True)(z, z + 0.1).backward()
default = dist.group.WORLD
dist.destroy_process_group()
import gc, weakref
left = weakref.ref(default)
del default
gc.collect()
assert left() is None, "the group is kept after it was destroyed"
"""


def test_no_group_is_kept_beyond_its_end(tmp_path: Path) -> None:
    """A gloo group that lives on until the interpreter ends aborts the process."""
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo backend")
    script = tmp_path / "ends.py"
    script.write_text(ENDS)
    for done in run_ranks(script):
        assert done.returncode == 0, done.stderr
