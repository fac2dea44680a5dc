"""Sentences per second and memory of a training step: ours against sentence-transformers'.

    python benchmarks/text.py [--batch 64] [--length 32] [--width 128] [--layers 2] [--steps 10]
                              [--cached-batch 2048] [--mini-batch 32] [--cached-steps 3]
                              [--threads N] [--output F.md]

All contenders have the same small BERT, the same tokens, AdamW and float32, and take turns; medians
are reported. "MNRL" is sentence-transformers' MultipleNegativesRankingLoss. "macl train" is a step
of our own engine: both columns in one forward pass. The cached losses take turns likewise at
`--cached-batch`; their memory is that of a first step in a process of its own: the peak above what
was resident before (Linux).
"""

from __future__ import annotations

import argparse
import ctypes
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import sentence_transformers
import torch
import transformers
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as theirs
from torch import Tensor, nn

from macl import MACL, InfoNCE
from macl.integrations.sentence_transformers import (
    CachedContrastiveLoss,
    CachedMACLLoss,
    ContrastiveLoss,
    MACLLoss,
)
from macl.methods import SimCLR
from macl.modalities.text.data import TextDataset, load_topics
from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
from macl.modalities.text.folders import load_text_encoder, save_text_encoder
from turns import reset_peak, resident_peak

Step = Callable[[], None]
Features = list[dict[str, Tensor]]
TEMPERATURE = 0.05
BASE, CACHED_BASE = "MNRL", "cached MNRL"


def info_nce() -> InfoNCE:
    return InfoNCE(TEMPERATURE, symmetric=False)


PLAIN: dict[str, Callable[[Any], nn.Module]] = {
    BASE: partial(theirs.MultipleNegativesRankingLoss, scale=1 / TEMPERATURE),
    "ContrastiveLoss(InfoNCE)": lambda model: ContrastiveLoss(model, info_nce()),
    "MACLLoss": MACLLoss,
}
CACHED: dict[str, Callable[[Any, int], nn.Module]] = {
    CACHED_BASE: lambda model, rows: theirs.CachedMultipleNegativesRankingLoss(
        model, scale=1 / TEMPERATURE, mini_batch_size=rows
    ),
    "CachedContrastiveLoss(InfoNCE)": lambda model, rows: CachedContrastiveLoss(
        model, info_nce(), rows
    ),
    "CachedMACLLoss": lambda model, rows: CachedMACLLoss(model, mini_batch_size=rows),
}


def save_model(folder: Path, width: int, layers: int) -> None:
    torch.manual_seed(0)
    config = TextEncoderConfig(width=width, layers=layers)
    sentences, _ = load_topics("train")
    save_text_encoder(tiny_encoder(config, TextDataset([sentences])), folder)


