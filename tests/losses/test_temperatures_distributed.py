"""2 and 4 processes (gloo) = one process, for values, gradients and the state per sample."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from macl import (
    MACL,
    ContrastiveLoss,
    DySTreSS,
    FastCLIP,
    ISogCLR,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)

DIM, OUT, BANK, SIZE = 5, 4, 7, 20
SIZES = {2: [[4, 4], [5, 2]], 4: [[3, 3, 3, 3], [4, 1, 3, 2]]}
"""Two steps: even batches, then a short last one."""
OVER_ALL_ANCHORS = ("alignment", "temperature", "effective_anchors")
"""Metrics that are those of the whole batch on every rank, the histogram of τ among them."""
LOSSES: dict[str, Callable[..., ContrastiveLoss]] = {
    "dystress": DySTreSS,
    "temperature-free": TemperatureFree,
    "siglip": SigLIP,
    "sup-con": SupCon,
    "sup-con in": lambda **form: SupCon(variant="in", **form),
    "sup-con one view": SupCon,
    "several": lambda **form: NTXent(0.2, **form),
    "several macl": lambda **form: MACL(0.2, 1.0, **form),
    "sogclr": lambda **form: SogCLR(0.25, size=SIZE, **form),
    "isogclr": lambda **form: ISogCLR(0.25, size=SIZE, **form),
    **{
        f"fastclip v{v}": lambda v=v, **form: FastCLIP(
            0.25, size=SIZE, version=v, gamma_epochs=0, **form
        )
        for v in range(4)
    },
    "tempnet": lambda **form: TempNet(OUT, size=SIZE, tau_min=0.1, tau_max=0.5, **form),
}
CASES = [(name, form) for name in LOSSES for form in ("both", "cross", "one-direction")]
GATHER = (True, "ring")
CASES += [(name, "bank") for name in ("dystress", "siglip", "sogclr", "isogclr", "fastclip v2")]


def form_of(form: str) -> dict[str, Any]:
    if form in ("both", "bank"):
        return {"negatives": "both"}
    return {"negatives": "cross", "symmetric": form == "cross"}


def batch(total: int, number: int) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(total + number)
    x = torch.randn(2 * total + BANK, DIM, generator=generator, dtype=torch.float64)
    x1, x2, bank = x.split([total, total, BANK])
    indices = (torch.arange(total) * 3 + number) % SIZE
    indices[-1] = indices[0]  # on another rank
    return {"x1": x1, "x2": x2, "bank": bank, "indices": indices, "y": torch.arange(total) % 3}


def run(
    name: str, form: str, world: int, rank: int | None, gather: bool | str = False
) -> list[Tensor]:
    """Loss and gradients of two steps, then the state; of rank `rank`, or of the whole batch."""
    torch.manual_seed(0)
    model = nn.Linear(DIM, OUT).double()
    criterion = LOSSES[name](gather=gather, **form_of(form)).double()
    results: list[Tensor] = []
    for number, sizes in enumerate(SIZES[world]):
        total = sum(sizes)
        mine = slice(0, total)
        if rank is not None:
            mine = slice(sum(sizes[:rank]), sum(sizes[: rank + 1]))
        data = batch(total, number)
        extra: dict[str, Any] = {"indices": data["indices"][mine]}
        if form == "bank":
            extra["bank"] = model(data["bank"]).detach()
        if name.startswith("sup-con"):
            extra["labels"] = data["y"][mine]
        if name.startswith("several"):
            extra["positives"] = data["y"][mine]
        model.zero_grad()
        criterion.zero_grad()
        views = [model(data[x][mine]) for x in ("x1", "x2")]
        if name == "sup-con one view":
            views = views[:1]
        loss = criterion(*views, **extra)
        loss.backward()
        parameters = (*model.parameters(), *criterion.parameters())
        gradients = [p.grad.flatten() for p in parameters if p.grad is not None]
        step = torch.cat([loss.detach()[None], *gradients])
        if rank is not None:  # what DistributedDataParallel does
            dist.all_reduce(step)
            step /= world
        results.append(step)
    criterion.eval()
    with torch.no_grad():
        found = criterion.contrast(*views, **extra).metrics()
    whole = [value for name, value in found.items() if name.startswith(OVER_ALL_ANCHORS)]
    return [*results, torch.stack(whole), *criterion.state_dict().values()]


def worker(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=world)
    for gather in GATHER:
        found = [run(*case, world, rank, gather) for case in CASES]
        torch.save(found, f"{folder}/{rank}-{gather}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module", params=[2, pytest.param(4, marks=pytest.mark.slow)])
def ranks(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    if not (dist.is_available() and dist.is_gloo_available()):
        pytest.skip("this torch has no gloo backend")
    folder: Path = tmp_path_factory.mktemp(f"world{request.param}")
    world = request.param
    mp.start_processes(worker, (world, str(folder)), nprocs=world, start_method="forkserver")
    return {
        gather: [
            torch.load(folder / f"{r}-{gather}.pt", weights_only=True) for r in range(request.param)
        ]
        for gather in GATHER
    }


@pytest.mark.parametrize("gather", GATHER)
@pytest.mark.filterwarnings("ignore:rho")
def test_every_loss_is_that_of_one_process(ranks: Any, gather: bool | str) -> None:
    for number, case in enumerate(CASES):
        expected = run(*case, len(ranks[gather]), None)
        for got in ranks[gather]:
            assert len(got[number]) == len(expected)
            for part, (value, truth) in enumerate(zip(got[number], expected, strict=True)):
                torch.testing.assert_close(
                    value, truth, rtol=1e-10, atol=1e-10,
                    msg=lambda text, at=(case, part): f"{at}: {text}",
                )  # fmt: skip


@pytest.mark.parametrize("gather", GATHER)
def test_the_state_is_the_same_on_every_rank(ranks: Any, gather: bool | str) -> None:
    for number in range(len(CASES)):
        first, *others = ranks[gather]
        for got in others:
            for value, truth in zip(got[number][2:], first[number][2:], strict=True):
                assert torch.equal(value, truth)
