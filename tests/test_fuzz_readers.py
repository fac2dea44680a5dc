"""Every reader of a file, given anything: it reads, or says in words that it cannot."""

from __future__ import annotations

import gzip
import io
import json
import warnings
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from fuzzing import examples, little_memory_and_time
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.weights import load_weights, read_metadata
from macl.modalities.images.data import ImageDataConfig, open_images
from macl.runs import Run

Reader = Callable[[Path], object]


def image(kind: str) -> bytes:
    from PIL import Image

    pixels = np.random.default_rng(0).integers(0, 256, (9, 7, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind)
    return buffer.getvalue()


def arrays() -> bytes:
    buffer = io.BytesIO()
    np.savez(buffer, images=np.zeros((2, 3, 3), np.uint8), labels=np.arange(2))
    return buffer.getvalue()


def safetensors() -> bytes:
    from safetensors.torch import save

    return save({"weight": torch.ones(1, 1), "bias": torch.ones(1)}, {"format": "pt"})


def checkpoint() -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": {"weight": torch.ones(2)}, "epoch": 3}, buffer)
    return buffer.getvalue()


def parquet(column: str, values: list[str]) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    buffer = io.BytesIO()
    pq.write_table(pa.table({column: values}), buffer)
    return buffer.getvalue()


TU = {
    "T_A.txt": "1, 2\n2, 1\n3, 4\n4, 3\n",
    "T_graph_indicator.txt": "1\n1\n2\n2\n",
    "T_graph_labels.txt": "0\n1\n",
    "T_node_labels.txt": "0\n1\n1\n0\n",
    "T_edge_labels.txt": "0\n0\n1\n1\n",
}


def tu_archive() -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in TU.items():
            archive.writestr(f"T/{name}", text)
    return buffer.getvalue()


def read_images(path: Path) -> object:
    images = open_images(ImageDataConfig(), path)
    return [images[index] for index in range(len(images))]


def read_text(path: Path) -> object:
    from macl.modalities.text.data import TextDataConfig, read_text

    positive = "positive" if path.stem == "pairs" else None
    texts = read_text(path, TextDataConfig(positive=positive))
    return [texts[index] for index in range(len(texts))]


def read_graphs(path: Path) -> object:
    from macl.modalities.graphs.data import GraphDataConfig, load_graphs

    return load_graphs(GraphDataConfig(path=path))


def read_graph_part(path: Path) -> object:
    """One file of a set is damaged; the others are whole."""
    for name, text in TU.items():
        if name != path.name:
            (path.parent / name).write_text(text)
    return read_graphs(path.parent)


def read_molecules(path: Path) -> object:
    from macl.modalities.molecules.data import MoleculeDataConfig, load_molecules

    return load_molecules(MoleculeDataConfig(path=path, cache=path.parent / "cache"))


def read_encoder_folder(path: Path) -> object:
    """One file of a sentence-transformers folder is damaged; the other is whole."""
    from macl.modalities.text.folders import read_style

    folder = path.parent.parent if path.name == "config.json" else path.parent
    pooling = folder / "1_Pooling" / "config.json"
    pooling.parent.mkdir(exist_ok=True)
    for other, content in ((folder / "modules.json", MODULES), (pooling, POOLING)):
        if other != path:
            other.write_bytes(content)
    return read_style(folder)


def read_senteval(path: Path) -> object:
    """One file of SentEval is damaged; the others of its task are whole."""
    from macl.modalities.text.senteval import read_sts, read_transfer

    name = next(name for name in SENTEVAL if str(path).endswith(name))
    root = Path(str(path).removesuffix(name))
    for other, text in SENTEVAL.items():
        if not (root / other).exists():
            (root / other).parent.mkdir(parents=True, exist_ok=True)
            (root / other).write_bytes(text)
    if name.startswith(("STS", "SICK")):
        task = {"STSBenchmark": "STS-B", "SICK": "SICK-R"}.get(path.parent.name, "STS13")
        return read_sts(root, task, "test" if task == "STS13" else "dev")
    return read_transfer(root, {"SST": "SST2"}.get(name.split("/")[0], name.split("/")[0]))


MRPC = b"Quality\t1\t2\tA\tB\n0\t1\t2\tone\ttwo\n1\t3\t4\tthree\tfour\n"
SENTEVAL = {
    "STS/STSBenchmark/sts-dev.csv": b"g\tf\ty\t1\t2.5\tone\ttwo\ng\tf\ty\t2\t5\tsix\tsix\n",
    "SICK/SICK_trial.txt": b"pair_ID\tA\tB\tscore\n1\tone\ttwo\t4.5\n2\tsix\tsix\t5\n",
    **{f"STS/STS13-en-test/STS.input.{name}.txt": b"one\ttwo\nsix\tsix\n"
       for name in ("FNWN", "headlines", "OnWN")},
    **{f"STS/STS13-en-test/STS.gs.{name}.txt": b"2.5\n5\n"
       for name in ("FNWN", "headlines", "OnWN")},
    **{f"MR/rt-polarity.{side}": b"one two\nthree\n" for side in ("pos", "neg")},
    **{f"SST/binary/sentiment-{part}": b"bad \t0\ngood \t1\n"
       for part in ("train", "dev", "test")},
    **{f"TREC/{name}": b"ABBR:x what is it\nNUM:y how many\n"
       for name in ("train_5500.label", "TREC_10.label")},
    **{f"MRPC/msr_paraphrase_{part}.txt": MRPC for part in ("train", "test")},
}  # fmt: skip
FUZZED_SENTEVAL = [name for name in SENTEVAL if not name.endswith(("headlines.txt", "OnWN.txt"))]
CSV = b'text,positive\none two,"three\nfour"\nfive,six\n'
JSONL = b'{"text": "one"}\n{"text": "two", "positive": null}\n'
MODULES = json.dumps(
    [{"idx": i, "path": p, "type": f"sentence_transformers.models.{t}"}
     for i, (p, t) in enumerate([("", "Transformer"), ("1_Pooling", "Pooling")])]
).encode()  # fmt: skip
POOLING = b'{"pooling_mode_cls_token": true, "pooling_mode_mean_tokens": false}'
SMILES = b"smiles,y\nCCO,1\nc1ccccc1,0\nnonsense,1\n"

READERS: dict[str, tuple[str, Callable[[], bytes], Reader]] = {
    **{
        f"image {kind}": (f"a.{kind.lower()}", lambda kind=kind: image(kind), read_images)  # type: ignore[misc]
        for kind in ("PNG", "JPEG", "WEBP", "BMP", "GIF", "TIFF", "PPM", "AVIF")
    },
    "npz": ("a.npz", arrays, read_images),
    "weights": ("a.safetensors", safetensors, lambda p: load_weights(torch.nn.Linear(1, 1), p)),
    "metadata": ("a.safetensors", safetensors, read_metadata),
    "checkpoint": ("a.ckpt", checkpoint, lambda p: SafeCheckpointIO().load_checkpoint(p)),
    "metrics": ("metrics.csv", lambda: b"step,loss\n1,0.5\n", lambda p: Run(p.parent).metrics()),
    "results": ("results.json", lambda: b'{"scores": []}', lambda p: Run(p.parent).results()),
    "text lines": ("a.txt", lambda: "one\nzwölf\n\n".encode(), read_text),
    "text csv": ("pairs.csv", lambda: CSV, read_text),
    "text tsv": ("a.tsv", lambda: CSV.replace(b",", b"\t"), read_text),
    "text jsonl": ("a.jsonl", lambda: JSONL, read_text),
    "text parquet": ("a.parquet", lambda: parquet("text", ["one", "two"]), read_text),
    "encoder folder": ("modules.json", lambda: MODULES, read_encoder_folder),
    "encoder pooling": ("1_Pooling/config.json", lambda: POOLING, read_encoder_folder),
    "encoder plan": ("macl_encoder.json", lambda: b'{"pooling": "cls", "normalize": true}',
                     read_encoder_folder),
    **{
        f"SentEval {name}": (name, lambda name=name: SENTEVAL[name], read_senteval)  # type: ignore[misc]
        for name in FUZZED_SENTEVAL
    },
    "TU archive": ("T.zip", tu_archive, read_graphs),
    **{f"TU {name}": (name, text.encode, read_graph_part) for name, text in TU.items()},
    "SMILES csv": ("a.csv", lambda: SMILES, read_molecules),
    "SMILES gz": ("a.csv.gz", lambda: gzip.compress(SMILES, mtime=0), read_molecules),
    "SMILES smi": ("a.smi", lambda: b"CCO ethanol\nCCN\n", read_molecules),
    "SMILES parquet": ("a.parquet", lambda: parquet("smiles", ["CCO", "C"]), read_molecules),
}  # fmt: skip
NEEDS = {"TU": "torch_geometric", "SMILES": "rdkit"}


CLAIMS = [
    *(number.to_bytes(size, order) for size in (4, 8) for order in ("little", "big")
      for number in (2 ** (8 * size - 2), 2 ** (4 * size + 14), 10**9)),
    *(b"9" * digits for digits in (6, 12, 19)),
]  # fmt: skip
"""Numbers that a size in a file may be replaced by."""


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Cut short, with some bytes changed, with some put in; or something else altogether."""
    content = bytearray(whole)
    if draw(st.booleans()):
        del content[draw(st.integers(0, len(content))) :]
    for _ in range(draw(st.integers(0, 3))):
        if content:
            content[draw(st.integers(0, len(content) - 1))] = draw(st.integers(0, 255))
    place = draw(st.integers(0, len(content)))
    new = draw(st.one_of(st.just(b""), st.binary(max_size=8), st.sampled_from(CLAIMS)))
    content[place : place + (len(new) if draw(st.booleans()) else 0)] = new
    return bytes(content)


@pytest.mark.parametrize("name", READERS)
def test_anything_is_read_or_refused_in_words(name: str, tmp_path: Path) -> None:
    pytest.importorskip(NEEDS.get(name.split()[0], "torch"))
    file, build, read = READERS[name]
    whole, path = build(), tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(whole)
    read(path)  # the undamaged file is fine, and has its libraries imported

    @examples(60)
    @given(st.one_of(damaged(whole), st.binary(max_size=40)))
    def attempt(content: bytes) -> None:
        path.write_bytes(content)
        with warnings.catch_warnings(), suppress(UserError):
            warnings.simplefilter("ignore")
            read(path)

    with little_memory_and_time():
        attempt()


def test_every_image_format_is_fuzzed() -> None:
    from macl.modalities.images.decode import FORMATS

    assert {f"image {kind}" for kind in FORMATS} <= READERS.keys()
