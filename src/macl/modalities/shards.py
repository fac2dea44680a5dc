"""WebDataset shards: .tar files, indexed once, then read at any position without unpacking.

The index holds where each member lies. It is kept in the cache folder and memory-mapped, so that
memory does not grow with the data. Archives may lie elsewhere (`core.remote`): they are read once
for the index, then a range of bytes for each member. Members are only read: names in an archive are
never paths on this machine, and links, devices and sparse files are left out.
"""

from __future__ import annotations

import hashlib
import json
import os
import tarfile
from collections.abc import Iterator, Sequence
from contextlib import suppress
from functools import partial
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

VERSION = 1
"""Of the index; a new one makes every archive be indexed again."""

ROLES = ("image", "text", "json", "cls")
TEXTS = (".txt", ".caption", ".text")
MOST_OPEN = 64
"""Archives that a process holds open."""

_INDEX = np.dtype(
    [("shard", "i4"), ("key", "i8"), ("key_size", "i4")]
    + [(role, "i8") for role in ROLES]
    + [(f"{role}_size", "i8") for role in ROLES]
)
"""A sample: its archive, its key in the list of keys, and place and size of each member; a place of
-1 is a member that is not there, a size of -1 one that cannot be read."""


class TarRecords(Records):
    """The samples of some archives. Costs no memory per sample; safe with forked workers."""

    def __init__(
        self, files: Sequence[Path], title: str, index: NDArray[Any], keys: NDArray[np.uint8]
    ) -> None:
        self.files, self.title, self.index, self.keys = list(files), title, index, keys
        self._open: dict[int, int] = {}

    @classmethod
    def open(cls, files: Sequence[Path], title: str, cache: Path | None = None) -> TarRecords:
        """The samples of `files`; they are indexed now unless that was done before."""
        folder = cache or cache_folder("shards")
        stored = [folder / f"{_mark(files)}.{part}.npy" for part in ("index", "keys")]
        try:
            index, keys = (np.load(path, mmap_mode="r", allow_pickle=False) for path in stored)
        except (OSError, ValueError):
            index, keys = index_shards(files)
            with suppress(UserError):  # they are in memory, and made again next time
                for path, array in zip(stored, (index, keys), strict=True):
                    atomic_write(path, partial(np.save, arr=array, allow_pickle=False))
        return cls(files, title, index, keys)

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
        if row["image"] < 0:
            return f"{self.name(index)} has no picture"
        return None if row["image_size"] >= 0 else f"{self.name(index)}: its picture is unreadable"

    def _read(self, index: int, role: str) -> bytes | None:
        row = self.index[index]
        place, size = int(row[role]), int(row[f"{role}_size"])
        if place < 0 or size < 0:
            return None
        url = url_of(self.files[row["shard"]])
        if url is None:
            data = os.pread(self._descriptor(int(row["shard"])), size, place)
        else:
            data = read_range(url, place, size)
        if len(data) != size:
            raise UserError(f"{self.files[row['shard']]} became shorter while it was read.")
        return data

    def _descriptor(self, shard: int) -> int:
        if shard not in self._open:
            if len(self._open) >= MOST_OPEN:
                os.close(self._open.pop(next(iter(self._open))))
            self._open[shard] = os.open(self.files[shard], os.O_RDONLY)
        return self._open[shard]

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_open": {}}

    def __del__(self) -> None:
        for descriptor in self.__dict__.get("_open", {}).values():
            os.close(descriptor)


def index_shards(files: Sequence[Path]) -> tuple[NDArray[Any], NDArray[np.uint8]]:
    """Read every archive once: (N,) samples and the bytes of their keys.

    Pictures, texts and fields are checked now, so that none fails hours into training. What can be
    read of a truncated archive is kept; a sample without members stands for the rest.
    """
    rows: list[tuple[int, ...]] = []
    parts: list[NDArray[Any]] = []
    keys = bytearray()
    for shard, file in enumerate(track(files, "Indexing shards", len(files))):
        for key, members in _samples(file):
            name = key.encode(errors="replace")
            places = [members.get(role, (-1, -1)) for role in ROLES]
            rows.append(
                (shard, len(keys), len(name), *(p for p, _ in places), *(s for _, s in places))
            )
            keys += name
        parts.append(np.array(rows, dtype=_INDEX))
        rows.clear()
    return np.concatenate(parts), np.frombuffer(bytes(keys), dtype=np.uint8)


def _samples(file: Path) -> Iterator[tuple[str, dict[str, tuple[int, int]]]]:
    """(key, role → (place, size)) of consecutive members with one key: WebDataset's samples."""
    for key, group in groupby(_members(file), lambda member: _split_name(member[0])[0]):
        members: dict[str, tuple[int, int]] = {}
        for name, place, data in group:
            role = _role(_split_name(name)[1])
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


def _role(suffix: str) -> str | None:
    if suffix in TEXTS:
        return "text"
    if suffix in (".json", ".cls"):
        return suffix[1:]
    return "image" if Path(f"x{suffix}").suffix in extensions() else None


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
