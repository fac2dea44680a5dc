"""The eight MoleculeNet sets of the paper's transfer table, from files named as PyG names them."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.molecules.data import MoleculeDataset, parse_table
from macl.modalities.molecules.sections import SetName
from macl.modalities.molecules.tables import column_names, read_columns, smiles_column

_IDENTIFIER = "mol_id"


class SetFile(NamedTuple):
    """Where a set lies, and which columns are its tasks."""

    file: str
    task: str | None = None
    """The only task's column; None: every column but the SMILES and the identifier."""


SETS: dict[SetName, SetFile] = {
    "BBBP": SetFile("BBBP.csv", "p_np"),
    "Tox21": SetFile("tox21.csv"),
    "ToxCast": SetFile("toxcast_data.csv"),
    "SIDER": SetFile("sider.csv"),
    "ClinTox": SetFile("clintox.csv"),
    "MUV": SetFile("muv.csv"),
    "HIV": SetFile("HIV.csv", "HIV_active"),
    "BACE": SetFile("bace.csv", "Class"),
}


def load_set(name: SetName, folder: Path, cache: Path | None = None) -> MoleculeDataset:
    """A MoleculeNet set with its `targets`, from `folder` or PyG's own layout below it."""
    path = _find(name, folder.expanduser())
    names = column_names(path)
    column = smiles_column(path, names, None)
    task = SETS[name].task
    tasks = [task] if task else [n for n in names if n not in (column, _IDENTIFIER)]
    dataset, kept = parse_table(read_columns(path, column, tasks), column, path, cache)
    dataset.targets = _targets(kept[tasks], path)
    return dataset


def _find(name: SetName, folder: Path) -> Path:
    file = SETS[name].file
    places = (folder, folder / name.lower() / "raw")
    for path in (place / f"{file}{end}" for place in places for end in ("", ".gz")):
        if path.is_file():
            return path
    raise UserError(f"{folder}: holds neither {file} nor {file}.gz, the set {name}.")


def _targets(table: pd.DataFrame, path: Path) -> Tensor:
    """(M, T) float32; everything but 0, 1 and a missing value is an error."""
    values = table.apply(pd.to_numeric, errors="coerce").to_numpy(np.float32, copy=True)
    wrong = np.where(np.isnan(values), table.notna(), ~np.isin(values, (0, 1)))
    if wrong.any():
        row, column = np.argwhere(wrong)[0]
        raise UserError(
            f"{path}: a label is 0, 1 or empty, not {table.iat[row, column]!r} "
            f"(row {table.index[row] + 1}, column {table.columns[column]!r})."
        )
    return torch.from_numpy(values)
