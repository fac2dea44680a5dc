"""Featurisation against values known from chemistry."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from macl.modalities.molecules.features import (
    ATOM_TYPES,
    MASK_ATOM,
    OTHER_BOND,
    OTHER_CHIRALITY,
    SELF_LOOP,
    Molecules,
    parse_smiles,
    why_invalid,
)

SMILES = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C", "N[C@@H](C)C(=O)O", "F/C=C/F", "*C", "C#N"]


def bonds_of(smiles: str) -> list[tuple[int, int, int, int]]:
    """(begin, end, type, direction) of every second edge."""
    molecule = parse_smiles([smiles])
    rows = torch.cat([molecule.edge_index.T, molecule.edge_attr.int()], dim=1)
    return [tuple(row) for row in rows[::2].tolist()]


def test_atoms_are_atomic_numbers() -> None:
    assert parse_smiles(["CN(O)Cl"]).x[:, 0].tolist() == [6, 7, 8, 17]
    assert parse_smiles(["[Og]"]).x[0, 0] == 118


def test_the_dummy_atom_has_a_type_of_its_own() -> None:
    assert parse_smiles(["*C"]).x.tolist() == [[0, 0], [6, 0]]


def test_no_atom_looks_masked() -> None:
    assert MASK_ATOM == ATOM_TYPES - 1 == 118 + 1


def test_mirror_images_differ_in_chirality_alone() -> None:
    left, right = parse_smiles(["N[C@@H](C)C(=O)O"]), parse_smiles(["N[C@H](C)C(=O)O"])
    assert left.x[:, 1].tolist() == [0, 1, 0, 0, 0, 0]  # @@ is clockwise
    assert right.x[:, 1].tolist() == [0, 2, 0, 0, 0, 0]
    assert torch.equal(left.x[:, 0], right.x[:, 0])
    assert torch.equal(left.edge_attr, right.edge_attr)


def test_square_planar_centers_are_neither() -> None:
    assert parse_smiles(["C[Pt@SP1](F)(O)Cl"]).x[1].tolist() == [78, OTHER_CHIRALITY]


@pytest.mark.parametrize(
    ("smiles", "kind"),
    [("CC", 0), ("C=C", 1), ("C#C", 2), ("c1ccccc1", 3), ("[NH3]->[Cu]", OTHER_BOND)],
)
def test_bond_types(smiles: str, kind: int) -> None:
    assert {bond[2] for bond in bonds_of(smiles)} == {kind}
    assert kind != SELF_LOOP


def test_bond_directions_tell_trans_from_cis() -> None:
    assert bonds_of("F/C=C/F") == [(0, 1, 0, 1), (1, 2, 1, 0), (2, 3, 0, 1)]
    assert bonds_of("F/C=C\\F") == [(0, 1, 0, 1), (1, 2, 1, 0), (2, 3, 0, 2)]


def test_a_bond_is_two_opposite_edges_with_equal_features() -> None:
    molecules = parse_smiles(SMILES)
    forth, back = molecules.edge_index[:, ::2], molecules.edge_index[:, 1::2]
    assert torch.equal(forth, back.flip(0))
    assert torch.equal(molecules.edge_attr[::2], molecules.edge_attr[1::2])


@given(st.lists(st.sampled_from([*SMILES, "", "no molecule", "C(C)(C)(C)(C)C"]), max_size=6))
def test_many_at_once_equal_one_by_one(smiles: list[str]) -> None:
    together = parse_smiles(smiles)
    alone: list[tuple[int, Molecules]] = [(i, parse_smiles([s])) for i, s in enumerate(smiles)]
    valid = [(i, m) for i, m in alone if len(m.rows)]
    assert together.rows.tolist() == [i for i, _ in valid]
    assert together.ptr.tolist() == [
        sum(len(m.x) for _, m in valid[:n]) for n in range(len(valid) + 1)
    ]
    for number, (_, single) in enumerate(valid):
        start, stop = together.ptr[number : number + 2].tolist()
        mine = (together.edge_index[0] >= start) & (together.edge_index[0] < stop)
        assert torch.equal(together.x[start:stop], single.x)
        assert torch.equal(together.edge_index[:, mine] - start, single.edge_index)
        assert torch.equal(together.edge_attr[mine], single.edge_attr)


def test_a_molecule_without_bonds() -> None:
    methane = parse_smiles(["C"])
    assert methane.edge_index.shape == (2, 0)
    assert methane.edge_attr.shape == (0, 2)


def test_reasons_for_invalid_smiles() -> None:
    assert why_invalid("") == "empty"
    assert "syntax" in why_invalid("FAIL(")
    assert "valence" in why_invalid("C(C)(C)(C)(C)C")
