"""Peak memory of one training step on a large contrastive batch, with and without chunks.

    python benchmarks/memory.py [--batch 16384] [--chunk 256] [--width 16] [--data F] [--output F]

A resnet8 on CIFAR-sized images: views, encoder, projector, loss, backward pass and optimizer step,
in a fresh process each. The images are random bytes, or those of --data: the folder of CIFAR-10 or
an .npz file. A process that asks for more memory than the machine has free is refused it.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor

from macl import MACL, NTXent
from macl.caching import encode_in_chunks
from macl.methods import SimCLR
from macl.methods.heads import build_head
from macl.modalities.images.data import ImageDataConfig, load_images
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.modalities.images.views import ImageViews, ImageViewsConfig
from macl.recipes.methods import HeadConfig

SIDE, TAU = 32, 0.1

Loss = Callable[[Tensor, Tensor], Tensor]


def lightly(name: str) -> Loss:
    import lightly.loss

    return getattr(lightly.loss, name)(temperature=TAU)


CASES: dict[str, tuple[bool, Callable[[], Loss]]] = {
    "macl.MACL, in chunks": (True, lambda: MACL(TAU)),
    "macl.MACL, at once": (False, lambda: MACL(TAU)),
    "macl.NTXent, in chunks": (True, lambda: NTXent(TAU)),
    "lightly NTXentLoss, in our chunks": (True, lambda: lightly("NTXentLoss")),
    "lightly NTXentLoss, at once": (False, lambda: lightly("NTXentLoss")),
}


def images(count: int, data: Path | None) -> Tensor:
    """(count, 3, 32, 32) uint8."""
    if data is not None:
        stored = load_images(ImageDataConfig(path=data, limit=count), "train")
        return torch.stack([stored[index] for index in range(count)])
    generator = torch.Generator().manual_seed(0)
    shape = (count, 3, SIDE, SIDE)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def peak() -> float:
    """Largest resident memory of this process so far, in megabytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def available() -> int:
    """Bytes that the machine can give."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))


def one_step(case: str, given: argparse.Namespace) -> dict[str, object]:
    """Take the step; peak memory before and after it, and its time."""
    chunked, build = CASES[case]
    torch.manual_seed(0)
    encoder = build_image_encoder(ImageEncoderConfig(name="resnet8", width=given.width))
    dim = int(encoder.out_dim)  # type: ignore[arg-type]
    loss = build()
    method = SimCLR(encoder, build_head(HeadConfig(widths=(dim, 64)), dim), NTXent(TAU))
    optimizer = torch.optim.Adam(method.parameters())
    views = ImageViews(ImageViewsConfig(preset="cifar"))
    inputs = ImageBatch(images(given.batch, given.data), torch.full((given.batch, 2), SIDE))
    resource.setrlimit(resource.RLIMIT_DATA, (available(), resource.RLIM_INFINITY))
    before, started = peak(), time.perf_counter()
    try:
        embeddings = encode_in_chunks(
            method.encode, views(inputs), given.chunk if chunked else None, method
        )
        loss(*embeddings).backward()
        optimizer.step()
    except (RuntimeError, MemoryError) as error:
        if "memory" not in str(error).lower():
            raise
        return {"before": before, "peak": None}
    return {"before": before, "peak": peak(), "seconds": time.perf_counter() - started}


def in_a_child(case: str) -> dict[str, object]:
    command = [sys.executable, __file__, *sys.argv[1:], "--only", case]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def report(given: argparse.Namespace) -> str:
    missing = importlib.util.find_spec("lightly") is None
    cases = [case for case in CASES if not (missing and case.startswith("lightly"))]
    limit = available() / 2**30
    found = {case: in_a_child(case) for case in cases}
    lines = [
        f"{given.batch} images of {SIDE} px ({given.data or 'random bytes'}), resnet8 of width "
        f"{given.width}, chunks of {given.chunk}, float32, {torch.get_num_threads()} threads, "
        f"torch {torch.__version__}; {limit:.1f} GB free.",
        "",
        "| one step | peak resident MB | of it before the step | seconds |",
        "|---|---|---|---|",
    ]
    for case, figures in found.items():
        top, seconds = f"more than {1024 * limit:.0f}: refused", "–"
        if figures["peak"] is not None:
            top, seconds = f"{figures['peak']:.0f}", f"{figures['seconds']:.1f}"
        lines.append(f"| {case} | {top} | {figures['before']:.0f} | {seconds} |")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=16384)
    parser.add_argument("--chunk", type=int, default=256)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=list(CASES), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.only:
        print(json.dumps(one_step(given.only, given)))
        return
    text = report(given)
    print(text)
    if given.output:
        given.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
