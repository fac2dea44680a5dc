"""The short form of tests/long/soak.py: a leak of a megabyte per step would show here too."""

from __future__ import annotations

import re

import pytest

from tiny import TINY, python

MINUTES = 1.0  # of which importing takes its share on a busy machine


@pytest.mark.slow
def test_memory_does_not_grow_from_step_to_step() -> None:
    tiny = [each for each in TINY if not each.startswith("epochs")]
    done = python("long/soak.py", "--minutes", str(MINUTES), "--every", "0.5", *tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = int(re.search(r"([\d,]+) steps", done.stdout)[1].replace(",", ""))  # type: ignore[index]
    slope = float(re.search(r"([+-][\d.]+) ± .* MB per hour", done.stdout)[1])  # type: ignore[index]
    grown = slope * MINUTES / 60
    assert steps > 30, done.stdout
    assert grown < min(50, steps), done.stdout
