"""The scaffold split on molecules whose scaffolds are known by hand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from macl.modalities.molecules.finetune import scaffold, scaffold_split
from macl.modalities.molecules.moleculenet import load_set

SHARED = Path(os.environ.get("MACL_SHARED_DATA", Path(__file__).parents[4] / "shared" / "data"))


def test_scaffolds_are_rings_and_what_links_them() -> None:
    assert scaffold("CCc1ccccc1") == "c1ccccc1"
    assert scaffold("CC(=O)c1ccc(Cc2ccncc2)cc1") == scaffold("c1ccc(Cc2ccncc2)cc1")
    assert scaffold("CCO") == scaffold("CC(C)C") == ""


def test_scaffolds_keep_chirality() -> None:
    left, right = "C1CC1[C@H](C)C1CCC1", "C1CC1[C@@H](C)C1CCC1"
    assert scaffold(left) == scaffold(right)  # the methyl group goes, and the center with it
    left, right = "C1CC[C@@H](C2CCNC2)C1", "C1CC[C@@H]([C@@H]2CCNC2)C1"
    assert scaffold(left) != scaffold(right)


def test_known_answer() -> None:
    benzene = ["Cc1ccccc1", "Oc1ccccc1", "Nc1ccccc1", "Fc1ccccc1"]  # 0, 2, 4, 6
    acyclic = ["CCO", "CCN", "CCC"]  # 1, 3, 5
    pairs = [
        "Cc1ccncc1",
        "Oc1ccncc1",
        "C1CCCCC1",
        "CC1CCCCC1",
    ]  # pyridines 7, 8; cyclohexanes 9, 10
    smiles = [*sum(zip(benzene, acyclic, strict=False), ()), benzene[3], *pairs, "C1CC1", "C1CCC1"]
    assert len(smiles) == 13  # 80 % are 10.4 molecules, 90 % are 11.7
    split = scaffold_split(smiles)
    # Sizes 4, 3, then 2 and 2 with the later first, then 1 and 1 likewise. After benzenes, acyclics
    # and cyclohexanes training holds 9; pyridines would make 11, which is too many for training and
    # just right for both. Cyclobutane is training's tenth; cyclopropane has only test to go to.
    assert split.train == [0, 2, 4, 6, 1, 3, 5, 9, 10, 12]
    assert split.validation == [7, 8]
    assert split.test == [11]


def test_sets_too_large_for_training_and_validation_go_to_test() -> None:
    split = scaffold_split(["CCO"] * 10)
    assert split == ([], [], list(range(10)))


@given(
    st.lists(
        st.sampled_from(["CCO", "CCN", "c1ccccc1", "Cc1ccccc1", "C1CC1", "c1ccncc1", "C1CCCO1"]),
        min_size=1,
        max_size=40,
    )
)
def test_every_molecule_has_one_part_and_no_scaffold_two(smiles: list[str]) -> None:
    split = scaffold_split(smiles)
    assert sorted([*split.train, *split.validation, *split.test]) == list(range(len(smiles)))
    cores = [{scaffold(smiles[i]) for i in part} for part in split]
    assert sum(map(len, cores)) == len(set.union(*cores))
    assert len(split.train) <= 0.8 * len(smiles)


def test_bbbp_splits_as_published(tmp_path: Path) -> None:
    folder = SHARED / "molnet"
    if not folder.is_dir():
        pytest.skip("the MoleculeNet files are not here; MACL_SHARED_DATA may name their folder")
    with pytest.warns(UserWarning, match="11 of 2050"):
        dataset = load_set("BBBP", folder, tmp_path)
    assert [len(part) for part in scaffold_split(dataset.names)] == [1631, 204, 204]
