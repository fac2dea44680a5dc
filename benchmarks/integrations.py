"""Time and memory of our losses beside those of the libraries that they go into, as ratios.

    python benchmarks/integrations.py [--rounds 5] [--batch 4096] [--only lightly] [--write]

Contenders of a row take turns in one process, on the same input, in single precision; the median
time and the most that torch holds beside what was there before are compared, ours divided by
theirs: below 1 is better. Under ten minutes on two cores; wants an idle machine. With --write the
table goes into docs/integrations.md.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import lightly.loss
import open_clip.loss as clip
import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses as pml_losses
from pytorch_metric_learning.miners import BatchHardMiner
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as st
from sentence_transformers.util import mine_hard_negatives
from torch import Tensor, nn

import macl
from macl import InfoNCE, NTXent
from macl.core.mining import Rules, Space, hard_negatives
from macl.integrations import open_clip as our_clip
from macl.integrations.lightly import NTXentLoss
from macl.integrations.pytorch_metric_learning import BlockMiner, ContrastiveLoss
from macl.integrations.sentence_transformers import CachedContrastiveLoss
from macl.integrations.sentence_transformers import ContrastiveLoss as Sentences
from study_tables import replace_part
from text import save_model, tokens

PAGE = Path(__file__).parents[1] / "docs" / "integrations.md"
Step = Callable[[], Any]


def rows(n: int, d: int, count: int = 2) -> list[Tensor]:
    """Random unit rows that require a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = torch.randn(count, n, d, generator=generator)
    return [F.normalize(part, dim=1).requires_grad_() for part in made]


def seconds(step: Step) -> float:
    """Of one call."""
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def peak(step: Step) -> float:
    """MB that torch holds at most during a call, beside what it held before."""
    with torch.autograd.profiler.profile(profile_memory=True) as profile:
        step()
    total = most = 0
    for event in profile.kineto_results.events():
        if event.name() == "[memory]":
            total += event.nbytes()
            most = max(most, total)
    return most / 1e6


class Stored:
    """A model, for sentence-transformers, whose embeddings are there already."""

    device = torch.device("cpu")

    def __init__(self, vectors: Tensor) -> None:
        self.vectors = vectors.numpy()

    def encode_query(self, texts: list[str], **_: Any) -> Any:
        """Texts are numbers of rows."""
        return self.vectors[list(map(int, texts))]

    encode_document = encode_query

    def similarity(self, a: Any, b: Any) -> Tensor:
        """Of unit rows."""
        return torch.as_tensor(a) @ torch.as_tensor(b).T

    def similarity_pairwise(self, a: Any, b: Any) -> Tensor:
        """Row by row."""
        return (torch.as_tensor(a) * torch.as_tensor(b)).sum(1)


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


def embedding(model: nn.Module, column: dict[str, Tensor]) -> Tensor:
    """Of the texts of a column, which the model writes into."""
    return model(dict(column))["sentence_embedding"]


def comparisons(folder: Path, n: int) -> dict[str, tuple[Step, Step]]:
    """Row → ours and theirs."""
    images, texts = rows(n, 256)
    scale, bias = torch.tensor(20.0), torch.tensor(-10.0)
    network = nn.Sequential(nn.Linear(256, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU())
    encoder = nn.Sequential(network, nn.Linear(1024, 128))
    views = [view.detach() for view in rows(n, 256)]
    criterion = InfoNCE(0.1, symmetric=False)
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).train()
    guide = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
    small, large = tokens(64, 32), tokens(n // 8, 32)

    def sentences(loss: nn.Module, features: Any) -> Step:
        return lambda: loss([dict(column) for column in features], None).backward()

    labeled, labels = rows(n, 128, 1)[0], torch.arange(n) % max(1, n // 8)
    hard, ours_pml = BatchHardMiner(), ContrastiveLoss(NTXent(0.1))
    theirs_pml = pml_losses.NTXentLoss(temperature=0.1)
    corpus = rows(5 * n, 384, 1)[0].detach()
    place = torch.arange(5 * n)
    space = Space(corpus, corpus, place)
    texts_of = list(map(str, range(5 * n)))
    pairs = datasets.Dataset.from_dict({"anchor": texts_of, "positive": texts_of})
    guided = InfoNCE(0.05, symmetric=False, guide_margin=0.1)
    gist = {"margin": 0.1, "contrast_anchors": False, "contrast_positives": False}
    nested = InfoNCE(0.05, symmetric=False, dims=(128, 64, 32))
    in_chunks = macl.cached(model, InfoNCE(0.05, symmetric=False), 32, call=embedding)
    cached_mnrl = partial(st.CachedMultipleNegativesRankingLoss, scale=20.0)
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
            sentences(cached_mnrl(model), large),
        ),
        f"macl.cached beside sentence-transformers' cached MNRL, N={n // 8}": (
            backward(in_chunks, *large),
            sentences(cached_mnrl(model), large),
        ),
        "sentence-transformers GIST, N=64": (
            sentences(Sentences(model, guided, guide=guide), small),
            sentences(st.GISTEmbedLoss(model, guide, 0.05, **gist), small),
        ),
        f"sentence-transformers cached GIST, N={n // 8}": (
            sentences(CachedContrastiveLoss(model, guided, guide=guide), large),
            sentences(st.CachedGISTEmbedLoss(model, guide, 0.05, **gist), large),
        ),
        f"sentence-transformers Matryoshka of cached MNRL, N={n // 8}": (
            sentences(CachedContrastiveLoss(model, nested), large),
            sentences(st.MatryoshkaLoss(model, cached_mnrl(model), [128, 64, 32]), large),
        ),
        f"lightly NTXentLoss, N={n}": (
            backward(NTXentLoss(0.1), images, texts),
            backward(lightly.loss.NTXentLoss(0.1), images, texts),
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
        f"macl mine beside mine_hard_negatives, {5 * n:,} × 384": (
            lambda: hard_negatives(space, (place, place), Rules()),
            lambda: mine_hard_negatives(
                pairs, Stored(corpus), num_negatives=1, range_max=100, verbose=False
            ),
        ),
    }


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--batch", type=int, default=4096)
    parser.add_argument("--only", default="", help="rows with this in their name")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    lines = ["| | time | memory | ours | theirs |", "|---|---|---|---|---|"]
    with tempfile.TemporaryDirectory() as place:
        save_model(Path(place), width=128, layers=2)
        for name, contenders in comparisons(Path(place), options.batch).items():
            if options.only not in name:
                continue
            mb = [peak(step) for step in contenders]  # and warms up
            turns = [[seconds(step) for step in contenders] for _ in range(options.rounds)]
            ms = [1000 * statistics.median(each) for each in zip(*turns, strict=True)]
            ratios = f"{ms[0] / ms[1]:.2f} | {mb[0] / mb[1]:.2f}"
            shown = [f"{a:,.0f} ms, {b:,.0f} MB" for a, b in zip(ms, mb, strict=True)]
            lines.append(f"| {name} | {ratios} | {' | '.join(shown)} |")
            print(lines[-1], flush=True)
    if options.write:
        replace_part(PAGE, "integrations", "\n".join(lines))


if __name__ == "__main__":
    main()
