"""Several positives and a guide on 2 processes (gloo), gathered and in the ring = one process."""

from __future__ import annotations

import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn

from macl import DCL, MACL, NTXent, SigLIP, SupCon
from macl.losses import Statistics, StepInfo, Temperature

SIZES, DIM, HARD = (4, 3), 5, 6
TOTAL = sum(SIZES)
PAIRS = [(0, 1), (0, 0), (2, 2), (3, 1), (4, 4), (5, 6), (6, 6), (6, 4)]
"""Listed positives; each lies within a rank."""


class Watching(Temperature):
    wants_statistics = True

    def forward(self, step: StepInfo) -> Tensor:
        return step.new(0.3)

    def observe(self, statistics: Statistics) -> None:
        self.seen = torch.stack([statistics.entropy, statistics.variance, statistics.log_count])


LOSSES: dict[str, Any] = {
    "nt-xent": NTXent,
    "watching": lambda **options: NTXent(Watching(), **options),
    "dcl": DCL,
    "macl": lambda **options: MACL(0.2, 1.0, **options),
    "supcon": SupCon,
    "siglip": SigLIP,
}
CASES = [
    (loss, form, positives)
    for loss in LOSSES
    for form in ("both", "cross", "hard")
    for positives in ("guide", "labels", "several labels", "listed", "labels, guide and groups")
    if (loss, positives) != ("supcon", "listed")
]


def step(case: tuple[str, str, str], mine: slice, gather: Any) -> dict[str, Tensor]:
    name, form, positives = case
    torch.manual_seed(0)
    model = nn.Linear(DIM, DIM).double()
    x1, x2, g1, g2 = torch.randn(4, TOTAL, DIM).double()
    hard, g3 = torch.randn(2, HARD, DIM).double()
    share = slice(mine.start * HARD // TOTAL, mine.stop * HARD // TOTAL)
    more: dict[str, Any] = {}
    if form == "hard":
        more["hard"] = model(hard[share])
    labels = torch.arange(TOTAL) % 3
    if "guide" in positives:
        more["guide"] = (g1[mine], (g1 + g2)[mine], *([g3[share]] if form == "hard" else []))
    if "groups" in positives:
        more["groups"] = (torch.arange(TOTAL) // 2)[mine]
    if positives.startswith("labels"):
        more["positives"] = labels[mine]
    if positives == "several labels":
        hot = torch.eye(4, dtype=torch.bool)
        more["positives"] = (hot[labels] | hot[(torch.arange(TOTAL) + 1) % 4])[mine]
    if positives == "listed":
        own = [(r, c) for r, c in PAIRS if mine.start <= r < mine.stop]
        more["positives"] = tuple(torch.tensor(p) - mine.start for p in zip(*own, strict=True))
    options = {"negatives": "both" if form == "both" else "cross", "symmetric": form != "hard"}
    criterion = LOSSES[name](gather=gather, **options).double()
    found = criterion.contrast(model(x1[mine]), model(x2[mine]), **more)
    found.loss.backward()
    result = {
        "loss": found.loss.detach(),
        "gradient": torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]),
        "alignment": found.alignment,
    }
    if isinstance(criterion.temperature, Watching):
        result["statistics"] = criterion.temperature.seen
    if dist.is_initialized() and dist.get_rank() == 0:
        found.metrics()  # read by one rank alone: nothing may be exchanged any more
    return result


def worker(rank: int, world: int, folder: str) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", f"file://{folder}/meet", rank=rank, world_size=world, timeout=timedelta(seconds=60)
    )
    start = sum(SIZES[:rank])
    results = []
    for case in CASES:
        both = [step(case, slice(start, start + SIZES[rank]), g) for g in (True, "ring")]
        for result in both:
            for name in ("loss", "gradient"):  # what DistributedDataParallel does
                dist.all_reduce(result[name])
                result[name] /= world
        results.append(both)
    torch.save(results, f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.skipif(
    not (dist.is_available() and dist.is_gloo_available()), reason="this torch has no gloo backend"
)
def test_two_ranks_give_the_gradient_of_one_process(tmp_path: Path) -> None:
    mp.start_processes(worker, (2, str(tmp_path)), nprocs=2, start_method="forkserver")
    ranks = [torch.load(tmp_path / f"{r}.pt", weights_only=True) for r in range(2)]
    for number, case in enumerate(CASES):
        expected = step(case, slice(0, TOTAL), False)
        for rank in ranks:
            for gather, got in zip((True, "ring"), rank[number], strict=True):
                for name, truth in expected.items():
                    torch.testing.assert_close(
                        got[name], truth, rtol=1e-9, atol=1e-9,
                        msg=lambda text, at=(case, gather, name): f"{at}: {text}",
                    )  # fmt: skip
