"""Which published losses give, on several processes, the value and gradients of one process.

    python benchmarks/ddp_exact.py

prints a table for docs/howto/many-gpus.md: each loss by `macl.testing.assert_ddp_exact` on 2, 3 and
4 gloo processes, with the version that was tried.
"""

from __future__ import annotations

import importlib.metadata
import warnings
from functools import partial
from typing import Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from macl import MACL, SigLIP
from macl.testing import assert_ddp_exact

SCALE = 10.0


class OpenClip:
    """A loss of open_clip, built for its rank."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def __call__(self, rank: int, world: int) -> Any:
        import open_clip.loss

        kind = getattr(open_clip.loss, self.name)
        return partial(self.value, kind(rank=rank, world_size=world, **self.options))

    def value(self, loss: Any, z1: Tensor, z2: Tensor) -> Tensor:
        numbers = [SCALE] if self.name == "ClipLoss" else [SCALE, -SCALE]
        given = [torch.tensor(number, dtype=z1.dtype) for number in numbers]
        found: Tensor = loss(F.normalize(z1, dim=1), F.normalize(z2, dim=1), *given)
        return found


class Lightly:
    """A loss of lightly."""

    def __init__(self, name: str, **options: Any) -> None:
        self.name, self.options = name, options

    def __call__(self, z1: Tensor, z2: Tensor) -> Tensor:
        import lightly.loss

        value: Tensor = getattr(lightly.loss, self.name)(**self.options)(z1, z2)
        return value


class SentenceTransformers:
    """A loss of sentence-transformers, from embeddings."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __call__(self, z1: Tensor, z2: Tensor) -> Tensor:
        from sentence_transformers.losses import MultipleNegativesRankingLoss

        loss = MultipleNegativesRankingLoss(torch.nn.Module(), scale=SCALE, **self.options)
        value: Tensor = loss.compute_loss_from_embeddings([z1, z2], None)
        return value


class MetricLearning:
    """NT-Xent of pytorch-metric-learning, with its wrapper for several processes."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def __call__(self, z1: Tensor, z2: Tensor) -> Tensor:
        from pytorch_metric_learning.losses import NTXentLoss
        from pytorch_metric_learning.utils.distributed import DistributedLossWrapper

        loss: Any = NTXentLoss(temperature=1 / SCALE)
        labels = torch.arange(len(z1))
        if dist.is_initialized():
            labels += dist.get_rank() * len(z1)
            loss = DistributedLossWrapper(loss, **self.options)
        value: Tensor = loss(torch.cat([z1, z2]), torch.cat([labels, labels]))
        return value


def clip(name: str, **options: Any) -> dict[str, Any]:
    loss = OpenClip(name, **options)
    return {"loss": loss, "alone": OpenClip(name)(0, 1), "per_rank": True}


CASES: list[tuple[str, str, dict[str, Any]]] = [
    ("macl", "MACL(gather=True)", {"loss": MACL(gather=True)}),
    ("macl", 'MACL(gather="ring")', {"loss": MACL(gather="ring")}),
    ("macl", "SigLIP(gather=True)", {"loss": SigLIP(gather=True)}),
    ("open_clip_torch", "ClipLoss()", clip("ClipLoss")),
    ("open_clip_torch", "ClipLoss(gather_with_grad=True)", clip("ClipLoss", gather_with_grad=True)),
    ("open_clip_torch", "ClipLoss(local_loss=True)", clip("ClipLoss", local_loss=True)),
    ("open_clip_torch", "ClipLoss(local_loss=True, gather_with_grad=True)",
     clip("ClipLoss", local_loss=True, gather_with_grad=True)),
    ("open_clip_torch", "SigLipLoss()", clip("SigLipLoss")),
    ("lightly", "NTXentLoss()", {"loss": Lightly("NTXentLoss", temperature=0.1)}),
    ("lightly", "NTXentLoss(gather_distributed=True)",
     {"loss": Lightly("NTXentLoss", temperature=0.1, gather_distributed=True),
      "alone": Lightly("NTXentLoss", temperature=0.1)}),
    ("sentence-transformers", "MultipleNegativesRankingLoss()", {"loss": SentenceTransformers()}),
    ("sentence-transformers", "MultipleNegativesRankingLoss(gather_across_devices=True)",
     {"loss": SentenceTransformers(gather_across_devices=True), "alone": SentenceTransformers()}),
    ("pytorch-metric-learning", "DistributedLossWrapper(NTXentLoss())",
     {"loss": MetricLearning(), "alone": MetricLearning()}),
    ("pytorch-metric-learning", "DistributedLossWrapper(NTXentLoss(), efficient=True)",
     {"loss": MetricLearning(efficient=True), "alone": MetricLearning()}),
]  # fmt: skip


def result(case: dict[str, Any]) -> str:
    try:
        assert_ddp_exact(**case)
    except AssertionError as error:
        return f"fails: {error}"
    except Exception as error:  # what a rank raised
        return f"raises {type(error).__name__}: {str(error).strip().splitlines()[-1]}"
    return "exact on 2, 3 and 4 processes"


def main() -> None:
    warnings.simplefilter("ignore")
    print("| loss | version | result |\n| --- | --- | --- |")
    for package, name, case in CASES:
        version = importlib.metadata.version(package)
        print(f"| {package} `{name}` | {version} | {result(case)} |", flush=True)


if __name__ == "__main__":
    main()
