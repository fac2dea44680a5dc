"""Two processes train what one process trains."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from ddp_ranks import BATCH, CASES, QUEUE, STEPS, trained, worker
from safetensors.torch import load_file
from torch import Tensor

from macl.runs import Run
from macl.training.fit import train
from tiny import HERE, METHODS, TINY, assert_same, environment, forked_macl, recipe, state_of

WORLD = 2
LOOPBACK = {"GLOO_SOCKET_IFNAME": "lo"}
EXACT = (
    "precision=64",
    "encoder.width=null",
    "encoder={name: fragile:plain, allow_import: true}",
    "method.projector={widths: [same, 8], norm: none}",
    "views={preset: digits, crop_scale: [1, 1], crop_ratio: [1, 1], jitter_p: 0, flip: 0}",
)
"""A step that does not depend on how its batch is dealt out: no batch norm, no random views."""

pytestmark = pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[dict[tuple[str, int | None], Any]]:
    """What each rank found in each case."""
    folder = tmp_path_factory.mktemp("ranks")
    given = (str(folder), WORLD)
    mp.start_processes(worker, args=given, nprocs=WORLD, start_method="forkserver")
    found = [torch.load(folder / f"{rank}.pt", weights_only=True) for rank in range(WORLD)]
    return [dict(zip(CASES, cases, strict=True)) for cases in found]


def assert_close(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-8, atol=1e-8, msg=name)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_two_ranks_take_the_steps_of_one_process(
    case: tuple[str, int | None], ranks: list[dict[Any, Any]]
) -> None:
    """Which needs no chunks for itself; and the gradients travel once per step."""
    alone = trained(case[0], 0, 1)
    for rank in ranks:
        assert_close(rank[case]["state"], alone["state"])
        torch.testing.assert_close(rank[case]["seen"], alone["seen"], rtol=1e-8, atol=1e-8)
        assert rank[case]["exchanges"] == STEPS


@pytest.mark.parametrize("case", [case for case in CASES if case[0] != "simclr"], ids=str)
def test_the_queue_is_the_same_on_every_rank(
    case: tuple[str, int | None], ranks: list[dict[Any, Any]]
) -> None:
    one, two = (rank[case]["state"] for rank in ranks)
    assert torch.equal(one["queue.rows"], two["queue.rows"])
    assert int(one["queue.pointer"]) == STEPS * BATCH % QUEUE


@pytest.mark.slow
def test_the_command_trains_and_resumes_in_two_processes(tmp_path: Path) -> None:
    """`macl train --devices 2` in chunks, stopped by a signal to one process only, then resumed;
    the same as one process that encodes its batch at once.

    Views are drawn by each rank for itself, so here they are the whole image, unchanged.
    """
    made = (*TINY, *METHODS["moco"], *EXACT)
    together, folder = tmp_path / "two", tmp_path / "one"
    struck = {
        "FRAGILE_AT": "27",  # in step 5: each step encodes three chunks, twice
        "FRAGILE_RANK": "1",
        "FRAGILE_SIGNAL": str(int(signal.SIGTERM)),
        **LOOPBACK,
    }
    command = (
        "train", "digits", *made, "chunk_size=6", "--out", together, "--devices", "2",
    )  # fmt: skip
    done = forked_macl(*command, variables=struck)
    assert done.returncode == 130, done.stderr
    assert state_of(Run(together))["global_step"] == 5
    done = forked_macl(*command, "--resume", variables=LOOPBACK)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("training digits") == 1

    alone, run = train(recipe(*made), folder, compute=HERE), Run(together)
    files = (load_file(r.folder / "encoder.safetensors") for r in (run, alone))
    assert_close(*files)
    states = (state_of(r)["state_dict"] for r in (run, alone))
    assert_close(*states)
    for one, two in zip(run.metrics(), alone.metrics(), strict=True):
        # A mean over the processes of what each sees of its own anchors, not a mean over anchors.
        ess = [row.pop("effective_anchors") for row in (one, two)]
        assert ess[0] == pytest.approx(ess[1], rel=1e-3)
        assert one == pytest.approx(two, rel=1e-6)


SHARDED = {
    ("fsdp2", "fsdp2"): ("optimizer.name=sgd", "loss=info-nce", "loss.temperature={name: learned}"),
    ("fsdp2", "ddp"): ("optimizer.name=lars", *METHODS["moco"], "gradient_clip=0.5"),
    ("ddp", "fsdp2"): ("optimizer.name=lars", *METHODS["moco"]),
}


@pytest.mark.slow
@pytest.mark.parametrize(("first", "later"), SHARDED)
def test_sharded_weights_train_what_one_process_trains(
    first: str, later: str, tmp_path: Path
) -> None:
    """`strategy=fsdp2`, stopped by a signal and resumed; norms are those of whole weights."""
    made = (*TINY, *EXACT, *SHARDED[first, later])
    together = Run(tmp_path / "two")
    struck = {"FRAGILE_AT": "9", "FRAGILE_RANK": "1", "FRAGILE_SIGNAL": str(int(signal.SIGTERM))}
    options = ("--out", together.folder, "--devices", "2")
    command = ("train", "digits", *made, f"strategy={first}", *options)
    done = forked_macl(*command, variables={**struck, **LOOPBACK})
    assert done.returncode == 130, done.stderr
    assert not together.is_finished
    folders = list(together.last_checkpoint.parent.glob("*.parts"))
    assert len(folders) == (first == "fsdp2")
    for parts in folders:
        assert len(list(parts.glob("*.safetensors"))) == len(list(parts.iterdir())) == 2
    command = ("train", "digits", *made, f"strategy={later}", *options, "--resume")
    done = forked_macl(*command, variables=LOOPBACK)
    assert done.returncode == 0, done.stderr
    alone = train(recipe(*made), tmp_path / "one", compute=HERE)
    assert_close(*(load_file(r.folder / "encoder.safetensors") for r in (together, alone)))
    assert_close(*(state_of(run)["state_dict"] for run in (together, alone)))
    for one, two in zip(together.metrics(), alone.metrics(), strict=True):
        assert one["loss"] == pytest.approx(two["loss"], rel=1e-6)
        assert one.get("monitor") == two.get("monitor")
    if later == "ddp":  # whole files from now on
        assert not list(together.last_checkpoint.parent.glob("*.parts"))
    if (first, later) != ("fsdp2", "fsdp2"):
        return
    options = ("--out", tmp_path / "undisturbed", "--devices", "2")
    done = forked_macl("train", "digits", *made, "strategy=fsdp2", *options, variables=LOOPBACK)
    assert done.returncode == 0, done.stderr
    undisturbed = Run(tmp_path / "undisturbed")
    assert_same(*(state_of(run)["state_dict"] for run in (together, undisturbed)))
    assert_same(*(state_of(run)["optimizer_states"] for run in (together, undisturbed)))


@pytest.mark.slow
def test_a_recipe_with_a_ring_trains_what_one_process_trains(tmp_path: Path) -> None:
    """`macl train loss.gather=ring --devices 2`, with a network and views without chance.

    The loss has state per sample; losses without are in tests/losses.
    """
    made = (*TINY, *EXACT, "loss=isogclr", "loss.gather=ring", "epochs=1", "monitor_every=0")
    together = Run(tmp_path / "two")
    done = forked_macl(
        "train", "digits", *made, "--out", together.folder, "--devices", "2", variables=LOOPBACK
    )
    assert done.returncode == 0, done.stderr
    assert together.recipe.loss.gather == "ring"
    alone = train(recipe(*made), tmp_path / "one", compute=HERE)
    assert_close(*(state_of(run)["state_dict"] for run in (together, alone)))


@pytest.mark.slow
def test_torchrun_needs_no_devices(tmp_path: Path) -> None:
    """Its two processes train one run, that of `--devices 2`; they know each other by torchrun."""
    made = ("train", "digits", *TINY, "epochs=1", "data.limit=64", "monitor_every=0", "--out")
    script = str(Path(__file__).parents[1] / "macl_script.py")
    runs = Run(tmp_path / "torchrun"), Run(tmp_path / "devices")
    command = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2",
               "--master-addr", "127.0.0.1", "--master-port", str(free_port()),
               script, *made, str(runs[0].folder))  # fmt: skip
    options = {"capture_output": True, "text": True, "timeout": 120}
    for done in (
        subprocess.run(command, env=environment(LOOPBACK), **options),
        forked_macl(*made, runs[1].folder, "--devices", "2", variables=LOOPBACK),
    ):
        assert done.returncode == 0, done.stderr
        assert done.stderr.count("training digits") == 1
    states = (state_of(run)["state_dict"] for run in runs)
    assert_same(*states)
    assert runs[0].metrics() == runs[1].metrics()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
