"""Build time, recall@10, latency and memory of every engine, beside brute force with numpy.

    python benchmarks/scale_search.py [--vectors 1000000] [--width 384] [--queries 200]
                                      [--engines numpy,exact,faiss,lancedb] [--keep FOLDER]

The vectors imitate embeddings: 2,000 clusters of unequal size, and directions whose variance falls
as 1/rank within them. Queries are further vectors of the same kind that are not stored. Each engine
builds in a process of its own and searches in another; memory is the peak of each. About five
minutes for a million. The section "search" of docs/results/scale.md is replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scale_page import machine, peak_memory, replace_section, table

PART = 65_536


def vectors(count: int, width: int, seed: int) -> np.ndarray:
    """(count, width) float32; the clusters are the same for every seed."""
    fixed, chance = np.random.default_rng(0), np.random.default_rng(seed)
    centers = fixed.normal(size=(2000, width)).astype(np.float32)
    weights = fixed.dirichlet(np.full(2000, 0.5))
    spread = (1.5 / np.sqrt(np.arange(1, width + 1))).astype(np.float32) * np.sqrt(width) / 8
    own = chance.choice(2000, size=count, p=weights)
    around = chance.standard_normal((count, width), np.float32) * spread
    return (centers[own] * 0.5 + around).astype(np.float32)


def write(folder: Path, count: int, width: int) -> None:
    """Parts as `macl embed --dtype float16` writes them."""
    from macl.runs.parts import part_name
    from macl.runs.vectors import table_of, write_parquet

    for number, start in enumerate(range(0, count, PART)):
        rows = range(start, min(start + PART, count))
        columns = {"name": [f"item {row}" for row in rows], "label": [f"{r % 10}" for r in rows]}
        values = vectors(len(rows), width, 1 + number)
        table = table_of(values, columns, "", "float16")
        write_parquet(folder / part_name(number), table)


def measured(answer: Callable[[np.ndarray], Any], queries: np.ndarray) -> dict[str, Any]:
    """Answers and milliseconds of one query at a time, after one that does not count."""
    answer(queries[:1])
    times, found = [], []
    for query in queries:
        begun = time.perf_counter()
        found.append([int(row) for row in answer(query[None])])
        times.append(1000 * (time.perf_counter() - begun))
    times.sort()
    return {
        "found": found,
        "median": statistics.median(times),
        "p95": times[int(0.95 * len(times)) - 1],
        "memory": peak_memory(),
    }


def child(given: argparse.Namespace) -> dict[str, Any]:
    """What one engine does in a process of its own."""
    import macl
    from macl.runs.engines.exact import Exact
    from macl.runs.index import Index
    from macl.runs.stored import Stored

    folder = Path(given.keep)
    queries = vectors(given.queries, given.width, 10**6)
    if given.child == "numpy":
        begun = time.perf_counter()
        stored = np.concatenate([block for _, block in Stored.open(folder / "vectors").blocks()])
        stored /= np.linalg.norm(stored, axis=1, keepdims=True)
        seconds = time.perf_counter() - begun

        def brute(query: np.ndarray) -> Any:
            scores = stored @ query[0]
            best = np.argpartition(-scores, 10)[:10]
            return best[np.argsort(-scores[best])]

        return measured(brute, queries) | {"seconds": seconds}
    if given.child == "exact":
        exact = Exact(Stored.open(folder / "vectors"))
        return measured(lambda q: exact.nearest(q, 10)[1][0], queries[:20])
    engine, _, kind = given.child.partition(":")
    place = folder / given.child.replace(":", "-").replace(",", "-")
    if given.build:
        index = macl.index(folder / "vectors", place, engine=engine, kind=kind or None)
        assert index.built is not None
        peak = peak_memory()
        settings = {k: v for k, v in index.built.settings.items() if v}
        size = sum(file.stat().st_size for file in place.rglob("*") if file.is_file()) / 2**20
        return {
            "seconds": index.built.build_seconds,
            "peak": peak,
            "disk": size,
            "settings": ", ".join(f"{key} {value}" for key, value in settings.items()),
        }
    opened = Index.open(place).engine
    return measured(lambda q: opened.nearest(q, 10)[1][0], queries)


def run(given: argparse.Namespace, engine: str, *more: str) -> dict[str, Any]:
    own = ["--vectors", given.vectors, "--width", given.width, "--queries", given.queries]
    command = [sys.executable, __file__, *map(str, own), "--keep", given.keep]
    done = subprocess.run([*command, "--child", engine, *more], stdout=subprocess.PIPE, check=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--vectors", type=int, default=1_000_000)
    parser.add_argument("--width", type=int, default=384)
    parser.add_argument("--queries", type=int, default=200)
    parser.add_argument("--engines", default="numpy,exact,faiss,lancedb")
    parser.add_argument("--keep", help="a folder for vectors and indexes; else a temporary one")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--build", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        print(json.dumps(child(given)))
        return
    with tempfile.TemporaryDirectory() as scratch:
        given.keep = given.keep or scratch
        place = Path(given.keep) / "vectors"
        if not place.is_dir():
            write(place, given.vectors, given.width)
        stored = sum(file.stat().st_size for file in place.iterdir()) / 2**20
        truth, rows = None, []
        for engine in given.engines.split(","):
            built: dict[str, Any] = {}
            if engine not in ("numpy", "exact"):
                built = run(given, engine, "--build")
            found = run(given, engine)
            truth = truth or found["found"]
            shares = [
                len({*own} & {*true}) / 10 for own, true in zip(found["found"], truth, strict=False)
            ]
            seconds = built.get("seconds", found.get("seconds"))
            rows.append(
                [
                    engine,
                    built.get("settings", ""),
                    "" if seconds is None else f"{seconds:.0f}",
                    f"{statistics.mean(shares):.3f}",
                    f"{found['median']:.1f}",
                    f"{found['p95']:.1f}",
                    f"{found['memory']:,.0f}",
                    f"{built['peak']:,.0f}" if built else "",
                    f"{built['disk']:,.0f}" if built else "",
                ]
            )
            print(rows[-1], file=sys.stderr)
    head = ["engine", "settings", "build s", "recall@10", "median ms", "95% ms", "search MB"]
    text = table([*head, "build MB", "disk MB"], rows)
    note = (
        f"{given.vectors:,} vectors of {given.width} numbers, {stored:,.0f} MB as float16 parts; "
        f"{given.queries} queries, one at a time (20 for exact). {machine()}."
    )
    replace_section("search", f"{text}\n\n{note}")


if __name__ == "__main__":
    main()
