"""Reading pairs from shards: ours beside a plain webdataset pipeline with the same decoding.

    python benchmarks/shards.py FOLDER [--samples 200000] [--shards 50] [--output F]

Writes synthetic shards to FOLDER unless they are there. Each reader runs twice, by turns, in a
fresh process without workers: it reads pictures and captions in random order (webdataset: shards
in random order, a buffer of 1,000 samples), decodes them and joins batches of 256. Then 2 and 4
processes read the captions of their shares, which must make up every sample once. webdataset is
needed for its own line alone.
"""

from __future__ import annotations

import argparse
import importlib.util
import io
import json
import subprocess
import sys
import tarfile
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from macl.core.sharding import ShardedBatches
from macl.modalities.image_text.data import load_pairs
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.image_text.sections import PairDataConfig
from macl.modalities.images.decode import ImageBatch, decode
from macl.training.loader import ResumableLoader

SIDE, DISTINCT, BATCH, BUFFER = 32, 256, 256, 1000


def write_shards(folder: Path, samples: int, shards: int) -> None:
    """`shards` archives of small JPEG pictures with captions."""
    folder.mkdir(parents=True, exist_ok=True)
    draw = np.random.default_rng(0)
    pictures = []
    for _ in range(DISTINCT):
        stream = io.BytesIO()
        coarse = draw.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        Image.fromarray(coarse).resize((SIDE, SIDE)).save(stream, "jpeg")
        pictures.append(stream.getvalue())
    for shard in range(shards):
        with tarfile.open(folder / f"pairs-{shard:03}.tar", "w") as archive:
            for number in range(shard * samples // shards, (shard + 1) * samples // shards):
                parts = {"jpg": pictures[number % DISTINCT], "txt": f"pair {number}".encode()}
                for suffix, data in parts.items():
                    member = tarfile.TarInfo(f"{number:08}.{suffix}")
                    member.size = len(data)
                    archive.addfile(member, io.BytesIO(data))


def our_pairs(folder: Path) -> PairDataset:
    return load_pairs(PairDataConfig(path=folder, holdout=0), "train")


def ours(folder: Path) -> Iterator[int]:
    """Sizes of the batches of one epoch."""
    pairs = our_pairs(folder)
    batches = ShardedBatches(len(pairs), BATCH, seed=0, rank=0, world=1, drop_last=False)
    for batch in ResumableLoader(pairs, batches, 0):
        yield len(batch.inputs.captions)


def theirs(folder: Path) -> Iterator[int]:
    """The same of webdataset."""
    import webdataset as wds

    def sample(found: dict[str, Any]) -> tuple[Any, str]:
        return decode(Path(found["__key__"]), None, found["jpg"]), found["txt"].decode().strip()

    def joined(samples: list[tuple[Any, str]]) -> int:
        pictures, captions = zip(*samples, strict=True)
        return len(ImageBatch.of(pictures).pixels) and len(captions)

    files = [str(file) for file in sorted(folder.glob("*.tar"))]
    pipeline = wds.WebDataset(files, shardshuffle=len(files), seed=0)
    yield from pipeline.shuffle(BUFFER).map(sample).batched(BATCH, collation_fn=joined)


READERS = {"macl": ours, "webdataset": theirs}


def resident() -> float:
    """Memory of this process that no file backs, in megabytes: mapped pages do not count."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


def measure(name: str, folder: Path, samples: int) -> dict[str, Any]:
    """Samples per second after the first batch, and memory at each quarter of the epoch."""
    started = time.perf_counter()
    batches = READERS[name](folder)
    seen = next(batches)
    begun, memory = time.perf_counter(), [resident()]
    for size in batches:
        seen += size
        if seen * 4 // samples > len(memory) - 1:
            memory.append(resident())
    took = time.perf_counter() - begun
    assert seen == samples, f"{name} read {seen} of {samples} samples"
    return {"setup": begun - started, "rate": (samples - BATCH) / took, "memory": memory}


def share(folder: Path, rank: int, world: int) -> list[str]:
    """The captions that one of `world` processes reads in an epoch."""
    pairs = our_pairs(folder)
    batches = ShardedBatches(len(pairs), BATCH, seed=0, rank=rank, world=world, drop_last=False)
    return [pairs.captions[index][0] for batch in batches for index in batch]


def every_sample_once(folder: Path, samples: int, world: int) -> bool:
    with ProcessPoolExecutor(world) as pool:
        parts = list(pool.map(share, [folder] * world, range(world), [world] * world))
    seen: Iterable[str] = (caption for part in parts for caption in part)
    return sorted(seen) == sorted(f"pair {number}" for number in range(samples))


def report(given: argparse.Namespace) -> str:
    names = [n for n in READERS if n == "macl" or importlib.util.find_spec("webdataset")]
    begun = time.perf_counter()
    our_pairs(given.folder)
    first = time.perf_counter() - begun
    lines = [
        f"{given.samples:,} JPEG pictures of {SIDE} px with captions in {given.shards} archives; "
        f"batches of {BATCH}, one process. Our index of the archives: {first:.0f} s, once.",
        "",
        "| reader | samples/s | until the first batch, s | MB at 0, 25, 50, 75, 100% |",
        "|---|---|---|---|",
    ]
    for _ in range(2):
        for name in names:
            command = [sys.executable, __file__, *sys.argv[1:], "--only", name]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found = json.loads(done.stdout.splitlines()[-1])
            memory = ", ".join(f"{value:.0f}" for value in found["memory"])
            lines.append(f"| {name} | {found['rate']:,.0f} | {found['setup']:.1f} | {memory} |")
            print(lines[-1], file=sys.stderr, flush=True)
    lines.append("")
    for world in (2, 4):
        once = every_sample_once(given.folder, given.samples, world)
        lines.append(f"{world} processes read every sample once: {'yes' if once else 'NO'}.")
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--samples", type=int, default=200_000)
    parser.add_argument("--shards", type=int, default=50)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--only", choices=list(READERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if len(list(given.folder.glob("*.tar"))) != given.shards:
        write_shards(given.folder, given.samples, given.shards)
    if given.only:
        print(json.dumps(measure(given.only, given.folder, given.samples)))
        return
    text = report(given)
    print(text)
    if given.output:
        given.output.write_text(text)


if __name__ == "__main__":
    main()
