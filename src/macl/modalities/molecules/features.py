"""SMILES to graphs of integers: atom type and chirality, bond type and direction (Hu et al., 2020).

An atom's type is its atomic number: 0 for the dummy atom `*`, 1 to 118 for the elements, then the
mask. A bond is two edges, one each way, with the same features.
"""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from rdkit import Chem, rdBase
from torch import Tensor

from macl.core.limits import limit
from macl.core.progress import track

MASK_ATOM = 119
"""Atom type of a masked atom; no molecule has it."""
ATOM_TYPES = 120

NO_CHIRALITY = 0
CHIRALITY = {
    Chem.ChiralType.CHI_UNSPECIFIED: NO_CHIRALITY,
    Chem.ChiralType.CHI_TETRAHEDRAL_CW: 1,
    Chem.ChiralType.CHI_TETRAHEDRAL_CCW: 2,
}
OTHER_CHIRALITY = 3
CHIRALITIES = 4

BOND_TYPE = {
    Chem.BondType.SINGLE: 0,
    Chem.BondType.DOUBLE: 1,
    Chem.BondType.TRIPLE: 2,
    Chem.BondType.AROMATIC: 3,
}
SELF_LOOP = 4
"""Bond type of an atom's edge to itself, which the encoder adds."""
OTHER_BOND = 5
"""Dative bonds and the like."""
BOND_TYPES = 6

BOND_DIRECTION = {Chem.BondDir.ENDUPRIGHT: 1, Chem.BondDir.ENDDOWNRIGHT: 2}
NO_DIRECTION = 0
BOND_DIRECTIONS = 3


@dataclass(frozen=True)
class Molecules:
    """M molecules with N atoms and E directed edges as flat arrays, in the smallest types."""

    x: Tensor
    """(N, 2) uint8: atom type, chirality."""
    edge_index: Tensor
    """(2, E) int32, between rows of `x`."""
    edge_attr: Tensor
    """(E, 2) uint8: bond type, direction."""
    ptr: Tensor
    """(M+1,) int64: molecule m owns the atoms ptr[m] … ptr[m+1]-1."""
    rows: Tensor
    """(M,) int64: which of the SMILES given each molecule comes from; the others are invalid."""

    def are_sound(self, count: int) -> bool:
        """Whether arrays from a file fit each other and `count` SMILES: no index goes astray."""
        x, ends, bonds, ptr, rows = vars(self).values()
        layout = [(torch.uint8, 2), (torch.int32, 2), (torch.uint8, 2), (torch.int64, 1)]
        if [(a.dtype, a.ndim) for a in (x, ends, bonds, ptr)] != layout:
            return False
        shapes = x.size(1), ends.size(0), *bonds.shape, len(ptr)
        return (
            rows.dtype == torch.int64
            and shapes == (2, 2, ends.size(1), 2, len(rows) + 1)
            and ptr[[0, -1]].tolist() == [0, len(x)]
            and bool((ptr.diff() > 0).all() and (rows.diff() > 0).all())
            and _within(rows, count)
            and _within(ends, len(x))
            and all(map(_within, x.T, (ATOM_TYPES, CHIRALITIES)))
            and all(map(_within, bonds.T, (BOND_TYPES, BOND_DIRECTIONS)))
        )


def parse_smiles(smiles: Sequence[str]) -> Molecules:
    """The valid molecules among `smiles`, in order."""
    # Arrays of machine integers: lists of Python's would take gigabytes for millions of molecules.
    atoms, bonds, ends = array("B"), array("B"), array("i")
    starts, rows = array("q", [0]), array("q")
    longest = limit("smiles")
    with rdBase.BlockLogs():
        for row, text in enumerate(track(smiles, "Reading molecules", len(smiles))):
            molecule = Chem.MolFromSmiles(text) if len(text) <= longest else None
            if molecule is None or molecule.GetNumAtoms() == 0:
                continue
            for atom in molecule.GetAtoms():
                chirality = CHIRALITY.get(atom.GetChiralTag(), OTHER_CHIRALITY)
                atoms.extend((atom.GetAtomicNum(), chirality))
            start = starts[-1]
            for bond in molecule.GetBonds():
                begin, end = start + bond.GetBeginAtomIdx(), start + bond.GetEndAtomIdx()
                ends.extend((begin, end, end, begin))
                kind = BOND_TYPE.get(bond.GetBondType(), OTHER_BOND)
                direction = BOND_DIRECTION.get(bond.GetBondDir(), NO_DIRECTION)
                bonds.extend((kind, direction, kind, direction))
            starts.append(start + molecule.GetNumAtoms())
            rows.append(row)
    return Molecules(
        x=_tensor(atoms).view(-1, 2),
        edge_index=_tensor(ends).view(-1, 2).T.contiguous(),
        edge_attr=_tensor(bonds).view(-1, 2),
        ptr=_tensor(starts),
        rows=_tensor(rows),
    )


def why_invalid(smiles: str) -> str:
    """rdkit's message about an invalid SMILES string."""
    if not smiles.strip():
        return "empty"
    if len(smiles) > limit("smiles"):
        return f"longer than {limit('smiles'):,} characters (MACL_LIMIT_SMILES)"
    with rdBase.BlockLogs():
        molecule: Chem.Mol | None = Chem.MolFromSmiles(smiles, sanitize=False)
        if not molecule:
            return "not SMILES syntax"
        problems = Chem.DetectChemistryProblems(molecule)
    return "; ".join(problem.Message() for problem in problems) or "not a molecule"


def _within(values: Tensor, bound: int) -> bool:
    return bool(((values >= 0) & (values < bound)).all())


def _tensor(values: array[int]) -> Tensor:
    return torch.from_numpy(np.array(values))
