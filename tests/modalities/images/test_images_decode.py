"""Decoding: every kind of image file a person may have, and every way it may be broken."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from macl.core.errors import UserError
from macl.modalities.images.decode import check, decode


def save(path: Path, shade: int = 0, size: tuple[int, int] = (6, 4)) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, (shade, 10, 20)).save(path)
    return path


def noise(seed: int = 0, side: int = 64) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (side, side, 3), dtype=np.uint8)


def truncated(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(noise()).save(path)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    return path


@pytest.mark.parametrize("mode", ["1", "L", "LA", "P", "RGB", "RGBA", "I;16"])
def test_png_of_every_mode_is_rgb(tmp_path: Path, mode: str) -> None:
    if mode == "I;16":
        image = Image.fromarray(np.full((4, 6), 0xFFFF, dtype=np.uint16))
    else:
        image = Image.new("RGB", (6, 4), "white").convert(mode)
    image.save(tmp_path / "x.png")
    pixels = decode(tmp_path / "x.png")
    assert pixels.dtype == torch.uint8
    assert pixels.shape == (3, 4, 6)
    assert (pixels == 255).all()


@pytest.mark.parametrize("ending", ["jpg", "webp", "bmp", "gif", "tif", "ppm"])
def test_common_formats(tmp_path: Path, ending: str) -> None:
    path = save(tmp_path / f"x.{ending}", shade=200, size=(16, 8))
    check(path)
    pixels = decode(path)
    assert pixels.shape == (3, 8, 16)
    assert (pixels.float().mean((1, 2)) - torch.tensor([200.0, 10, 20])).abs().max() < 6


def test_sixteen_bits_keep_the_upper_eight(tmp_path: Path) -> None:
    values = np.array([[0, 255, 256], [0x1234, 0x80FF, 0xFFFF]], dtype=np.uint16)
    for name in ("x.png", "x.tif"):
        Image.fromarray(values).save(tmp_path / name)
        assert decode(tmp_path / name)[0].tolist() == [[0, 0, 1], [0x12, 0x80, 0xFF]]


def test_transparency_is_laid_on_white(tmp_path: Path) -> None:
    rgba = np.array([[[200, 0, 0, 255], [200, 0, 0, 0], [200, 0, 0, 51]]], dtype=np.uint8)
    Image.fromarray(rgba).save(tmp_path / "x.png")
    assert decode(tmp_path / "x.png")[:, 0].T.tolist() == [
        [200, 0, 0],
        [255, 255, 255],
        [244, 204, 204],
    ]


def test_transparent_palette_is_laid_on_white(tmp_path: Path) -> None:
    image = Image.new("P", (2, 1), 0)
    image.putpalette([0, 0, 0, 9, 9, 9])
    image.putpixel((1, 0), 1)
    image.save(tmp_path / "x.png", transparency=0)
    assert decode(tmp_path / "x.png")[0].tolist() == [[255, 9]]


def test_cmyk_jpeg(tmp_path: Path) -> None:
    Image.new("CMYK", (8, 8), (0, 255, 255, 0)).save(tmp_path / "x.jpg", quality=95)
    red = decode(tmp_path / "x.jpg").float().mean((1, 2))
    assert red[0] > 240
    assert red[1:].max() < 15


def test_exif_rotation_is_applied(tmp_path: Path) -> None:
    image = Image.new("RGB", (32, 16), "black")
    image.paste("white", (0, 0, 16, 16))
    exif = Image.Exif()
    exif[0x0112] = 6  # the camera was turned: show it rotated by 90 degrees clockwise
    image.save(tmp_path / "x.jpg", exif=exif, quality=95)
    pixels = decode(tmp_path / "x.jpg")
    assert pixels.shape == (3, 32, 16)
    assert pixels[:, :12].min() > 200  # the left half is now on top
    assert pixels[:, 20:].max() < 50


def test_float_pixels_are_refused(tmp_path: Path) -> None:
    Image.fromarray(np.zeros((4, 4), dtype=np.float32)).save(tmp_path / "x.tif")
    with pytest.raises(UserError, match=r"x\.tif.*no known range; save as 8 or 16 bit"):
        decode(tmp_path / "x.tif")


@pytest.mark.parametrize("name", ["x.jpg", "x.png"])
def test_max_side_bounds_the_shorter_side(tmp_path: Path, name: str) -> None:
    path = save(tmp_path / name, shade=90, size=(640, 320))
    assert decode(path, max_side=32).shape == (3, 32, 64)
    assert decode(path, max_side=320).shape == (3, 320, 640)
    assert decode(path, max_side=1000).shape == (3, 320, 640)


@pytest.mark.parametrize("name", ["x.jpg", "x.png"])
def test_shrinking_is_antialiased(tmp_path: Path, name: str) -> None:
    stripes = np.zeros((256, 256, 3), dtype=np.uint8)
    stripes[:, ::2] = 255
    Image.fromarray(stripes).save(tmp_path / name, quality=95)
    shrunk = decode(tmp_path / name, max_side=32)[:, 2:-2, 2:-2].int()
    assert (shrunk - 127).abs().max() < 12  # picking pixels would give 0 or 255


@pytest.mark.parametrize("name", ["x.jpg", "x.png", "x.webp", "x.bmp", "x.gif", "x.tif"])
def test_truncated_file_is_named(tmp_path: Path, name: str) -> None:
    path = truncated(tmp_path / name)
    for look in (check, decode):
        with pytest.raises(UserError, match=f"{name} cannot be read"):
            look(path)


def test_jpeg_with_bytes_after_its_end_is_whole(tmp_path: Path) -> None:
    path = save(tmp_path / "x.jpg")
    path.write_bytes(path.read_bytes() + b"a trailer some cameras write")
    check(path)
    assert decode(path).shape == (3, 4, 6)


def test_corrupted_png_is_found_without_decoding(tmp_path: Path) -> None:
    path = tmp_path / "x.png"
    Image.fromarray(noise()).save(path)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(UserError, match=r"x\.png"):
        check(path)


def png_header(width: int, height: int) -> bytes:
    """A tiny PNG that claims to be huge."""

    def chunk(kind: bytes, body: bytes) -> bytes:
        crc = zlib.crc32(kind + body)
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", crc)

    header = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", header)
        + chunk(b"IDAT", zlib.compress(b"\0"))
        + chunk(b"IEND", b"")
    )


@pytest.mark.parametrize(
    "side", [10_000, 60_000]
)  # Pillow itself warns at one, raises at the other
def test_decompression_bomb_is_refused_by_name(tmp_path: Path, side: int) -> None:
    path = tmp_path / "bomb.png"
    path.write_bytes(png_header(side, side))
    for look in (check, decode):
        with pytest.raises(
            UserError, match=r"bomb\.png(: pixels: 100,000,000 is above the limit| is refused)"
        ):
            look(path)


def test_postscript_in_disguise_is_not_run(tmp_path: Path) -> None:
    path = tmp_path / "x.jpg"
    path.write_bytes(
        b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 10 10\n%%EndComments\nshowpage\n"
    )
    with pytest.raises(UserError, match=r"x\.jpg cannot be read"):
        decode(path)
