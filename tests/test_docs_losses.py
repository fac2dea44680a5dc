"""docs/losses.md tells the truth: its Python blocks run and its pictures are there."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest
import torch

PAGE = Path(__file__).parents[1] / "docs" / "losses.md"
TEXT = PAGE.read_text(encoding="utf-8")
BLOCKS = [
    (TEXT.count("\n", 0, match.start(1)), match[1])
    for match in re.finditer(r"^```python\n(.*?)^```$", TEXT, re.M | re.S)
]
# The first block is the others' preamble; `gradient` is defined once, in the second.
SHARED = BLOCKS[:2]


@pytest.mark.parametrize("block", BLOCKS, ids=lambda block: f"line{block[0]}")
def test_block_runs(block: tuple[int, str]) -> None:
    if "pytorch_metric_learning" in block[1] and not importlib.util.find_spec(
        "pytorch_metric_learning"
    ):
        pytest.skip("needs pytorch-metric-learning")
    namespace: dict[str, object] = {}
    with torch.random.fork_rng():
        for line, source in dict.fromkeys([*SHARED, block]):
            exec(compile("\n" * line + source, str(PAGE), "exec"), namespace)


def test_there_are_blocks_and_every_picture_exists() -> None:
    assert len(BLOCKS) > 5
    pictures = re.findall(r"!\[[^]]+]\(([^)]+)\)", TEXT)
    assert len(pictures) == 3
    for picture in pictures:
        assert (PAGE.parent / picture).read_bytes().startswith(b"\x89PNG")
