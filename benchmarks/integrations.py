"""Time and memory of our losses beside those of the libraries that they go into, as ratios.

    python benchmarks/integrations.py [--rounds 5] [--batch 4096] [--write]

Contenders of a row take turns in one process, on the same input, in single precision; the median
time and the largest growth of resident memory are compared, ours divided by theirs: below 1 is
better. The last rows have no peer. Under five minutes on two cores; wants an idle machine. With
--write the table goes into docs/integrations.md.
"""

from __future__ import annotations

import argparse
import gc
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import open_clip.loss as clip
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.miners import BatchHardMiner
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st
from torch import Tensor, nn

import macl
from macl import InfoNCE, NTXent
from macl.core.mining import Rules, Space, hard_negatives
from macl.integrations import open_clip as our_clip
from macl.integrations.pytorch_metric_learning import BlockMiner, ContrastiveLoss
from macl.integrations.sentence_transformers import CachedContrastiveLoss
from macl.integrations.sentence_transformers import ContrastiveLoss as Sentences
from study_tables import replace_part
from text import save_model, tokens
from turns import reset_peak, resident_peak

PAGE = Path(__file__).parents[1] / "docs" / "integrations.md"
Step = Callable[[], Any]


def rows(n: int, d: int, count: int = 2) -> list[Tensor]:
    """Random unit rows that require a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(count, n, d, generator=generator)
    return [F.normalize(part, dim=1).requires_grad_() for part in made]


def measured(step: Step) -> tuple[float, float]:
    """Seconds, and MB above what was resident before."""
    gc.collect()
    before = reset_peak()
    start = time.perf_counter()
    step()
    return time.perf_counter() - start, resident_peak() - before


def backward(loss: Callable[..., Any], *given: Any) -> Step:
    """One forward and backward pass."""

    def step() -> None:
        loss(*given).backward()

    return step


def by_grad_cache(encoder: nn.Module, criterion: nn.Module, chunk: int) -> Callable[..., Tensor]:
    """GradCache's three steps: embed without graph, gradient of the embeddings, embed again."""

    def loss(*views: Tensor) -> Tensor:
        with torch.no_grad():
            held = [torch.cat([encoder(p) for p in view.split(chunk)]) for view in views]
        leaves = [z.requires_grad_() for z in held]
        value = criterion(*leaves)
        value.backward()
        for view, z in zip(views, leaves, strict=True):
            for part, grad in zip(view.split(chunk), z.grad.split(chunk), strict=True):
                encoder(part).backward(grad)
        return value.detach().requires_grad_()

    return loss


def comparisons(folder: Path, n: int) -> dict[str, tuple[Step, Step | None]]:
    """Row → ours and theirs."""
    images, texts = rows(n, 256)
    scale, bias = torch.tensor(20.0), torch.tensor(-10.0)
    network = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
    encoder = nn.Sequential(network, nn.Linear(1024, 128))
    views = [view.detach() for view in rows(n, 256)]
    criterion = InfoNCE(0.1, symmetric=False)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).train()
    small, large = tokens(64, 32), tokens(n // 8, 32)

    def sentences(loss: nn.Module, features: Any) -> Step:
        return lambda: loss([dict(column) for column in features], None).backward()

    labeled, labels = rows(n, 128, 1)[0], torch.arange(n) % max(1, n // 8)
    hard, ours_pml = BatchHardMiner(), ContrastiveLoss(NTXent(0.1))
    theirs_pml = pml_losses.NTXentLoss(temperature=0.1)
    corpus = rows(5 * n, 384, 1)[0].detach()
    place = torch.arange(5 * n)
    space = Space(corpus, corpus, place)
    return {
        f"open_clip ClipLoss, N={n}": (
            backward(our_clip.ClipLoss(), images, texts, scale),
            backward(clip.ClipLoss(), images, texts, scale),
        ),
        f"open_clip SigLipLoss, N={n}": (
            backward(our_clip.SigLipLoss(), images, texts, scale, bias),
            backward(clip.SigLipLoss(), images, texts, scale, bias),
        ),
        f"macl.cached beside GradCache's steps, N={n}": (
            backward(macl.cached(encoder, criterion, 64), *views),
            lambda: by_grad_cache(encoder, criterion, 64)(*views),
        ),
        f"macl.cached beside the plain step, N={n}": (
            backward(macl.cached(encoder, criterion, 64), *views),
            lambda: criterion(encoder(views[0]), encoder(views[1])).backward(),
        ),
        "sentence-transformers MNRL, N=64": (
            sentences(Sentences(model, InfoNCE(0.05, symmetric=False)), small),
            sentences(st.MultipleNegativesRankingLoss(model, scale=20.0), small),
        ),
        f"sentence-transformers cached MNRL, N={n // 8}": (
            sentences(CachedContrastiveLoss(model, InfoNCE(0.05, symmetric=False)), large),
            sentences(st.CachedMultipleNegativesRankingLoss(model, scale=20.0), large),
        ),
        # Its matrix has a row for each positive pair and a column for each negative one.
        "pytorch-metric-learning NTXentLoss, n=128": (
            backward(ours_pml, labeled[:128], labels[:128] % 16),
            backward(theirs_pml, labeled[:128], labels[:128] % 16),
        ),
        f"pytorch-metric-learning with BatchHardMiner, n={n}": (
            lambda: ours_pml(labeled, labels, BlockMiner(hard, 256)(labeled, labels)).backward(),
            lambda: theirs_pml(labeled, labels, hard(labeled, labels)).backward(),
        ),
        f"macl mine, {5 * n:,} × 384; time grows with the square": (
            lambda: hard_negatives(space, (place, place), Rules()),
            None,
        ),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = ["| | time | memory | ours | theirs |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as place:
        save_model(Path(place), width=128, layers=2)
        for name, (ours, theirs) in comparisons(Path(place), options.batch).items():
            contenders = [ours] if theirs is None else [ours, theirs]
            found: list[list[tuple[float, float]]] = [[] for _ in contenders]
            rounds = options.rounds if theirs is not None else 1
            for number in range(rounds + 1):
                for seen, step in zip(found, contenders, strict=True):
                    result = measured(step)
                    if number or theirs is None:  # the first round warms up
                        seen.append(result)
            figures = [
                (statistics.median(s for s, _ in seen), max(mb for _, mb in seen)) for seen in found
            ]
            shown = [f"{seconds * 1000:,.0f} ms, {mb:,.0f} MB" for seconds, mb in figures]
            ratios = ["", ""]
            if theirs is not None:
                (time_a, mb_a), (time_b, mb_b) = figures
                ratios = [f"{time_a / time_b:.2f}", f"{mb_a / mb_b:.2f}" if mb_b >= 1 else "–"]
            lines.append(f"| {name} | {' | '.join(ratios)} | {' | '.join([*shown, ''][:2])} |")
            print(lines[-1], flush=True)
    if options.write:
        replace_part(PAGE, "integrations", "\n".join(lines))


if __name__ == "__main__":
    main()
