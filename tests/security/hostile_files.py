"""Small files that claim, unpack to or multiply into far more than they hold; made, not stored."""

from __future__ import annotations

import gzip
import io
import json
import pickle
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

GIGABYTE = 2**30


def deflated_checkpoint(path: Path) -> None:
    """Weights whose members are compressed: 2 GB of zeros."""
    plain = io.BytesIO()
    torch.save({f"w{i}": torch.zeros(1) for i in range(8)}, plain)
    zeros = b"\0" * 2**26
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as target,
    ):
        for member in source.infolist():
            if "/data/" in member.filename:
                with target.open(member.filename, "w", force_zip64=True) as stream:
                    for _ in range(4):
                        stream.write(zeros)
            else:
                target.writestr(member.filename, source.read(member))


def stretched_tensors(path: Path) -> None:
    """A ResNet of 12 GB whose tensors are single numbers with strides of 0."""
    from torchvision.models import resnet18

    with torch.device("meta"):
        shapes = {n: tuple(v.shape) for n, v in resnet18(width_per_group=64).state_dict().items()}
    wide = {n: tuple(s * 12 if s >= 64 else s for s in shape) for n, shape in shapes.items()}
    torch.save({n: torch.zeros(()).expand(shape) for n, shape in wide.items()}, path)


def empty_shapes(path: Path) -> None:
    """Weights of shape (10⁶, 0, 7, 7), which take no bytes, from which a ResNet is built."""
    from safetensors.torch import save_file

    state = {"conv1.weight": torch.empty(10**6, 0, 7, 7)}
    for stage in range(1, 5):
        for conv in (1, 2):
            state[f"layer{stage}.0.conv{conv}.weight"] = torch.empty(10**6, 10**6, 0, 3)
            state[f"layer{stage}.0.bn{conv}.weight"] = torch.empty(10**6, 0)
    state["bn1.weight"] = torch.empty(10**6, 0)
    save_file(state, path)


def nested_checkpoint(path: Path) -> None:
    """Lists that refer to each other: 2⁶⁰ values in a few bytes."""
    value: Any = []
    for _ in range(60):
        value = [value, value]
    torch.save({"state_dict": {}, "callbacks": value}, path)


def deep_checkpoint(path: Path) -> None:
    """A list in a list, and so on, 50,000 times."""
    pickled = b"\x80\x02" + b"]" * 50_001 + b"a" * 50_000 + b"."
    _checkpoint_with(path, pickled)


def long_checkpoint(path: Path) -> None:
    """Five million steps of a pickle, deflated."""
    _checkpoint_with(path, b"\x80\x02](" + b"K\x01" * 5_000_000 + b"e.")


def claiming_pickle(path: Path) -> None:
    """A text that claims to be of 2⁶² bytes, in torch's format before zip."""
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, 2) + pickle.dumps(1001, 2) + pickle.dumps({}, 2)
    path.write_bytes(magic + b"\x80\x04\x8d" + struct.pack("<Q", 2**62) + b"x.")


def _checkpoint_with(path: Path, pickled: bytes) -> None:
    plain = io.BytesIO()
    torch.save({}, plain)
    with (
        zipfile.ZipFile(plain) as source,
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as target,
    ):
        for member in source.infolist():
            is_values = member.filename.endswith("data.pkl")
            target.writestr(member.filename, pickled if is_values else source.read(member))


def claiming_tar(path: Path) -> None:
    """A member whose header says 1 TB."""
    info = tarfile.TarInfo("a.png")
    info.size = 2**40
    path.write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"\0" * 1024)


def many_images(path: Path) -> None:
    """2²⁸ pictures of one pixel, deflated."""
    _npz(path, (2**28 - 1, 1, 1), 2**28 - 1)


def claiming_npz(path: Path) -> None:
    """An array that claims a petabyte."""
    _npz(path, (10**9, 1000, 1000), 100)


