"""Molecule data sets: any file of SMILES, and the embedded ChEMBL set."""

from __future__ import annotations

import sys
from pathlib import Path

import pandas as pd
import torch
from rdkit import RDConfig
from torch import Tensor
from torch_geometric.data import Batch

from macl.core.errors import UserError
from macl.core.files import cache_folder
from macl.modalities.graphs.batching import graph_batch
from macl.modalities.graphs.dataset import GraphDataset
from macl.modalities.molecules.cache import cached_molecules
from macl.modalities.molecules.features import Molecules, parse_smiles
from macl.modalities.molecules.sections import MoleculeDataConfig
from macl.modalities.molecules.tables import first_words, read_columns
from macl.modalities.splits import random_subset

CHEMBL = "CHEMBL2321810"


class MoleculeDataset(GraphDataset):
    """Molecules in one flat batch, compact in memory; batches come out as int64.

    `collate` gives x (n, 2), edge_index (2, e) and edge_attr (e, 2): see `features`.
    """

    targets: Tensor
    """(M, T) float32 in {0, 1}, NaN where unknown: the tasks, of a set of MoleculeNet alone."""

    def __init__(self, smiles: list[str], molecules: Molecules) -> None:
        graphs = graph_batch(molecules.x, molecules.edge_index, molecules.ptr, molecules.edge_attr)
        super().__init__(graphs, smiles)

    def collate(self, samples: list[int]) -> Batch:
        """The molecules with these numbers, as one PyG batch of int64 features."""
        batch = super().collate(samples)
        batch.x, batch.edge_attr = batch.x.long(), batch.edge_attr.long()
        return batch


def load_molecules(config: MoleculeDataConfig, split: str = "train") -> MoleculeDataset:
    """The set that `config` names, whatever the split."""
    if config.path is not None:
        return _read(config.path, config, config.label)
    for key in ("column", "label"):
        if getattr(config, key) is not None:
            raise UserError(f"data.{key}: names a column of a file, and there is no data.path.")
    return chembl(config.limit)


def open_molecules(config: MoleculeDataConfig, path: Path) -> MoleculeDataset:
    """The molecules of a user's file, at most `config.limit`, without classes.

    The path "-" is the standard input, whose lines are a SMILES and perhaps a name.
    """
    if path == Path("-"):
        table = pd.DataFrame({"smiles": first_words(sys.stdin)}, dtype=str)
        return parse_table(table, Path("standard input"), config.cache, config.limit)[0]
    return _read(path, config, label=None)


def chembl(limit: int | None = None) -> MoleculeDataset:
    """The 1017 compounds of ChEMBL's set CHEMBL2321810, which rdkit carries for its Free-Wilson
    example, in two classes: activity below the median of the set, or not.
    """
    folder = Path(RDConfig.RDContribDir) / "FreeWilson" / "data"
    try:
        compounds = pd.read_csv(folder / f"{CHEMBL}.smi", sep=" ", names=["smiles", "Name"])
        activities = pd.read_csv(folder / f"{CHEMBL}_act.csv")
    except OSError as error:
        raise UserError(
            f"this rdkit came without its ChEMBL set ({error}). Set data.path to a file of SMILES, "
            "or install rdkit with pip."
        ) from error
    table = compounds.merge(activities, on="Name", validate="one_to_one")
    table["active"] = table["Act"] >= table["Act"].median()
    table = table.iloc[random_subset(len(table), limit).numpy()]
    molecules = parse_smiles(table["smiles"].tolist())
    kept = table.iloc[molecules.rows.numpy()]
    dataset = MoleculeDataset(kept["smiles"].tolist(), molecules)
    dataset.labels = torch.tensor(kept["active"].to_numpy()).long()
    return dataset


def _read(path: Path, config: MoleculeDataConfig, label: str | None) -> MoleculeDataset:
    table = read_columns(path, config.column, [] if label is None else [label])
    dataset, kept = parse_table(table, path, config.cache, config.limit)
    if label is not None:
        if missing := int(kept[label].isna().sum()):
            raise UserError(
                f"{path}: {missing} molecules have no value in column {label!r}. Choose a label "
                "that all have, or leave those rows out of the file."
            )
        dataset.labels = torch.from_numpy(pd.factorize(kept[label], sort=True)[0]).long()
    return dataset


def parse_table(
    table: pd.DataFrame, path: Path, cache: Path | None, limit: int | None = None
) -> tuple[MoleculeDataset, pd.DataFrame]:
    """The valid of at most `limit` molecules in the first column, and their rows of `path`."""
    if table.empty:
        raise UserError(f"{path}: holds no molecules.")
    table = table.iloc[random_subset(len(table), limit).numpy()]
    folder = cache or cache_folder("molecules")
    molecules, skipped = cached_molecules(table.iloc[:, 0], path, folder)
    kept = table.iloc[molecules.rows.numpy()]
    dataset = MoleculeDataset(kept.iloc[:, 0].tolist(), molecules)
    dataset.rows = [int(line) + 1 for line in kept.index]
    dataset.skipped_rows = skipped
    return dataset, kept
