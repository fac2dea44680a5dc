"""WebDataset shards: .tar files, indexed once, then read at any position without unpacking.

The index of where each member lies is kept in the cache folder and memory-mapped. Archives
elsewhere (`core.remote`) are read once for it, then a range of bytes for each member. Names in an
archive are never paths on this machine; links, devices and sparse files are left out.
"""

from __future__ import annotations

import functools
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from macl.core.errors import UserError
from macl.core.files import atomic_write, cache_folder
from macl.core.limits import check_limit
from macl.core.progress import track
from macl.core.remote import mark_of, open_remote, read_range, url_of
from macl.modalities.images.decode import check, extensions
from macl.modalities.records import TEXT_FIELD, Records

VERSION = 2
"""Of the index; a new one makes every archive be indexed again."""

ROLES = ("image", "text", "json", "cls")
ROLE_OF = {".txt": "text", ".caption": "text", ".text": "text", ".json": "json", ".cls": "cls"}
"""The role of a member by its suffix; those of images are images."""

_INDEX = np.dtype(
    [("shard", "i4"), ("key", "i8"), ("key_size", "i4"), ("place", "i8", 4), ("size", "i8", 4)]
)
"""A sample: its archive, its key in the list of keys, and place and size of the member of each
role; a place of -1 is a member that is not there, a size of -1 one that cannot be read."""


class TarRecords(Records):
    """The samples of some archives. Costs no memory per sample; safe with forked workers."""

    def __init__(self, files: Sequence[Path], title: str) -> None:
        """The samples of `files`, which are indexed now unless that was done before."""
        self.files, self.title, self.mark = list(files), title, _mark(files)
        stored = [cache_folder("shards") / f"{self.mark}.{part}.npy" for part in ("index", "keys")]
        try:
            arrays = [np.load(path, mmap_mode="r", allow_pickle=False) for path in stored]
        except (OSError, ValueError):
            arrays = index_shards(files)
            with suppress(UserError):  # they are in memory, and made again next time
                for path, array in zip(stored, arrays, strict=True):
                    atomic_write(path, functools.partial(np.save, arr=array, allow_pickle=False))
        self.index, self.keys = arrays

    def __len__(self) -> int:
        return len(self.index)

    def name(self, index: int) -> str:
        """The archive and the key: "a.tar/000001"."""
        row = self.index[index]
        key = bytes(self.keys[row["key"] : row["key"] + row["key_size"]]).decode()
        return f"{self.files[row['shard']].name}/{key}"

    def image(self, index: int) -> bytes:
        """The bytes of the picture."""
        data = self._read(index, "image")
        if data is None:
            raise UserError(f"{self.name(index)} has no picture.")
        return data

    def fields(self, index: int) -> dict[str, Any]:
        """The fields of the .json member, the text as "txt", the class as "cls"."""
        record: dict[str, Any] = json.loads(self._read(index, "json") or b"{}")
        for role, field in (("text", TEXT_FIELD), ("cls", "cls")):
            if (data := self._read(index, role)) is not None:
                record[field] = data.decode().strip()
        return record

    def image_problem(self, index: int) -> str | None:
        """As found when the archive was indexed."""
        row = self.index[index]
        if row["place"][0] < 0:
            return f"{self.name(index)} has no picture"
        return None if row["size"][0] >= 0 else f"{self.name(index)}: its picture is unreadable"

    def _read(self, index: int, role: str) -> bytes | None:
        row, number = self.index[index], ROLES.index(role)
        place, size = int(row["place"][number]), int(row["size"][number])
        if place < 0 or size < 0:
            return None
        file = self.files[row["shard"]]
        url = url_of(file)
        if url is None:
            opened = _opened(file, self.mark)
            data = os.pread(opened.fileno(), size, place)
        else:
            data = read_range(url, place, size)
        if len(data) != size:
            raise UserError(f"{file} became shorter while it was read.")
        return data


