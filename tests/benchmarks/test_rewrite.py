"""The comparison with version 0.2: workers that take turns, and the section that they fill."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

import rewrite


class Counting(rewrite.Worker):
    """Answers 1, 2, 3, … and notes the order."""

    def __init__(self, name: str, order: list[str]) -> None:
        self.name, self.order, self.count = name, order, 0

    def ask(self, **request: object) -> dict[str, object]:
        self.order.append(self.name)
        self.count += 1
        return {"seconds": self.count}


def test_workers_take_turns_and_the_median_counts() -> None:
    order: list[str] = []
    workers = {name: (Counting(name, order), {}) for name in ("old", "new")}
    assert rewrite.in_turns(workers, 3, "seconds") == {"old": 2, "new": 2}
    assert order == ["old", "new"] * 3


@pytest.mark.parametrize("form", rewrite.FORMS)
def test_all_contenders_compute_the_same_gradient(
    form: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gradients = []
    for kind in ("bare", "textbook", *(("method",) if form == "both" else ())):
        z = rewrite.views(5)
        with monkeypatch.context() as patch:
            patch.setattr(rewrite, "views", lambda n, z=z: z)
            rewrite.STEPS[kind](form, 5)()
        gradients.append(torch.stack([x.grad for x in z]))
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0])


def test_a_section_takes_the_place_of_the_last_one() -> None:
    once = rewrite.written("# Page\n\ntext\n", rewrite.table("T", ["a", "b"], [["1", "2"]]))
    assert "### T\n\n| a | b |\n|---|---|\n| 1 | 2 |" in once
    twice = rewrite.written(once + "after\n", "new")
    assert "### T" not in twice
    assert twice.startswith("# Page\n\ntext\n")
    assert twice.endswith("after\n")
