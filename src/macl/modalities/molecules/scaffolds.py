"""The scaffold split: test molecules have cores that training never saw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rdkit import rdBase
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles

from macl.core.progress import track


class Split(NamedTuple):
    """The molecules to train on, to choose the epoch by, and to test on."""

    train: list[int]
    validation: list[int]
    test: list[int]


def scaffold(smiles: str) -> str:
    """The Bemis-Murcko scaffold, chirality and all; empty for a molecule without rings."""
    return str(MurckoScaffoldSmiles(smiles=smiles, includeChirality=True))


def scaffold_split(smiles: Sequence[str]) -> Split:
    """Deal whole scaffold sets out 8:1:1, without chance, as Hu et al. (2020) do.

    The largest sets come first, of equal ones that whose first molecule comes last. Each goes to
    training where it still fits into 80 %, else to validation where both together stay within 90 %,
    else to test.
    """
    sets: dict[str, list[int]] = {}
    with rdBase.BlockLogs():
        for index, text in enumerate(track(smiles, "Finding scaffolds", len(smiles))):
            sets.setdefault(scaffold(text), []).append(index)
    split = Split([], [], [])
    for members in sorted(sets.values(), key=lambda s: (len(s), s[0]), reverse=True):
        trained = len(split.train) + len(members)
        if 10 * trained <= 8 * len(smiles):
            split.train.extend(members)
        elif 10 * (trained + len(split.validation)) <= 9 * len(smiles):
            split.validation.extend(members)
        else:
            split.test.extend(members)
    return split
