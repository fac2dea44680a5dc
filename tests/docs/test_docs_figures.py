"""The figures show what the library computes today."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
import torch
from docs_pages import DOCS
from PIL import Image

from drawing import digest, to_html
from other_curves import COMMITTED, FIGURES
from panels import GRID, NEGATIVES

DATA = json.loads((DOCS / "figures" / "data.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", COMMITTED)
def test_a_stored_figure_is_current(name: str) -> None:
    """`python docs/make_figures.py` makes it again."""
    computed = [panel.numbers() for panel in COMMITTED[name]()]
    assert len(computed) == len(DATA[name])
    for new, old in zip(computed, DATA[name], strict=True):
        assert new.keys() == old.keys()
        for label in new:
            for axis in ("x", "y"):
                np.testing.assert_allclose(new[label][axis], old[label][axis], rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", COMMITTED)
def test_a_picture_was_drawn_from_the_stored_numbers(name: str) -> None:
    assert Image.open(DOCS / "figures" / f"{name}.png").text["Data"] == digest(DATA[name])  # type: ignore[attr-defined]


@pytest.mark.docs
@pytest.mark.parametrize("name", FIGURES)
def test_a_figure_of_a_method_has_finite_lines(name: str) -> None:
    panels = FIGURES[name]()
    assert len(panels) >= 2
    for panel in panels:
        assert panel.lines
        for line in panel.lines:
            assert len(line.x) == len(line.y) > 1
            assert all(map(math.isfinite, (*line.x, *line.y)))


def curve(name: str, panel: int, label: str) -> torch.Tensor:
    (found,) = [line for line in FIGURES[name]()[panel].lines if line.label == label]
    return torch.tensor(found.y, dtype=torch.float64)


def test_the_curves_are_those_of_the_formulas() -> None:
    """NT-Xent, DCL and Dual at τ = 0.1 against the formulas of their pages."""
    tau = 0.1
    x = torch.logsumexp(NEGATIVES / tau, 0) - GRID / tau
    x_beta = torch.logsumexp(NEGATIVES / (10 * tau), 0) - GRID / (10 * tau)
    close = torch.testing.assert_close
    close(curve("dcl", 0, "NT-Xent"), torch.nn.functional.softplus(x))
    close(curve("dcl", 1, "NT-Xent"), torch.sigmoid(x))
    close(curve("dcl", 0, "DCL"), x)
    close(curve("dcl", 1, "DCL"), torch.ones_like(x))
    close(curve("dual", 1, "Dual"), torch.sigmoid(x_beta))
    close(curve("macl", 2, "α = 0.5, A₀ = 0"), 0.1 * (1 + 0.5 * GRID))


def test_a_figure_follows_the_colors_of_the_page() -> None:
    drawn = to_html(FIGURES["dcl"](), 'a "text"')
    assert drawn.count("<svg") == 2
    assert "currentColor" in drawn
    assert "#010203" not in drawn
    assert 'aria-label="a &quot;text&quot;"' in drawn
    assert "\n" not in drawn
