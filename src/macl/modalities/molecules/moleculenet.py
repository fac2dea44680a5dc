"""The eight MoleculeNet sets of the paper's transfer table, from files named as PyG names them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import torch

from macl.core.errors import UserError
from macl.modalities.molecules.data import MoleculeDataset, parse_table
from macl.modalities.molecules.sections import SetName
from macl.modalities.molecules.tables import read_columns

_IDENTIFIER = "mol_id"

FILES: dict[SetName, str] = {
    "BBBP": "BBBP.csv",
    "Tox21": "tox21.csv",
    "ToxCast": "toxcast_data.csv",
    "SIDER": "sider.csv",
    "ClinTox": "clintox.csv",
    "MUV": "muv.csv",
    "HIV": "HIV.csv",
    "BACE": "bace.csv",
}
ONLY_TASK = {"BBBP": "p_np", "HIV": "HIV_active", "BACE": "Class"}
"""The column of a set's only task; of others, every column but the SMILES and the identifier is."""


def load_set(name: SetName, folder: Path, cache: Path | None = None) -> MoleculeDataset:
    """A MoleculeNet set with its `targets`, from `folder` or PyG's own layout below it."""
    file = FILES[name]
    places = (folder, folder / name.lower() / "raw")
    paths = [place / f"{file}{end}" for place in places for end in ("", ".gz")]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        raise UserError(f"{folder}: holds neither {file} nor {file}.gz, the set {name}.")
    table = read_columns(path, others=[ONLY_TASK[name]] if name in ONLY_TASK else None)
    dataset, kept = parse_table(table.drop(columns=_IDENTIFIER, errors="ignore"), path, cache)
    table = kept.iloc[:, 1:]
    values = table.apply(pd.to_numeric, errors="coerce").to_numpy(np.float32, copy=True)
    wrong = np.where(np.isnan(values), table.notna(), ~np.isin(values, (0, 1)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(
            f"{path}: a label is 0, 1 or empty, not {table.iat[row, column]!r} "
            f"(row {table.index[row] + 1}, column {table.columns[column]!r})."
        )
    dataset.targets = torch.from_numpy(values)
    return dataset
