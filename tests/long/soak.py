"""A long bounded run with checkpoints: do memory and step time stay flat?

    python tests/long/soak.py [--minutes 60] [--steps N] [--every 5] [--picture FILE.png]
                              [KEY=VALUE …]

Trains the digits recipe without end in a process of its own, looks at it from outside every few
seconds (resident memory, and the step of the last row of metrics.csv), stops it with SIGTERM, and
prints the slopes of both over time with their standard errors, the first tenth left out.
"""

from __future__ import annotations

import argparse
import itertools
import math
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

from scipy.stats import linregress

SCRIPT = Path(__file__).parents[1] / "macl_script.py"
RECIPE = ["epochs=1000000", "save_every=50", "monitor_every=20"]


class Look(NamedTuple):
    """What was seen at one moment."""

    seconds: float
    megabytes: float
    step: int


def resident(process: int) -> float:
    """Megabytes of resident memory."""
    lines = Path(f"/proc/{process}/status").read_text().splitlines()
    return next(float(line.split()[1]) / 1024 for line in lines if line.startswith("VmRSS"))


def last_step(metrics: Path) -> int:
    """The step of the last whole row; 0 before there is one."""
    if not metrics.is_file():
        return 0
    with metrics.open("rb") as file:
        file.seek(max(0, metrics.stat().st_size - 4096))
        rows = file.read().split(b"\n")[1:-1]
    return int(rows[-1].split(b",")[0]) if rows else 0


def watch(
    process: subprocess.Popen[bytes], metrics: Path, minutes: float, steps: float, every: float
) -> list[Look]:
    """Look every few seconds, from the first logged step on."""
    looks: list[Look] = []
    started = time.monotonic()
    while time.monotonic() - started < 60 * minutes and not (looks and looks[-1].step >= steps):
        time.sleep(every)
        if process.poll() is not None:
            sys.exit(f"the run ended by itself with code {process.returncode}")
        step = last_step(metrics)
        if step:
            looks.append(Look(time.monotonic() - started, resident(process.pid), step))
    return looks


def slope(hours: list[float], values: list[float], unit: str) -> str:
    """A value over time in words."""
    fit = linregress(hours, values)
    level = sum(values) / len(values)
    sigmas = abs(fit.slope) / fit.stderr if fit.stderr else 0.0
    return (
        f"{level:.2f} {unit} on average, {fit.slope:+.3f} ± {fit.stderr:.3f} {unit} per hour "
        f"({sigmas:.1f} standard errors)"
    )


def draw(file: Path, minutes: list[float], memory: list[float], steps: list[float]) -> None:
    """Both over time, from zero, so that flat looks flat."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(2, sharex=True, figsize=(8, 4.5), layout="constrained")
    axes[0].plot(minutes, memory)
    axes[0].set(ylabel="resident MB", ylim=(0, 1.2 * max(memory)))
    axes[1].plot(minutes[1:], steps, linewidth=0.7)
    axes[1].set(ylabel="ms a step", ylim=(0, 1.2 * max(steps)), xlabel="minutes")
    figure.savefig(file, dpi=120)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--steps", type=float, default=math.inf, help="the end, if it comes first")
    parser.add_argument("--every", type=float, default=5)
    parser.add_argument("--picture", type=Path, metavar="FILE.png")
    parser.add_argument("overrides", nargs="*", metavar="KEY=VALUE")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder) / "run"
        command = [sys.executable, str(SCRIPT), "train", "digits", *RECIPE, *given.overrides]
        process = subprocess.Popen([*command, "--out", str(run)])
        looks = watch(process, run / "metrics.csv", given.minutes, given.steps, given.every)
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=120)
        if code != 130:
            sys.exit(f"the run answered SIGTERM with code {code} and not with a checkpoint (130)")
    looks = looks[len(looks) // 10 :]
    hours = [look.seconds / 3600 for look in looks]
    pairs = [(a, b) for a, b in itertools.pairwise(looks) if b.step > a.step]
    if len(pairs) < 3:
        sys.exit("too short to say anything: give it more --minutes")
    steps = [1000 * (b.seconds - a.seconds) / (b.step - a.step) for a, b in pairs]
    print(f"{looks[-1].step:,} steps, {len(looks)} looks over {hours[-1] - hours[0]:.4f} hours")
    print("resident memory:", slope(hours, [look.megabytes for look in looks], "MB"))
    print("time of a step: ", slope([b.seconds / 3600 for _, b in pairs], steps, "ms"))
    if given.picture:
        seen = [pairs[0][0], *(b for _, b in pairs)]
        draw(given.picture, [s.seconds / 60 for s in seen], [s.megabytes for s in seen], steps)


if __name__ == "__main__":
    main()
