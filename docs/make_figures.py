"""Draw the figures that are kept as files: python docs/make_figures.py

The numbers come from the library (docs/hooks/other_curves.py) and are written to figures/data.json
beside the pictures; tests/docs/test_figures.py computes them again and compares. The figures of the
method pages are drawn from the same functions when the site is built.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "hooks"))

from drawing import to_png
from other_curves import COMMITTED

FIGURES = Path(__file__).parent / "figures"


def main() -> None:
    """Write figures/NAME.png and the numbers of all of them."""
    numbers = {}
    for name, panels_of in COMMITTED.items():
        panels = panels_of()
        to_png(panels, FIGURES / f"{name}.png")
        numbers[name] = [panel.numbers() for panel in panels]
    (FIGURES / "data.json").write_text(json.dumps(numbers) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
