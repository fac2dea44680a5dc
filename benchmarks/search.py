"""The time of a search among stored vectors, with a text and with a picture as the query.

    python benchmarks/search.py [--vectors 100000] [--repeats 20]

The towers are those of digits-captions, untrained: their size decides the time, not their weights.
"In memory" is `run.search(query, vectors)` of an open run; "file" reads the .parquet each time too.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
from PIL import Image

import macl
from macl.api.objects import Vectors
from macl.core.similarity import nearest_by_cosine


def milliseconds(step: Callable[[], object], repeats: int) -> str:
    """Median and largest time of a call, after one that is not counted."""
    step()
    taken = []
    for _ in range(repeats):
        begun = time.perf_counter()
        step()
        taken.append(1000 * (time.perf_counter() - begun))
    return f"{statistics.median(taken):.1f} | {max(taken):.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=100_000)
    parser.add_argument("--repeats", type=int, default=20)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        run = macl.train("digits-captions", out=folder / "run", epochs=0)
        width = run.encoder.out_dim
        torch.manual_seed(0)
        names = [f"picture-{number}.png" for number in range(given.vectors)]
        stored = Vectors(torch.randn(given.vectors, width), names)
        file, picture = folder / "vectors.parquet", folder / "query.png"
        stored.save(file)
        Image.new("RGB", (8, 8), (200, 30, 30)).save(picture)
        steps: dict[str, Callable[[], object]] = {
            "nearest of the vectors alone": lambda: nearest_by_cosine(
                stored.values[:1], stored.values, 10
            ),
            "text, vectors in memory": lambda: run.search("a handwritten three", stored),
            "picture, vectors in memory": lambda: run.search(picture, stored),
            "text, vectors in a file": lambda: run.search("a handwritten three", file),
        }
        print(f"{given.vectors:,} vectors of width {width}, {torch.get_num_threads()} threads.\n")
        print("| search | median ms | longest ms |\n|---|---|---|")
        for name, step in steps.items():
            print(f"| {name} | {milliseconds(step, given.repeats)} |")


if __name__ == "__main__":
    main()
