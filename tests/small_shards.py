"""WebDataset shards of a few colours."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from small_pairs import COLOURS, picture


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """A regular file in an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def colour_shards(folder: Path, shards: int = 3, each: int = 4, split: bool = True) -> Path:
    """colours-{0..N}.tar with `each` pictures of ten colours; returns the pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(each):
        for colour in COLOURS:
            fields: dict[str, Any] = {"concept": colour, "label": colour}
            if split:
                fields["split"] = "test" if number == each - 1 else "train"
            samples.append((f"{colour}{number}", colour, fields))
    scratch = folder / "scratch.png"
    for shard in range(shards):
        with tarfile.open(folder / f"colours-{shard}.tar", "w") as archive:
            for place, (key, colour, fields) in enumerate(samples):
                if place % shards == shard:
                    picture(scratch, colour, place)
                    add(archive, f"{key}.png", scratch.read_bytes())
                    add(archive, f"{key}.txt", f"a {colour} square".encode())
                    add(archive, f"{key}.json", json.dumps(fields).encode())
    scratch.unlink()
    return folder / f"colours-{{0..{shards - 1}}}.tar"
