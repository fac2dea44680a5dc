"""gather="ring" on 2, 3 and 4 processes (gloo) equals gather=True and a single process."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from forking import Forked
from macl import (
    DCL,
    DCLW,
    HCL,
    MACL,
    ContrastiveLoss,
    DualTemperature,
    FlatNCE,
    InfoNCE,
    LearnedTemperature,
    NTXent,
    Temperature,
    distributed,
)
from macl.losses import StepInfo
from macl.losses.ops import Exclusions, InverseTanh, Relation, operator
from macl.losses.ops.tiled import Plan
from macl.losses.ring import Ring

DIM, OUT, HARD = 5, 4, 9
EVEN = {2: [4, 4], 3: [3, 3, 3], 4: [3, 3, 3, 3]}
UNEVEN = {2: [5, 2], 3: [1, 4, 3], 4: [4, 1, 3, 2]}

needs_gloo = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)


class PerAnchor(Temperature):
    """One learned τ per anchor, from its number in the global batch."""

    def __init__(self, rows: list[int], total: int, directions: int) -> None:
        super().__init__()
        self.tau = nn.Parameter(torch.linspace(0.2, 0.6, directions * total))
        self.index = torch.cat([torch.tensor(rows) + k * total for k in range(directions)])

    def forward(self, step: StepInfo) -> Tensor:
        return self.tau[self.index].to(step.positive.dtype)


# MACL with a strong α: were A not global, every rank would have its own temperature.
LOSSES: dict[str, tuple[Any, dict[str, Any]]] = {
    "macl": (MACL, {"alpha": 1.0}),
    "info_nce": (InfoNCE, {"negatives": "both"}),
    "nt_xent": (NTXent, {}),
    "dcl": (DCL, {}),
    "dclw": (DCLW, {}),
    "flat": (FlatNCE, {}),
    "dual": (DualTemperature, {}),
    "hcl": (HCL, {}),
    "hcl-debiased": (HCL, {"beta": 0.0}),
    "small-tau": (MACL, {"temperature": 0.001}),
    "learned": (NTXent, {"temperature": "learned"}),
    "per-anchor": (NTXent, {"temperature": "per-anchor"}),
    "map": (NTXent, {"temperature": InverseTanh()}),
    "tiled": (HCL, {"kernel": "tiled"}),
}
FORMS = ("both", "cross", "one-direction", "hard")
EXTRAS = (("plain", True), ("plain", False), ("groups", False), ("weights", False))
MAIN = ("macl", "hcl")
CASES = [
    (loss, form, extra, even)
    for loss in LOSSES
    for form in (FORMS if loss in MAIN else FORMS[:2])
    for extra, even in (EXTRAS if loss in MAIN else EXTRAS[2:3])
]


def criterion_of(loss: str, form: str, mine: slice, total: int, gather: Any) -> ContrastiveLoss:
    build, arguments = LOSSES[loss]
    arguments = dict(arguments, negatives="both" if form == "both" else "cross")
    arguments["symmetric"] = form != "one-direction"
    if arguments.get("temperature") == "learned":
        arguments["temperature"] = LearnedTemperature(0.2)
    if arguments.get("temperature") == "per-anchor":
        rows = list(range(mine.start, mine.stop))
        arguments["temperature"] = PerAnchor(rows, total, 1 if form == "one-direction" else 2)
    return build(gather=gather, **arguments).double()


def step(case: tuple[str, str, str, bool], total: int, mine: slice, gather: Any) -> dict[str, Any]:
    """Loss, A, and the gradients of a model and of the criterion, from the rows `mine`."""
    loss, form, extra, _ = case
    torch.manual_seed(total)
    model = nn.Linear(DIM, OUT).double()
    criterion = criterion_of(loss, form, mine, total, gather)
    x1, x2 = torch.randn(2, total, DIM, dtype=torch.float64)
    keywords: dict[str, Tensor] = {}
    if form == "hard":  # each rank holds a share of them
        share = slice(mine.start * HARD // total, mine.stop * HARD // total)
        keywords["hard"] = model(torch.randn(HARD, DIM, dtype=torch.float64)[share])
    if extra == "groups":
        keywords["groups"] = (torch.arange(total) % 3)[mine]
        if form == "hard":
            keywords["hard_groups"] = (torch.arange(HARD) % 4)[share]
    if extra == "weights":
        keywords["weights"] = torch.linspace(0.5, 2, total, dtype=torch.float64)[mine]
    contrast = criterion.contrast(model(x1[mine]), model(x2[mine]), **keywords)
    contrast.loss.backward()
    trained = [*model.parameters(), *criterion.parameters()]
    gradient = torch.cat([p.grad.flatten() for p in trained if p.grad is not None])
    return {
        "loss": contrast.loss.detach(),
        "alignment": contrast.alignment,
        "gradient": gradient,
    }


def rank_rows(sizes: list[int], rank: int) -> slice:
    start = sum(sizes[:rank])
    return slice(start, start + sizes[rank])


def pair_sum_gradients(sizes: list[int], mine: slice, ring_of: Ring | None) -> list[Tensor]:
    """Σ over this rank's rows, and its gradients to rows, scale and one offset per row."""
    generator = torch.Generator().manual_seed(1)
    z = torch.randn(sum(sizes), OUT, generator=generator, dtype=torch.float64)
    rows = nn.functional.normalize(z)[mine].requires_grad_()
    scale = torch.tensor(3.0, dtype=torch.float64, requires_grad=True)
    offset = torch.linspace(-2, 1, sum(sizes), dtype=torch.float64)
    offset[0] = -torch.inf
    offset = offset[mine].requires_grad_()
    groups = (torch.arange(sum(sizes)) % 2)[mine]
    exclude = Exclusions((0,), Relation(groups, groups))
    sums = operator.pair_sum(
        rows, rows, scale, offset, Plan(exclude, ring=ring_of, function="softplus")
    )
    (sums * torch.linspace(1, 2, sum(sizes), dtype=torch.float64)[mine]).sum().backward()
    return [sums.detach(), *(t.grad for t in (rows, scale, offset) if t.grad is not None)]


