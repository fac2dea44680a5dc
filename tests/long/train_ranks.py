"""`macl train --devices 2` and `4` end with the loss curve of one process: all methods, float64.

    python tests/long/train_ranks.py [--worlds 2,4]

The engine from end to end, where ranks.py has the bare step: the digits recipe with a network
without batch normalization and views that are the whole image, since each process draws its own.
Prints the largest difference of the metrics' rows and of every weight and buffer, relative to the
larger of 1 and the value. Fails above 1e-6: metrics.csv holds eight digits.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[1]), str(Path(__file__).parent)]

from ranks import difference  # noqa: E402

from macl.runs import Run  # noqa: E402
from tiny import METHODS, TINY, python, state_of  # noqa: E402

TOLERANCE = 1e-6
PLAIN = (
    *TINY,
    "precision=64",
    "encoder={name: fragile:plain, allow_import: true}",
    "method.projector={widths: [same, 8], norm: none}",
    "views={preset: digits, crop_scale: [1, 1], crop_ratio: [1, 1], jitter_p: 0, flip: 0}",
)
UNNORMED = {"nnclr": ("method.predictor.norm=none",)}


def trained(folder: Path, method: str, devices: int, chunk: int | None) -> Run:
    settings = [*PLAIN, *METHODS[method], *UNNORMED.get(method, ())]
    settings += [f"chunk_size={chunk}"] if chunk else []
    command = ["train", "digits", *settings, "--out", folder, "--devices", str(devices)]
    done = python("macl_script.py", *command, environment={"GLOO_SOCKET_IFNAME": "lo"})
    if done.returncode:
        sys.exit(done.stderr)
    return Run(folder)


def curve(one: Run, two: Run) -> float:
    """Of loss, alignment, temperature and the rest."""
    rows = list(zip(one.metrics(), two.metrics(), strict=True))
    assert rows
    return max(
        abs(a[key] - b[key]) / max(1.0, abs(b[key])) for a, b in rows for key in a.keys() | b.keys()
    )


def weights(one: Run, two: Run) -> float:
    ours, theirs = state_of(one)["state_dict"], state_of(two)["state_dict"]
    assert ours.keys() == theirs.keys()
    return max(difference(ours[name].double(), theirs[name].double()) for name in ours)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--worlds", default="2,4")
    worlds = [int(world) for world in parser.parse_args().worlds.split(",")]
    print("| processes | method | chunks | curve | weights, buffers, queue |")
    print("|---|---|---|---|---|")
    worst = 0.0
    with tempfile.TemporaryDirectory() as place:
        for method in METHODS:
            alone = trained(Path(place) / method, method, 1, None)
            for world in worlds:
                for chunk in (None, 3):
                    run = trained(Path(place) / f"{method}-{world}-{chunk}", method, world, chunk)
                    found = curve(run, alone), weights(run, alone)
                    shown = " | ".join(f"{value:.1e}" for value in found)
                    print(f"| {world} | {method} | {chunk or 'none'} | {shown} |", flush=True)
                    worst = max(worst, *found)
    if worst > TOLERANCE:
        sys.exit(f"differs by {worst:.1e}, more than {TOLERANCE:.0e}")


if __name__ == "__main__":
    main()
