"""Images per second of a training step: ours against lightly's SimCLR, and where the time goes.

    python benchmarks/throughput.py [--batch 256] [--side 32] [--width 16] [--steps 6] [--output F]

Same encoder, head, batch, precision (float32) and optimizer; images are random bytes in memory.
Ours: batched views, joint forward, streamed NT-Xent. lightly: its `SimCLRTransform` per image in a
DataLoader (0 and 2 workers), `SimCLRProjectionHead`, `NTXentLoss`. Each contender has a process of
its own; blocks of steps alternate. Ours keeps freed memory between steps, as `macl train` does
(`training/compute.py`); it is also measured without, and lightly with.
"""

from __future__ import annotations

import argparse
import importlib.util
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import torch
from torch import nn

from macl import NTXent
from macl.methods import SimCLR
from macl.methods.heads import build_head
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.modalities.images.views import ImageViews, ImageViewsConfig
from macl.recipes.methods import HeadConfig
from macl.training.compute import kept_memory
from turns import in_turns, resident_peak, serve

PREFETCHED = 5
"""Steps of a block that do not count: two workers have four batches ready, and one warms up."""


class Clock:
    """Adds up the seconds of named parts of a step."""

    def __init__(self) -> None:
        self.parts: dict[str, list[float]] = {}
        self.last = 0.0

    def start(self) -> None:
        self.last = time.perf_counter()

    def lap(self, name: str) -> None:
        now = time.perf_counter()
        self.parts.setdefault(name, []).append(now - self.last)
        self.last = now

    def means(self) -> dict[str, float]:
        return {name: statistics.mean(times) for name, times in self.parts.items()}


def pictures(count: int, side: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (count, 3, side, side), dtype=torch.uint8, generator=generator)


def encoder(width: int) -> nn.Module:
    return build_image_encoder(ImageEncoderConfig(name="resnet8", stem="cifar", width=width))


def ours(
    images: torch.Tensor, batch: int, side: int, width: int, clock: Clock
) -> Callable[[], None]:
    network = encoder(width)
    dim = int(network.out_dim)
    method = SimCLR(network, build_head(HeadConfig(widths=(dim, 64)), dim), NTXent(0.1))
    optimizer = torch.optim.Adam(method.parameters(), lr=1e-3, fused=True)
    views = ImageViews(ImageViewsConfig(preset="cifar", size=side))

    def step() -> None:
        clock.start()
        chosen = torch.randperm(len(images))[:batch]
        inputs = ImageBatch(images[chosen], torch.full((batch, 2), side))
        clock.lap("reading")
        one, two = views(inputs)
        clock.lap("views")
        embeddings = method.encode(one, two)
        clock.lap("forward")
        loss = method.step(*embeddings).loss
        clock.lap("loss")
        optimizer.zero_grad()
        loss.backward()
        clock.lap("backward")
        optimizer.step()
        clock.lap("optimizer")

    return step


def lightly(
    images: torch.Tensor, batch: int, side: int, width: int, workers: int, clock: Clock
) -> Callable[[], None]:
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import SimCLRProjectionHead
    from lightly.transforms import SimCLRTransform
    from torchvision.transforms.functional import to_pil_image

    transform = SimCLRTransform(input_size=side, cj_strength=0.5, gaussian_blur=0.0)
    stored = [to_pil_image(image) for image in images]

    class Pictures(torch.utils.data.Dataset):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return len(stored)

        def __getitem__(self, index: int) -> list[torch.Tensor]:
            return transform(stored[index])

    loader = torch.utils.data.DataLoader(
        Pictures(),
        batch,
        shuffle=True,
        drop_last=True,
        num_workers=workers,
        persistent_workers=workers > 0,
    )

    def endless() -> Iterator[list[torch.Tensor]]:
        while True:
            yield from loader

    network = encoder(width)
    dim = int(network.out_dim)
    head = SimCLRProjectionHead(dim, dim, 64)
    criterion = NTXentLoss(0.1)
    optimizer = torch.optim.Adam([*network.parameters(), *head.parameters()], lr=1e-3)
    batches = endless()

    def step() -> None:
        clock.start()
        one, two = next(batches)
        clock.lap("views")
        z1, z2 = head(network(one)), head(network(two))
        clock.lap("forward")
        loss = criterion(z1, z2)
        clock.lap("loss")
        optimizer.zero_grad()
        loss.backward()
        clock.lap("backward")
        optimizer.step()
        clock.lap("optimizer")

    return step


CONTENDERS: dict[str, tuple[int | None, bool]] = {
    "macl": (None, True),
    "macl, usual allocator": (None, False),
    "lightly, 0 workers": (0, False),
    "lightly, 2 workers": (2, False),
    "lightly, 2 workers, our allocator": (2, True),
}
"""Worker processes (None: ours, which makes views in the training process), and whether freed
memory is kept, as `macl train` does."""


def contend(name: str, options: argparse.Namespace) -> None:
    """Blocks of steps of one contender, on request."""
    workers, keeps = CONTENDERS[name]
    images = pictures(4 * options.batch, options.side)
    size, clock = (images, options.batch, options.side, options.width), Clock()
    step = ours(*size, clock) if workers is None else lightly(*size, workers, clock)

    def block() -> dict[str, Any]:
        # A block each, not step by step: workers make views ahead while others are timed.
        for _ in range(PREFETCHED if workers else 1):
            step()
        clock.parts.clear()
        taken = []
        for _ in range(options.steps):
            before = time.perf_counter()
            step()
            taken.append(time.perf_counter() - before)
        return {"seconds": taken, "parts": clock.means(), "peak": resident_peak()}

    with kept_memory() if keeps else nullcontext():
        serve(block)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--side", type=int, default=32)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output")
    parser.add_argument("--only", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    if options.only:
        contend(options.only, options)
        return
    names = list(CONTENDERS)
    if importlib.util.find_spec("lightly") is None:
        print("lightly is not installed: skipped (pip install 'macl[bench]')")
        names = [name for name in names if not name.startswith("lightly")]
    found = in_turns(names, options.rounds)
    totals = {
        name: statistics.mean([s for block in blocks for s in block["seconds"]])
        for name, blocks in found.items()
    }
    parts = ("reading", "views", "forward", "loss", "backward", "optimizer")
    lines = [
        f"resnet8 width {options.width}, {options.side} px, batch {options.batch}, float32, torch "
        f"{torch.__version__}, {options.threads} threads; ms per part, means of "
        f"{options.rounds} blocks of {options.steps} steps; peak resident MB of the process",
        "",
        "| | images/s | macl is faster by | " + " | ".join(parts) + " | peak MB |",
        "|---" * (len(parts) + 4) + "|",
    ]
    for name, total in totals.items():
        blocks = found[name]
        shares = " | ".join(
            f"{statistics.mean(block['parts'].get(part, 0) for block in blocks) * 1e3:.0f}"
            for part in parts
        )
        lines.append(
            f"| {name} | {options.batch / total:.0f} | {total / totals['macl']:.2f}× | {shares} "
            f"| {blocks[-1]['peak']:,.0f} |"
        )
    print("\n".join(lines))
    if options.output:
        with open(options.output, "w", encoding="utf-8") as file:
            file.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
