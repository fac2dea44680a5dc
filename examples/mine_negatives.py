"""Hard negatives from an encoder, as a file that `macl train` and sentence-transformers read.

pip install 'macl[train,text]'
python examples/mine_negatives.py
"""

from __future__ import annotations

import csv
import pydoc_data.topics
import re
import tempfile
from pathlib import Path

import macl


def pairs(file: Path, count: int) -> Path:
    """Neighboring sentences of Python's help topics, as a table of two columns."""
    found = []
    for text in pydoc_data.topics.topics.values():
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(text.split()))
        kept = [sentence for sentence in sentences if 30 < len(sentence) < 150]
        found += list(zip(kept[::2], kept[1::2], strict=False))
    with file.open("w", newline="", encoding="utf-8") as out:
        csv.writer(out).writerows([("query", "answer"), *found[:count]])
    return file


def mine(folder: Path, count: int = 200) -> Path:
    """Train a small encoder, and write triplets that it finds hard."""
    small = {"encoder.width": 32, "encoder.layers": 1, "data.limit": 256}
    run = macl.train("topics", epochs=1, overrides=small, out=folder / "run", monitor_every=0)
    found = macl.mine(
        run,
        pairs(folder / "pairs.csv", count),
        k=2,
        margin=0.02,  # what is nearly as similar as the positive may be one
        overrides={"data.column": "query", "data.positive": "answer"},
    )
    return found.save(folder / "triplets.jsonl")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        triplets = mine(Path(place)).read_text(encoding="utf-8").splitlines()
        print(f"{len(triplets)} triplets, such as {triplets[0]}")
