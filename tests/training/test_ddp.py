"""Two processes train what one process trains."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from safetensors.torch import load_file
from torch import Tensor, nn

from macl import MACL
from macl.methods import NNCLR, Method, MoCo, SimCLR
from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, METHODS, TINY, python, recipe, state_of

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)
WORLD, BATCH, STEPS, IN, OUT = 2, 8, 4, 6, 5


def built(name: str) -> Method:
    """The method without batch normalisation, whose statistics are each process' own on CPUs."""
    torch.manual_seed(0)
    encoder, projector = nn.Sequential(nn.Linear(IN, OUT), nn.Tanh()), nn.Linear(OUT, OUT)
    # A strong α: were A not global, every rank would have its own temperature.
    loss = MACL(alpha=1.0, gather=True)
    method: Method = SimCLR(encoder, projector, loss)
    if name == "moco":
        method = MoCo(encoder, projector, loss, OUT, queue_size=11, momentum=0.5, splits=2)
    elif name == "nnclr":
        loss = MACL(alpha=1.0, gather=True, negatives="cross", symmetric=False)
        method = NNCLR(encoder, projector, nn.Linear(OUT, OUT), loss, OUT, queue_size=11)
    return method.double()


def trained(name: str, rank: int, world: int) -> dict[str, Any]:
    """State, losses and alignments after a few steps on this rank's share of every batch."""
    method = built(name)
    optimizer = torch.optim.SGD(method.parameters(), lr=0.1, momentum=0.9)
    told = []
    for step in range(STEPS):
        generator = torch.Generator().manual_seed(step)
        views = torch.randn(2, BATCH, IN, dtype=torch.float64, generator=generator)
        x1, x2 = views.chunk(world, dim=1)[rank]
        optimizer.zero_grad()
        contrast = method(x1, x2)
        contrast.loss.backward()
        loss = contrast.loss.detach().clone()
        for value in [loss, *(p.grad for p in method.parameters() if p.grad is not None)]:
            if world > 1:  # what DistributedDataParallel does
                dist.all_reduce(value)
                value /= world
        optimizer.step()
        told.append([loss.item(), contrast.alignment.item(), contrast.temperature.item()])
    return {"state": dict(method.state_dict()), "told": torch.tensor(told, dtype=torch.float64)}


def worker(rank: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group("gloo", f"file://{folder}/meet", rank=rank, world_size=WORLD)
    torch.save({name: trained(name, rank, WORLD) for name in METHODS}, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    folder = tmp_path_factory.mktemp("ranks")
    mp.spawn(worker, args=(str(folder),), nprocs=WORLD)
    return [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("method", METHODS)
def test_two_ranks_take_the_steps_of_one_process(method: str, ranks: list[dict[str, Any]]) -> None:
    alone = trained(method, 0, 1)
    for rank in ranks:
        assert_close(rank[method]["state"], alone["state"])
        torch.testing.assert_close(rank[method]["told"], alone["told"], rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["moco", "nnclr"])
def test_the_queue_is_the_same_on_every_rank(method: str, ranks: list[dict[str, Any]]) -> None:
    one, two = (rank[method]["state"] for rank in ranks)
    assert torch.equal(one["queue.rows"], two["queue.rows"])
    assert int(one["queue.pointer"]) == STEPS * BATCH % 11


@pytest.mark.slow
def test_the_command_trains_and_resumes_in_two_processes(tmp_path: Path) -> None:
    """`macl train --devices 2`, stopped by a signal to one process only, then resumed.

    Views are drawn by each rank for itself, so here they are the whole image, unchanged.
    """
    made = (
        *TINY,
        *METHODS["moco"],
        "precision=64",
        "encoder={name: fragile:plain, allow_import: true}",
        "method.projector={widths: [same, 8], norm: none}",
        "views={preset: digits, crop_scale: [1, 1], crop_ratio: [1, 1], jitter_p: 0, flip: 0}",
    )
    together, folder = tmp_path / "two", tmp_path / "one"
    struck = {
        "FRAGILE_AT": "5",
        "FRAGILE_RANK": "1",
        "FRAGILE_SIGNAL": str(int(signal.SIGTERM)),
        "GLOO_SOCKET_IFNAME": "lo",
    }
    command = ("macl_script.py", "train", "digits", *made, "--out", together, "--devices", "2")
    done = python(*command, environment=struck)
    assert done.returncode == 130, done.stderr
    assert state_of(Run(together))["global_step"] == 5
    done = python(*command, "--resume", environment={"GLOO_SOCKET_IFNAME": "lo"})
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training digits") == 1

    alone, run = train(recipe(*made), folder, compute=HERE), Run.open(together)
    files = (load_file(r.folder / "encoder.safetensors") for r in (run, alone))
    assert_close(*files)
    states = (state_of(r)["state_dict"] for r in (run, alone))
    assert_close(*states)
    for one, two in zip(run.metrics(), alone.metrics(), strict=True):
        assert one == pytest.approx(two, rel=1e-6)