def sent_bytes(sizes: list[int], rank: int, groups: bool) -> tuple[int, int]:
    """Bytes handed to isend in a step of NT-Xent, and the number of batches of messages."""
    counted = [0, 0]
    original = dist.batch_isend_irecv

    def counting(operations: list[dist.P2POp]) -> Any:
        counted[1] += 1
        for operation in operations:
            if operation.op is dist.isend:
                counted[0] += operation.tensor.numel() * operation.tensor.element_size()
        return original(operations)

    dist.batch_isend_irecv = counting
    try:
        extra = "groups" if groups else "plain"
        total, mine = sum(sizes), rank_rows(sizes, rank)
        step(("nt_xent", "both", extra, False), total, mine, gather="ring")
    finally:
        dist.batch_isend_irecv = original
    return counted[0], counted[1]


def worker(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    results = []
    for case in CASES:
        sizes = (EVEN if case[3] else UNEVEN)[world]
        both = [step(case, sum(sizes), rank_rows(sizes, rank), gather) for gather in ("ring", True)]
        for result in both:
            for name in ("loss", "gradient"):  # what DistributedDataParallel does
                dist.all_reduce(result[name])
                result[name] /= world
        results.append(both)
    sizes = UNEVEN[world]
    output = {
        "results": results,
        "pair_sum": pair_sum_gradients(sizes, rank_rows(sizes, rank), Ring(sizes)),
        "sent": [sent_bytes(sizes, rank, groups) for groups in (False, True)],
    }
    torch.save(output, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(
    scope="module", params=[3, *(pytest.param(world, marks=pytest.mark.slow) for world in (2, 4))]
)
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo backend")
    folder: Path = tmp_path_factory.mktemp(f"ring{request.param}")
    world = request.param
    mp.start_processes(worker, (world, str(folder)), nprocs=world, start_method="forkserver")
    return [torch.load(folder / f"{r}.pt", weights_only=True) for r in range(request.param)]


def test_the_ring_equals_gathering_and_a_single_process(ranks: Any) -> None:
    world = len(ranks)
    for number, case in enumerate(CASES):
        total = sum((EVEN if case[3] else UNEVEN)[world])
        single = step(case, total, slice(0, total), gather=False)
        for rank, output in enumerate(ranks):
            by_ring, gathered = output["results"][number]
            for name in single:
                for other, expected in (("gather=True", gathered), ("one process", single)):
                    torch.testing.assert_close(
                        by_ring[name],
                        expected[name],
                        rtol=1e-10,
                        atol=1e-10,
                        msg=lambda text, at=(case, rank, name, other): f"{at}: {text}",
                    )


def test_pair_sums_over_the_ring_equal_a_single_process(ranks: Any) -> None:
    sizes = UNEVEN[len(ranks)]
    single = pair_sum_gradients(sizes, slice(0, sum(sizes)), None)
    found = [output["pair_sum"] for output in ranks]
    joined = [torch.cat([own[k] for own in found]) for k in (0, 1, 3)]
    joined.insert(2, sum(own[2] for own in found))
    for one, several in zip(single, joined, strict=True):
        torch.testing.assert_close(several, one, rtol=1e-10, atol=1e-10)


def test_bytes_and_rounds_follow_the_formula(ranks: Any) -> None:
    world = len(ranks)
    blocks = [2 * size for size in UNEVEN[world]]
    for rank, output in enumerate(ranks):
        for group_bytes, (sent, batches) in zip((0, 8), output["sent"], strict=True):
            # Every block but the next rank's, forward and backward; all gradients but its own.
            keys = sum(blocks) - blocks[(rank + 1) % world]
            gradients = sum(blocks) - blocks[rank]
            assert sent == 2 * keys * (8 * OUT + group_bytes) + gradients * 8 * OUT
            assert batches == 3 * (world - 1)  # keys forward; keys and gradients backward


def test_alone_the_ring_is_the_operator() -> None:
    z = nn.functional.normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    exclude = Exclusions((0, 3, -3))
    tau = torch.tensor(0.2)
    alone = operator.logsumexp(z, z, tau, Plan(exclude, ring=Ring([6]), statistics=True))
    expected = operator.logsumexp(z, z, tau, Plan(exclude, statistics=True))
    for one, other in zip(alone, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


def test_gather_ring_without_a_process_group_is_the_local_loss() -> None:
    z1, z2 = torch.randn(2, 6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(MACL(gather="ring")(z1, z2), MACL()(z1, z2))


def test_other_values_of_gather_are_refused() -> None:
    with pytest.raises(ValueError, match=r'gather is True, False or "ring", got \'rings\''):
        MACL(gather="rings")  # type: ignore[arg-type]


LOSING = """
import os, sys, time
from datetime import timedelta
import torch, torch.distributed as dist
from macl import NTXent

rank, world, folder, end, last = int(sys.argv[1]), int(sys.argv[2]), *sys.argv[3:]
batches, exchange = 0, dist.batch_isend_irecv

def ending(operations):
    global batches
    if rank == 1 and batches == int(last):
        time.sleep(60) if end == "hang" else os._exit(7)
    batches += 1
    return exchange(operations)

dist.batch_isend_irecv = ending
torch.set_num_threads(1)
dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world,
                        timeout=timedelta(seconds=5 if end == "hang" else 60))
z = torch.randn(2, 4, 3, requires_grad=True)
NTXent(gather="ring")(z[0], z[1]).backward()
"""


@needs_gloo
@pytest.mark.parametrize(
    ("world", "end", "exchanges"),
    # In the first round; between rounds; in the backward pass; and a rank that does not answer.
    [(2, "exit", 0), (3, "exit", 1), (3, "exit", 3), (3, "hang", 1)],
)
def test_a_lost_rank_ends_the_others_with_a_message(
    tmp_path: Path, world: int, end: str, exchanges: int
) -> None:
    script = tmp_path / "losing.py"
    script.write_text(LOSING)
    variables = {**os.environ, "GLOO_SOCKET_IFNAME": "lo"}
    processes = [
        Forked(script, str(rank), str(world), tmp_path, end, str(exchanges), environment=variables)
        for rank in range(world)
    ]
    for rank, process in enumerate(processes):
        if rank == 1:
            continue
        done = process.wait(120)
        errors = done.stderr
        assert done.returncode == 1, errors
        assert any(
            "RuntimeError: the ring exchange of keys" in line
            and f"failed on rank {rank} of {world}" in line
            and "first error in the logs of the other ranks" in line
            for line in errors.splitlines()
        ), errors
    processes[1].kill()


@pytest.fixture
def no_launcher(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"):
        monkeypatch.delenv(name, raising=False)
    distributed._warn_if_launched.cache_clear()
    return monkeypatch


@pytest.mark.parametrize("variable", ["WORLD_SIZE", "SLURM_NTASKS"])
@pytest.mark.parametrize("gather", [True, "ring"])
def test_gather_under_a_launcher_without_a_group_warns_once(
    no_launcher: pytest.MonkeyPatch, variable: str, gather: Any
) -> None:
    no_launcher.setenv(variable, "4")
    z1, z2 = torch.randn(2, 6, 4)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            MACL(gather=gather)(z1, z2)
    assert len(caught) == 1
    assert f"{variable}=4" in str(caught[0].message)
    assert "init_process_group" in str(caught[0].message)


@pytest.mark.parametrize(
    ("environment", "gather"),
    [
        ({}, True),
        ({"WORLD_SIZE": "4"}, False),
        ({"WORLD_SIZE": "1", "SLURM_NTASKS": "4"}, True),
        ({"SLURM_STEP_NUM_TASKS": "1", "SLURM_NTASKS": "4"}, "ring"),
    ],
)
def test_no_warning_for_one_process_or_without_gather(
    no_launcher: pytest.MonkeyPatch, environment: dict[str, str], gather: Any
) -> None:
    for name, value in environment.items():
        no_launcher.setenv(name, value)
    z1, z2 = torch.randn(2, 6, 4)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        MACL(gather=gather)(z1, z2)
