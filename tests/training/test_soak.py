"""The short form of tests/long/soak.py: a leak of a megabyte per step would show here too."""

from __future__ import annotations

import re

import pytest

from tiny import TINY, python

STEPS = 400  # some seconds on an idle machine
LIMIT = ("--minutes", "4", "--steps", str(STEPS), "--every", "0.2")


@pytest.mark.slow
def test_memory_does_not_grow_from_step_to_step() -> None:
    tiny = [each for each in TINY if not each.startswith("epochs")]
    done = python("long/soak.py", *LIMIT, *tiny)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = int(re.search(r"([\d,]+) steps", done.stdout)[1].replace(",", ""))  # type: ignore[index]
    slope = float(re.search(r"([+-][\d.]+) ± .* MB per hour", done.stdout)[1])  # type: ignore[index]
    hours = float(re.search(r"over ([\d.]+) hours", done.stdout)[1])  # type: ignore[index]
    grown = slope * hours
    assert steps > 30, done.stdout
    assert grown < min(50, steps), done.stdout
