"""Molecules parsed once and kept on disk as safetensors, which hold numbers and never code."""

from __future__ import annotations

import hashlib
import json
import warnings
from pathlib import Path

import pandas as pd
import torch
from rdkit import rdBase
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor

from macl.core.errors import SkippedInputWarning, UserError
from macl.core.files import atomic_write
from macl.core.shown import to_cell
from macl.modalities.molecules.features import (
    ATOM_TYPES,
    BOND_DIRECTIONS,
    BOND_TYPES,
    CHIRALITIES,
    Molecules,
    parse_smiles,
    why_invalid,
)
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
    return molecules if _is_sound(*vars(molecules).values(), count=count) else None


def _is_sound(
    x: Tensor, ends: Tensor, bonds: Tensor, ptr: Tensor, rows: Tensor, *, count: int
) -> bool:
    """Whether the arrays fit each other, so that no index can go astray later."""
    layout = [(torch.uint8, 2), (torch.int32, 2), (torch.uint8, 2), (torch.int64, 1)]
    if [(a.dtype, a.ndim) for a in (x, ends, bonds, ptr)] != layout or rows.dtype != torch.int64:
        return False
    shapes = x.size(1), ends.size(0), *bonds.shape, len(ptr)
    return (
        shapes == (2, 2, ends.size(1), 2, len(rows) + 1)
        and ptr[[0, -1]].tolist() == [0, len(x)]
        and bool((ptr.diff() > 0).all() and (rows.diff() > 0).all())
        and _within(rows, count)
        and _within(ends, len(x))
        and all(map(_within, x.T, (ATOM_TYPES, CHIRALITIES)))
        and all(map(_within, bonds.T, (BOND_TYPES, BOND_DIRECTIONS)))
    )


def _within(values: Tensor, bound: int) -> bool:
    return bool(((values >= 0) & (values < bound)).all())


def _keep(path: Path, content: bytes) -> None:
    try:
        atomic_write(path, lambda file: file.write(content))
    except UserError as error:
        raise UserError(
            f"parsed molecules cannot be kept: {error} data.cache names another folder for them."
        ) from error
