"""The paper's TU table beside finished comparisons, with a paired test across seeds and folds.

    for s in mutag proteins imdb-b dd nci1 rdt-b; do
        macl compare graphcl-$s --data TU --vary loss=dcl,macl --seeds 5 --out FOLDER/$s
    done
    python benchmarks/tu_table.py FOLDER

Both losses meet the same folds at the same seed, so their 5 × 10 accuracies come in pairs. Folds
share training graphs, which makes their differences dependent; the variance is corrected for that
as in Nadeau and Bengio (2003): Var·(1/J + n_test/n_train) for J pairs.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path

import numpy as np
from scipy import stats

from macl.experiments.statistics import mean_std
from macl.paper.tables import load

FOLDERS = {
    "NCI1": "nci1",
    "PROTEINS": "proteins",
    "DD": "dd",
    "MUTAG": "mutag",
    "IMDB-B": "imdb-b",
    "RDT-B": "rdt-b",
}


def folds(comparison: Path, loss: str) -> np.ndarray:
    """(seeds, folds) accuracies of the SVM."""
    runs = sorted(comparison.glob(f"runs/*{loss}_seed-*/results.json"))
    found = [json.loads(run.read_text())["scores"] for run in runs]
    return np.array(
        [[*score["details"]["folds"]] for s in found for score in s if score["protocol"] == "svm"]
    )


def corrected(differences: np.ndarray) -> tuple[float, float, float]:
    """Mean difference, half of its 95% interval, and p, over all seeds and folds."""
    count, per_seed = differences.size, differences.shape[1]
    variance = differences.var(ddof=1) * (1 / count + 1 / (per_seed - 1))
    error, mean = math.sqrt(variance), float(differences.mean())
    half = float(stats.t.ppf(0.975, count - 1)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, count - 1)) if error else 1.0
    return mean, half, p


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    paper = load("tu-classification").numbers["accuracy"]
    print("| set | GraphCL, paper | GraphCL, ours | MACL, paper | MACL, ours | MACL − GraphCL |")
    print("|---|---|---|---|---|---|")
    for name, sub in FOLDERS.items():
        if not (folder / sub / "table.md").is_file():
            continue
        dcl, macl = (folds(folder / sub, loss) for loss in ("dcl", "macl"))
        ours = [
            "{:.2f} ± {:.2f}".format(*mean_std(values.mean(1).tolist())) for values in (dcl, macl)
        ]
        mean, half, p = corrected(macl - dcl)
        print(
            f"| {name} | {paper['GraphCL'][name]} | {ours[0]} | {paper['w/ MACL'][name]} | "
            f"{ours[1]} | {mean:+.2f} ± {half:.2f}, p = {p:.2f} |"
        )


if __name__ == "__main__":
    main()
