"""How often the fuzz tests try: the same examples every time, or FUZZ_TIMES as many new ones."""

from __future__ import annotations

import os

from hypothesis import settings

TIMES = int(os.environ.get("FUZZ_TIMES", "1"))


def examples(count: int) -> settings:
    """`count` examples, or so many times more."""
    return settings(max_examples=count * TIMES, derandomize=TIMES == 1)
