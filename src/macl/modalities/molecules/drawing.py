"""Molecules as structural formulas, in SVG."""

from __future__ import annotations

import re
from collections.abc import Sequence

from rdkit import Chem, rdBase
from rdkit.Chem.Draw import rdMolDraw2D

from macl.core.progress import track

MOLECULE_SIZE = (220, 160)


def molecule_drawings(smiles: Sequence[str]) -> list[str | None]:
    """Structural formulas by rdkit; None where it cannot draw one."""
    drawings: list[str | None] = []
    with rdBase.BlockLogs():
        for text in track(smiles, "drawing molecules", len(smiles)):
            molecule: Chem.Mol | None = Chem.MolFromSmiles(text)
            if not molecule:
                drawings.append(None)
                continue
            # Letters as text, not as outlines: a tenth of the size.
            drawer = rdMolDraw2D.MolDraw2DSVG(*MOLECULE_SIZE, -1, -1, True)
            drawer.drawOptions().clearBackground = False  # type: ignore[assignment]
            rdMolDraw2D.PrepareAndDrawMolecule(drawer, molecule)
            drawer.FinishDrawing()
            drawings.append(_slim(drawer.GetDrawingText()))
    return drawings


def _slim(svg: str) -> str:
    """rdkit's SVG without its header, its atom numbers and what its styles repeat: a third."""
    svg = re.sub(r" class='[^']*'", "", svg[svg.index("<svg") :])
    svg = svg.replace("<svg", "<svg stroke-width='1.6'", 1)
    return re.sub(r"style='fill:none;[^']*stroke:(#\w+);[^']*'", r"fill='none' stroke='\1'", svg)