def tokens(rows: int, length: int) -> Features:
    """The same random tokens twice: dropout tells the two columns apart, as in SimCSE."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(5, 1000, (rows, length), generator=generator)
    return [{"input_ids": ids, "attention_mask": torch.ones_like(ids)} for _ in range(2)]


def library_step(folder: Path, make: Callable[[Any], nn.Module], features: Features) -> Step:
    model = SentenceTransformer(str(folder), device="cpu", local_files_only=True).train()
    loss = make(model)
    # Models write into the mappings that they are given, hence the copies.
    return optimized(model, lambda: loss([dict(column) for column in features], None))


def engine_step(folder: Path, features: Features) -> Step:
    encoder = load_text_encoder(TextEncoderConfig(name=str(folder))).train()
    criterion = MACL(TEMPERATURE, 2.0, 0.8, reweight=False, negatives="cross", symmetric=False)
    method = SimCLR(encoder, nn.Identity(), criterion)
    return optimized(method, lambda: method(*features).loss)


def optimized(module: nn.Module, loss: Callable[[], Tensor]) -> Step:
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-5)

    def step() -> None:
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()

    return step


def seconds(step: Step) -> float:
    start = time.perf_counter()
    step()
    return time.perf_counter() - start


def speeds(folder: Path, batch: int, length: int, steps: int) -> dict[str, list[float]]:
    """Seconds of each step, all contenders in turn; a first round warms up."""
    features = tokens(batch, length)
    contenders = {name: library_step(folder, make, features) for name, make in PLAIN.items()}
    contenders["macl train"] = engine_step(folder, features)
    for step in contenders.values():
        step()
    return in_turns(contenders, steps)


def cached_speeds(folder: Path, options: argparse.Namespace) -> dict[str, list[float]]:
    """Seconds of each cached step; small batches warm up."""
    small, large = (tokens(rows, options.length) for rows in (64, options.cached_batch))
    contenders = {}
    for name, make in CACHED.items():
        made = partial(make, rows=options.mini_batch)
        library_step(folder, made, small)()
        contenders[name] = library_step(folder, made, large)
    return in_turns(contenders, options.cached_steps)


def in_turns(contenders: dict[str, Step], rounds: int) -> dict[str, list[float]]:
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, step in contenders.items():
            taken[name].append(seconds(step))
    return taken


def cached_memory(folder: Path, name: str, options: argparse.Namespace) -> float:
    """Peak MB above the start of a step."""
    make = partial(CACHED[name], rows=options.mini_batch)
    library_step(folder, make, tokens(options.mini_batch, options.length))()  # libraries loaded
    step = library_step(folder, make, tokens(options.cached_batch, options.length))
    ctypes.CDLL(None).malloc_trim(0)
    before = reset_peak()
    step()
    return resident_peak() - before


def in_a_child(folder: Path, name: str) -> float:
    arguments = [*sys.argv[1:], "--folder", str(folder), "--only", name]
    done = subprocess.run(
        [sys.executable, __file__, *arguments], stdout=subprocess.PIPE, text=True, check=True
    )
    return float(done.stdout.splitlines()[-1])


def report(folder: Path, options: argparse.Namespace) -> str:
    save_model(folder, options.width, options.layers)
    plain = speeds(folder, options.batch, options.length, options.steps)
    lines = [
        f"BERT of {options.layers} layers, width {options.width}, {options.length} tokens; torch "
        f"{torch.__version__}, sentence-transformers {sentence_transformers.__version__}, "
        f"{options.threads} threads",
        "",
        f"| batch {options.batch}, median of {options.steps} | sentences/s | {BASE} = 1 |",
        "|---|---|---|",
    ]
    lines += [speed_row(name, plain, BASE, options.batch) for name in plain]
    cached = cached_speeds(folder, options)
    memory = {name: in_a_child(folder, name) for name in CACHED}
    lines += [
        "",
        f"| batch {options.cached_batch}, mini-batch {options.mini_batch}, median of "
        f"{options.cached_steps} | sentences/s | {CACHED_BASE} = 1 | peak MB | "
        f"{CACHED_BASE} = 1 |",
        "|---|---|---|---|---|",
    ]
    for name, megabytes in memory.items():
        row = speed_row(name, cached, CACHED_BASE, options.cached_batch)
        lines.append(f"{row} {megabytes:.0f} | {megabytes / memory[CACHED_BASE]:.2f} |")
    return "\n".join(lines) + "\n"


def speed_row(name: str, taken: dict[str, list[float]], base: str, batch: int) -> str:
    """Sentences per second, and the median over rounds of the ratio to `base` in that round."""
    speed = batch / statistics.median(taken[name])
    ratio = statistics.median(b / a for a, b in zip(taken[name], taken[base], strict=True))
    return f"| {name} | {speed:.0f} | {ratio:.2f} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--length", type=int, default=32)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--cached-batch", type=int, default=2048)
    parser.add_argument("--mini-batch", type=int, default=32)
    parser.add_argument("--cached-steps", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--output", type=Path)
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--only", choices=list(CACHED), help=argparse.SUPPRESS)
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    transformers.logging.set_verbosity_error()  # no report on the unused head on [CLS]
    transformers.logging.disable_progress_bar()
    if options.only:
        print(cached_memory(options.folder, options.only, options))
        return
    with tempfile.TemporaryDirectory() as folder:
        text = report(Path(folder), options)
    print(text)
    if options.output:
        options.output.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
