"""WebDataset shards of a few colors."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path
from typing import Any

from small_pairs import COLORS, picture


def add(archive: tarfile.TarFile, name: str, data: bytes) -> None:
    """A regular file in an archive."""
    member = tarfile.TarInfo(name)
    member.size = len(data)
    archive.addfile(member, io.BytesIO(data))


def color_shards(folder: Path, shards: int = 3, each: int = 4, split: bool = True) -> Path:
    """colors-{0..N}.tar with `each` pictures of ten colors; returns the pattern."""
    folder.mkdir(parents=True, exist_ok=True)
    samples: list[tuple[str, str, dict[str, Any]]] = []
    for number in range(each):
        for color in COLORS:
            fields: dict[str, Any] = {"concept": color, "label": color}
            if split:
                fields["split"] = "test" if number == each - 1 else "train"
            samples.append((f"{color}{number}", color, fields))
    scratch = folder / "scratch.png"
    for shard in range(shards):
        with tarfile.open(folder / f"colors-{shard}.tar", "w") as archive:
            for place, (key, color, fields) in enumerate(samples):
                if place % shards == shard:
                    picture(scratch, color, place)
                    add(archive, f"{key}.png", scratch.read_bytes())
                    add(archive, f"{key}.txt", f"a {color} square".encode())
                    add(archive, f"{key}.json", json.dumps(fields).encode())
    scratch.unlink()
    return folder / f"colors-{{0..{shards - 1}}}.tar"
