"""Molecules parsed once and kept on disk as safetensors, which hold numbers and never code."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import pandas as pd
from rdkit import rdBase
from safetensors import SafetensorError
from safetensors.torch import load_file, save

from macl.core.errors import SkippedInputWarning, UserError
from macl.core.files import atomic_write
from macl.core.shown import to_cell
from macl.modalities.molecules.features import Molecules, parse_smiles, why_invalid
from macl.modalities.protocols import SkippedRow

VERSION = 1
"""Of the features; a new one makes every cached file be parsed again."""


def cached_molecules(
    column: pd.Series, source: Path, cache: Path
) -> tuple[Molecules, list[SkippedRow]]:
    """The valid molecules in a column, from the cache or parsed and put there; and the invalid.

    The cache is keyed by what is parsed, so a changed file, column or subset is parsed anew.
    Invalid SMILES are counted in a warning and listed in a file beside the cache.

    The index of the column has the positions of the SMILES in the file `source`, from 0.
    """
    smiles: list[str] = column.tolist()
    key = hashlib.sha256(json.dumps([VERSION, rdBase.rdkitVersion, *smiles]).encode())
    stored = cache / f"{key.hexdigest()}.safetensors"
    molecules = _load(stored, len(smiles))
    if molecules is None:
        molecules = parse_smiles(smiles)
        _keep(stored, save(vars(molecules)))
    invalid = sorted(set(range(len(smiles))) - set(molecules.rows.tolist()))
    if not invalid:
        return molecules, []
    skipped = [
        SkippedRow(int(column.index[i]) + 1, smiles[i], why_invalid(smiles[i])) for i in invalid
    ]
    report = stored.with_name(f"{source.name}.{stored.stem[:12]}.invalid.csv")
    cells = [(row, to_cell(name), to_cell(reason)) for row, name, reason in skipped]
    table = pd.DataFrame(cells, columns=["row", "smiles", "reason"])
    _keep(report, table.to_csv(index=False, lineterminator="\r\n").encode())
    problem = f"{source}: {len(invalid)} of {len(smiles)} SMILES cannot be read"
    if len(invalid) == len(smiles):
        raise UserError(f"{problem}; {report} lists the reasons. Is it the right column?")
    message = f"{problem} and are left out; they are listed in {report}."
    warnings.warn(message, SkippedInputWarning, stacklevel=3)
    return molecules, skipped


def _load(path: Path, count: int) -> Molecules | None:
    """What was kept for `count` SMILES; None where there is nothing, or something else."""
    try:
        molecules = Molecules(**load_file(path))
    except (OSError, SafetensorError, TypeError):
        return None
    return molecules if molecules.are_sound(count) else None


def _keep(path: Path, content: bytes) -> None:
    try:
        atomic_write(path, lambda file: file.write(content))
    except UserError as error:
        raise UserError(
            f"parsed molecules cannot be kept: {error} data.cache names another folder for them."
        ) from error