def _npz(path: Path, shape: tuple[int, ...], size: int) -> None:
    header = io.BytesIO()
    description = {"descr": "|u1", "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(header, description)
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("images.npy", "w", force_zip64=True) as stream,
    ):
        stream.write(header.getvalue())
        zeros = b"\0" * 2**20
        for place in range(0, size, len(zeros)):
            stream.write(zeros[: size - place])


def claiming_npy(path: Path) -> None:
    """Vectors that claim a terabyte."""
    with path.open("wb") as file:
        description = {"descr": "<f4", "fortran_order": False, "shape": (2**30, 256)}
        np.lib.format.write_array_header_1_0(file, description)
        file.write(b"\0" * 100)
    path.with_suffix(".names.txt").write_text("a\n")


def long_png(path: Path) -> None:
    """A picture of 1 × 80,000,000 pixels."""

    def chunk(kind: bytes, content: bytes) -> bytes:
        check = struct.pack(">I", zlib.crc32(kind + content))
        return struct.pack(">I", len(content)) + kind + content + check

    header = struct.pack(">IIBBBBB", 1, 80_000_000, 8, 0, 0, 0, 0)
    squeezer = zlib.compressobj(1)
    rows = b"".join(squeezer.compress(b"\0" * 2_000_000) for _ in range(80)) + squeezer.flush()
    parts = [chunk(b"IHDR", header), chunk(b"IDAT", rows), chunk(b"IEND", b"")]
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + b"".join(parts))


def long_smiles(path: Path) -> None:
    """A molecule of 300,000 atoms beside two of three."""
    path.write_text(f"CCO\n{'C' * 300_000}\nCCN\n")


def repeated_parquet(path: Path) -> None:
    """A text of a megabyte, stored once, in two thousand rows."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    text = pa.DictionaryArray.from_arrays(pa.array([0] * 2000), pa.array(["x" * 2**20]))
    pq.write_table(pa.table({"text": text}), path)


def gzip_bomb(path: Path) -> None:
    """Half a gigabyte of line ends."""
    with gzip.open(path, "wb", compresslevel=9) as file:
        for _ in range(512):
            file.write(b"a\n" * 2**19)


def endless_bert(folder: Path, layers: int = 100_000, width: int = 32) -> None:
    """A Hugging Face folder whose configuration has 100,000 layers and whose weights have none."""
    from safetensors.torch import save_file
    from transformers import BertConfig, BertTokenizer

    folder.mkdir(parents=True, exist_ok=True)
    BertConfig(
        vocab_size=16,
        hidden_size=width,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=width,
    ).save_pretrained(folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"num_hidden_layers": layers, "architectures": ["BertModel"]}
    (folder / "config.json").write_text(json.dumps(config))
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b"]
    (folder / "vocab.txt").write_text("\n".join(words))
    BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)
    save_file({"x": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})


def wide_bert(folder: Path) -> None:
    """One whose two layers have a width of 60,000."""
    endless_bert(folder, layers=2, width=60_000)


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "deflated checkpoint": ("a.pth", deflated_checkpoint),
    "stretched tensors": ("a.pth", stretched_tensors),
    "empty shapes": ("a.safetensors", empty_shapes),
    "nested checkpoint": ("last.ckpt", nested_checkpoint),
    "deep checkpoint": ("last.ckpt", deep_checkpoint),
    "long checkpoint": ("last.ckpt", long_checkpoint),
    "claiming pickle": ("a.pth", claiming_pickle),
    "claiming tar": ("a.tar", claiming_tar),
    "many images": ("a.npz", many_images),
    "claiming npz": ("a.npz", claiming_npz),
    "claiming npy": ("a.npy", claiming_npy),
    "long png": ("a.png", long_png),
    "long smiles": ("a.smi", long_smiles),
    "repeated parquet": ("a.parquet", repeated_parquet),
    "gzip bomb": ("a.csv.gz", gzip_bomb),
    "endless bert": ("bert", endless_bert),
    "wide bert": ("bert", wide_bert),
}
"""Name → the file, and what makes it."""
