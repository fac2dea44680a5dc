"""Archives that reach outside, files that claim to be gigantic, documents that multiply."""

from __future__ import annotations

import gzip
import io
import os
import struct
import zipfile
import zlib
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from macl import recipes
from macl.core.errors import UserError
from macl.modalities.images.data import ImageDataConfig, load_images, open_images
from macl.runs import Run


def tree(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


@pytest.mark.parametrize("place", ["../", "../../", "/", "a/../../", "..\\"])
def test_an_archive_writes_nothing_anywhere(place: str, tmp_path: Path) -> None:
    """Graphs are read inside their archive, whatever its members are called."""
    pytest.importorskip("torch_geometric")
    from macl.modalities.graphs.data import GraphDataConfig, load_graphs

    home = tmp_path / "deep" / "home"
    home.mkdir(parents=True)
    with zipfile.ZipFile(home / "EVIL.zip", "w") as archive:
        archive.writestr(f"{place}EVIL_A.txt", "1, 2\n2, 1\n")
        archive.writestr(f"{place}EVIL_graph_indicator.txt", "1\n1\n")
    before = tree(tmp_path)
    with suppress(UserError):  # whether it finds a set in there is another matter
        load_graphs(GraphDataConfig(path=home / "EVIL.zip"))
    assert tree(tmp_path) == before
    assert not os.path.exists("/EVIL_A.txt")


def png_header(width: int, height: int) -> bytes:
    """A PNG of that size, whose pixels are still to come."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    pixels = chunk(b"IDAT", zlib.compress(b"\0" * 1000))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + pixels + chunk(b"IEND", b"")


def test_a_gigantic_image_among_others_is_refused_by_name(tmp_path: Path) -> None:
    from PIL import Image

    for name in ("one", "two", "three"):
        Image.new("RGB", (8, 8)).save(tmp_path / f"{name}.png")
    (tmp_path / "bomb.png").write_bytes(png_header(50_000, 50_000))
    with pytest.raises(UserError, match=r"bomb\.png is refused.*decompression bomb"):
        load_images(ImageDataConfig(path=tmp_path), "train")
    with pytest.raises(UserError, match=r"bomb\.png is refused"):
        open_images(ImageDataConfig(), tmp_path / "bomb.png")
    with pytest.warns(UserWarning, match=r"bomb\.png is refused"):
        images = load_images(ImageDataConfig(path=tmp_path, on_error="skip"), "train")
    assert sorted(images.names) == ["one.png", "three.png", "two.png"]


def test_an_array_that_claims_a_petabyte_is_refused(tmp_path: Path) -> None:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": (10**9, 1000, 1000)}
    np.lib.format.write_array_header_1_0(header, description)
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("images.npy", header.getvalue() + b"\0" * 100)
    with pytest.raises(UserError, match=r"bomb\.npz"):
        open_images(ImageDataConfig(), path)


def test_archives_that_unpack_to_far_more_than_they_hold_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By name, before anything is read into memory. The real limit only takes longer to reach."""
    monkeypatch.setenv("MACL_LIMIT_UNPACKED", str(2**22))
    pytest.importorskip("torch_geometric")
    from macl.modalities.graphs.data import GraphDataConfig, load_graphs
    from macl.modalities.molecules.tables import column_names

    nothing = b"1\n" * 2**19
    with zipfile.ZipFile(tmp_path / "BOMB.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("BOMB_graph_indicator.txt", "1\n")
        with archive.open("BOMB_A.txt", "w", force_zip64=True) as member:
            for _ in range(5):
                member.write(nothing)
    with pytest.raises(UserError, match=r"BOMB\.zip is refused.*BOMB_A\.txt.*bomb"):
        load_graphs(GraphDataConfig(path=tmp_path / "BOMB.zip"))
    np.savez_compressed(tmp_path / "bomb.npz", images=np.zeros((5, 1024, 1024), np.uint8))
    with pytest.raises(UserError, match=r"bomb\.npz is refused.*images\.npy.*bomb"):
        open_images(ImageDataConfig(), tmp_path / "bomb.npz")
    with gzip.open(tmp_path / "bomb.csv.gz", "wb", compresslevel=1) as file:
        for _ in range(5):
            file.write(nothing)
    with pytest.raises(UserError, match=r"bomb\.csv\.gz is refused.*bomb"):
        column_names(tmp_path / "bomb.csv.gz")


def test_what_merely_compresses_well_is_read(tmp_path: Path) -> None:
    path = tmp_path / "blank.npz"
    np.savez_compressed(path, images=np.zeros((2, 512, 512), np.uint8))
    assert path.stat().st_size * 100 < 2 * 512 * 512
    assert len(open_images(ImageDataConfig(), path)) == 2


LAUGHS = "a0: &a0 {x: 1}\n" + "".join(
    f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)
)
"""A kilobyte that stands for 9¹¹ values."""


@pytest.mark.parametrize(
    "text",
    [
        f"modality: images\n{LAUGHS}",
        f"modality: images\ndata: {{path: &p [x], seed: *p}}\n{LAUGHS}",
        "modality: images\ndata: !!python/object/apply:os.mkdir [evil]\n",
        "modality: images\nname: !!python/name:os.system\n",
        "&a modality: *a\n",
        "[" * 100_000,
        "{a: " * 5_000,
    ],
    ids=["laughs", "reference", "object", "name", "itself", "depth", "maps"],
)
def test_a_document_that_would_do_harm_is_refused(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe.yaml").write_text(text)
    with pytest.raises(UserError, match=r"recipe\.yaml is not valid YAML"):
        recipes.load("recipe.yaml")
    with pytest.raises(UserError, match=r"recipe\.yaml is not valid YAML"):
        Run.open(tmp_path)
    assert os.listdir(tmp_path) == ["recipe.yaml"]
