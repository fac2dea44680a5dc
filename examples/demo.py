"""`make demo`: an encoder trained on handwritten digits without labels, judged before and after.

Everything is embedded: nothing is downloaded. Run it again and the trained encoder is used again.
"""

from __future__ import annotations

import sys
from pathlib import Path

import macl
from macl.core.signals import Interrupted

EXPLAINED = {
    "temperature": ("τ", "how strongly hard negatives count; MACL sets it from the alignment"),
    "alignment": ("A", "mean cosine of two views of one image; 1: the encoder ignores the view"),
    "gradient_scale": (
        "W̄",
        "share of the gradient that InfoNCE would keep; MACL restores the rest",
    ),
}


def demo(folder: Path, **settings: object) -> dict[str, tuple[float, float]]:
    """Train, print the scores before and after, write the report; returns those scores."""
    runs = {}
    for name, epochs in (("untrained", {"epochs": 0}), ("trained", {})):
        there = (folder / name / "recipe.yaml").is_file()
        print(f"{'using' if there else 'making'} the {name} encoder in {folder / name} …")
        runs[name] = macl.train(
            "digits", out=folder / name, resume=there, overrides={**settings, **epochs}
        )
    scores = {
        name: {(s.protocol, s.metric): s for s in run.evaluate(protocols=["knn", "linear"])}
        for name, run in runs.items()
    }
    before, after = scores["untrained"], scores["trained"]
    found = {}
    print(f"\n{'':24}{'before':>8}{'after':>8}   accuracy in percent")
    for key, title in (
        (("knn", "top1"), "nearest neighbors"),
        (("linear", "top1"), "linear probe"),
    ):
        found[key[0]] = (before[key].value, after[key].value)
        print(f"{title:24}{before[key].value:8.1f}{after[key].value:8.1f}")
    details = after["knn", "top1"].details
    print(
        f"\nThe encoder was trained on {details['n_train']:,} images without any label. "
        f"{details['n_train']:,} labels were used to judge it, on {details['n_test']:,} images "
        "that it had not seen."
    )
    last = runs["trained"].metrics()[-1]
    for column, (symbol, meaning) in EXPLAINED.items():
        if column in last:
            print(f"  {symbol} = {last[column]:.2f}  {meaning}")
    page = runs["trained"].report(folder / "report.html")[0]
    print(f"\nreport: {page.resolve()} (open it in a browser)")
    print("next:   macl compare digits --vary loss=nt-xent,dcl,macl --seeds 3   # which loss?")
    print("        macl train imagenette-small --data FOLDER_OF_IMAGES          # your own data")
    return found


if __name__ == "__main__":
    try:
        demo(Path(sys.argv[1] if len(sys.argv) > 1 else "runs/demo"))
    except Interrupted:
        sys.exit("stopped; the same command continues")
