"""What a file may make the program do: one table of limits, checked before anything is allocated.

A file may take as much memory as it has bytes; the limits are for those that would take far more.
"""

from __future__ import annotations

import gzip
import math
import os
import zipfile
from pathlib import Path
from typing import IO

from macl.core.errors import UserError

LIMITS = {
    "unpacked": 2**28,  # bytes that a compressed file, a table or tensors may unpack to …
    "ratio": 100,  # … and above that, unpacked bytes per stored byte (text reaches about 20)
    "pixels": 89_478_485,  # of an image
    "side": 65_535,  # pixels along one side of an image
    "items": 10_000_000,  # in an array or a table of any size on disk
    "member": 2**30,  # bytes of one file in a shard
    "tensors": 100_000,  # in a weights file, or created while a network is built from one
    "numbers": 2**26,  # of a network in addition to the bytes of its weights file
    "steps": 4_000_000,  # of the pickle in a checkpoint, about 30 for each tensor
    "values": 1_000_000,  # in a checkpoint besides tensors, counted as often as they are reached
    "depth": 100,  # of lists and mappings in a checkpoint
    "smiles": 10_000,  # characters of a SMILES string
}
"""Limit → the largest number that is read."""


def limit(name: str) -> int:
    """A limit: the number in the environment variable MACL_LIMIT_NAME, else that of `LIMITS`."""
    text = os.environ.get(f"MACL_LIMIT_{name.upper()}", "")
    if text and not text.isdecimal():
        raise UserError(f"MACL_LIMIT_{name.upper()}={text}: give a whole number.")
    return int(text) if text else LIMITS[name]


def check_limit(name: str, amount: int, what: str) -> None:
    """`UserError` if `amount` is above the limit `name`; `what` says what has that amount of it."""
    if amount > limit(name):
        raise UserError(
            f"{what}: {amount:,} is above the limit of {limit(name):,} ({name}): the file may be "
            f"meant to do harm. If you trust it, set MACL_LIMIT_{name.upper()}={amount}."
        )


def check_unpacked(unpacked: int, stored: int, path: Path, what: str) -> None:
    """`UserError` if `unpacked` bytes of a file of `stored` bytes make it a decompression bomb."""
    if unpacked > limit("unpacked") and unpacked > limit("ratio") * stored:
        raise UserError(
            f"{path} is refused: {what} to more than {limit('ratio')} times its size and "
            f"{limit('unpacked') >> 20} MB, and may be a decompression bomb. If you trust it, set "
            f"MACL_LIMIT_UNPACKED={unpacked}, or give the unpacked file."
        )


def refuse_bomb(path: Path) -> None:
    """`UserError` when the zip, npz or gzip file `path` is a decompression bomb.

    A zip file's directory has sizes, which its readers respect; gzip is decompressed in pieces.
    """
    stored, unpacked = path.stat().st_size, 0
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                unpacked += member.file_size
                check_unpacked(unpacked, stored, path, f"up to {member.filename} it would unpack")
    elif path.suffix.lower() == ".gz":
        with gzip.open(path) as file:
            while read := len(file.read(2**20)):
                unpacked += read
                check_unpacked(unpacked, stored, path, "it would unpack")


def check_array(stream: IO[bytes], size: int, what: str) -> None:
    """`UserError` if the header of a .npy file of `size` bytes claims more than it holds."""
    from numpy.lib import format as npy

    read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    version = npy.read_magic(stream)
    if version not in read:
        raise UserError(f"{what}: version {version} of the .npy format is not read.")
    shape, _, dtype = read[version](stream)
    if math.prod(shape) * dtype.itemsize > size:
        raise UserError(f"{what} claims to be of shape {shape}, which is more than it holds.")
    check_limit("items", max(shape, default=0), what)


def check_archive_arrays(path: Path) -> None:
    """`refuse_bomb` and `check_array` of every array in an .npz file."""
    refuse_bomb(path)
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            if member.filename.endswith(".npy"):
                with archive.open(member) as stream:
                    check_array(stream, member.file_size, f"{path}: {member.filename}")
