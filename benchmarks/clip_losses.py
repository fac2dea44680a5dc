"""A training step of two towers with our losses and with open_clip's: time and memory.

    python benchmarks/clip_losses.py [--repeats 5] [--output F]

Needs open_clip_torch. "Loss alone" is forward and backward of the loss on vectors of width 256.
"Whole step" has a resnet8 on 32×32 pictures and a transformer on 16 tokens, in chunks of 256 (both
libraries' losses on the same vectors). Times are medians of interleaved repeats in one process;
memory is what a fresh process needs on top of what it held before the step.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import InfoNCE, SigLIP
from macl.caching import encode_in_chunks
from macl.methods import SimCLR
from macl.modalities.image_text.towers import TwoTowers
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.sections import ImageEncoderConfig

TAU, BIAS, DIM, CHUNK = 0.07, -10.0, 256, 256
ALONE, WHOLE, LARGEST_TIMED = (512, 4096, 16384), (512, 4096), 4096

Loss = Callable[[Tensor, Tensor], Tensor]
Step = Callable[[], object]


def their_clip() -> Loss:
    from open_clip.loss import ClipLoss

    loss, scale = ClipLoss(), torch.tensor(1 / TAU)
    return lambda one, two: loss(F.normalize(one, dim=1), F.normalize(two, dim=1), scale)


def their_siglip() -> Loss:
    from open_clip.loss import SigLipLoss

    loss, scale = SigLipLoss(), nn.Parameter(torch.tensor(1 / TAU))
    bias = nn.Parameter(torch.tensor(BIAS))
    return lambda one, two: loss(F.normalize(one, dim=1), F.normalize(two, dim=1), scale, bias)


LOSSES: dict[str, Callable[[], Loss]] = {
    "InfoNCE, ours": lambda: InfoNCE(TAU, negatives="cross", symmetric=True),
    "ClipLoss, open_clip": their_clip,
    "SigLIP, ours": lambda: SigLIP(TAU, bias=BIAS),
    "SigLipLoss, open_clip": their_siglip,
}


class TextTower(nn.Module):
    """Two transformer layers of width 64 on tokens, the mean over which is the vector."""

    out_dim = 64

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(1000, self.out_dim)
        layer = nn.TransformerEncoderLayer(self.out_dim, 4, 256, dropout=0.0, batch_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)

    def forward(self, view: dict[str, Tensor]) -> Tensor:
        """(B, T) tokens to (B, 64)."""
        hidden: Tensor = self.layers(self.embedding(view["input_ids"]))
        return hidden.mean(dim=1)


def alone(name: str, n: int) -> Step:
    """Prepare forward and backward of the loss on n pairs."""
    torch.manual_seed(0)
    images, texts = (torch.randn(n, DIM, requires_grad=True) for _ in range(2))
    loss = LOSSES[name]()

    def step() -> None:
        images.grad = texts.grad = None
        loss(images, texts).backward()

    return step


def whole(name: str, n: int) -> Step:
    """Prepare a step of both towers on n pairs: encoding in chunks, loss, backward, optimizer."""
    torch.manual_seed(0)
    image = build_image_encoder(ImageEncoderConfig(name="resnet8", width=16))
    towers = TwoTowers(image, TextTower(), DIM)
    method = SimCLR(towers, nn.Identity(), InfoNCE(TAU, negatives="cross"))
    optimizer = torch.optim.AdamW(method.parameters())
    views = torch.randn(n, 3, 32, 32), {"input_ids": torch.randint(1000, (n, 16))}
    loss = LOSSES[name]()

    def step() -> None:
        optimizer.zero_grad()
        loss(*encode_in_chunks(method.encode, views, CHUNK, method)).backward()
        optimizer.step()

    return step


KINDS = {"loss alone": (alone, ALONE), "whole step": (whole, WHOLE)}


def resident(key: str) -> float:
    """A line of this process' /proc/self/status in megabytes: VmRSS now, VmHWM at its highest."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


def one_memory(kind: str, name: str, n: int) -> float:
    """Megabytes that one step adds to what the process held before it."""
    prepare = KINDS[kind][0]
    prepare(name, 64)()  # what libraries allocate at the first use
    step = prepare(name, n)
    Path("/proc/self/clear_refs").write_text("5")  # the highest is counted from here
    before = resident("VmRSS")
    step()
    return resident("VmHWM") - before


def memories() -> dict[tuple[str, int, str], float]:
    """Of every case, each in a process of its own; before this process computes anything."""
    cases = [(kind, n, name) for kind, (_, ns) in KINDS.items() for n in ns for name in LOSSES]
    with multiprocessing.get_context("fork").Pool(1, maxtasksperchild=1) as pool:
        return {(kind, n, name): pool.apply(one_memory, (kind, name, n)) for kind, n, name in cases}


def times(kind: str, n: int, repeats: int) -> dict[str, float]:
    """Median seconds of a step with each loss, their repeats interleaved."""
    steps = {name: KINDS[kind][0](name, n) for name in LOSSES}
    taken: dict[str, list[float]] = {name: [] for name in LOSSES}
    for repeat in range(repeats + 1):
        for name, step in steps.items():
            begun = time.perf_counter()
            step()
            if repeat:
                taken[name].append(time.perf_counter() - begun)
    return {name: statistics.median(values) for name, values in taken.items()}


def report(repeats: int) -> str:
    added = memories()
    lines = [
        f"float32, {torch.get_num_threads()} threads, torch {torch.__version__}, τ = {TAU}, width "
        f"{DIM}, chunks of {CHUNK}; medians of {repeats} repeats.",
        "",
        "| what | pairs | loss | milliseconds | added MB |",
        "|---|---|---|---|---|",
    ]
    for kind, (_, sizes) in KINDS.items():
        for n in sizes:
            found = times(kind, n, repeats if n < 4096 else 3) if n <= LARGEST_TIMED else {}
            for name in LOSSES:
                taken = f"{1000 * found[name]:.1f}" if name in found else "–"
                lines.append(f"| {kind} | {n:,} | {name} | {taken} | {added[kind, n, name]:.0f} |")
                print(lines[-1], file=sys.stderr, flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--output", type=Path)
    given = parser.parse_args()
    text = report(given.repeats)
    print(text)
    if given.output:
        given.output.write_text(text)


if __name__ == "__main__":
    main()