@functools.lru_cache(64)
def _opened(file: Path, mark: str) -> io.FileIO:
    """An open archive; positions are given with every read, so that processes can share it."""
    return io.FileIO(file)


def index_shards(files: Sequence[Path]) -> list[NDArray[Any]]:
    """Read and check every archive once: (N,) samples and the bytes of their keys.

    What can be read of a truncated one is kept; a sample without members stands for the rest.
    """
    parts, keys = list[NDArray[Any]](), bytearray()
    for shard, file in enumerate(track(files, "Indexing shards", len(files))):
        rows = []
        for key, members in _samples(file):
            name = key.encode(errors="replace")
            places, sizes = zip(*(members.get(role, (-1, -1)) for role in ROLES), strict=True)
            rows.append((shard, len(keys), len(name), places, sizes))
            keys += name
        parts.append(np.array(rows, dtype=_INDEX))
    return [np.concatenate(parts), np.frombuffer(bytes(keys), dtype=np.uint8)]


def _samples(file: Path) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """(key, role → (place, size)) of consecutive members with one key: WebDataset's samples."""
    for key, group in groupby(_members(file), lambda member: _split_name(member[0])[0]):
        members: dict[str, tuple[int, int]] = {}
        for name, place, data in group:
            suffix = _split_name(name)[1]
            role = "image" if Path(f"x{suffix}").suffix in extensions() else ROLE_OF.get(suffix)
            if data is not None and role is not None and role not in members:
                members[role] = (place, len(data) if _is_whole(role, data, name) else -1)
        yield key, members


def _members(file: Path) -> Iterator[tuple[str, int, bytes | None]]:
    """(name, place, data) of the regular files in an archive; data None: the archive breaks off."""
    url, size = url_of(file), _state(file)[0]
    try:
        opened = file.open("rb") if url is None else open_remote(url)
        with opened as stored, tarfile.open(fileobj=stored, mode="r:") as archive:
            for member in archive:
                archive.members = []  # type: ignore[attr-defined]  # it would keep every header
                if not member.isreg() or member.issparse():
                    continue
                if member.offset_data + member.size > size:
                    raise tarfile.ReadError("unexpected end of data")
                check_limit("member", member.size, f"{file}: bytes of {member.name}")
                stream = archive.extractfile(member)
                data = b"" if stream is None else stream.read()
                if len(data) != member.size:
                    raise tarfile.ReadError("unexpected end of data")
                yield member.name, member.offset_data, data
            # tarfile takes a header that breaks off for the end, which is a block of zeros.
            stored.seek(archive.offset)
            if len(stored.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE:
                raise tarfile.ReadError("unexpected end of data")
    except (tarfile.TarError, OSError, EOFError, ValueError) as error:
        yield f"({error})", -1, None


def _split_name(name: str) -> tuple[str, str]:
    """("a/b", ".seg.png") of "a/b.seg.png": the key ends at the first dot of the file's name."""
    folder, slash, base = name.rpartition("/")
    stem, dot, suffix = base.partition(".")
    return f"{folder}{slash}{stem}", f"{dot}{suffix}".lower()


def _is_whole(role: str, data: bytes, name: str) -> bool:
    try:
        if role == "image":
            check(Path(name), data)
        elif role == "json":
            return isinstance(json.loads(data), dict)
        else:
            data.decode()
    except (UserError, ValueError, RecursionError):
        return False
    return True


def _mark(files: Sequence[Path]) -> str:
    """Identifies archives by name, size and time of change."""
    digest = hashlib.blake2b(f"{VERSION}".encode(), digest_size=16)
    for file in files:
        size, change = _state(file)
        digest.update(f"{url_of(file) or file.absolute()}\0{size}\0{change}\0".encode())
    return digest.hexdigest()


def _state(file: Path) -> tuple[int, str]:
    """Size in bytes, and what changes with the content."""
    url = url_of(file)
    return mark_of(url) if url else (file.stat().st_size, str(file.stat().st_mtime_ns))
