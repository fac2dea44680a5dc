"""No file that macl reads can make it run code: a real payload, offered to every reader."""

from __future__ import annotations

import io
import pickle
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import shared
from macl import recipes
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.weights import load_weights, read_metadata
from macl.modalities.images.data import ImageDataConfig, open_images
from macl.runs import Run
from payload import Payload
from tiny import recipe


def as_pickle(payload: Any) -> bytes:
    return pickle.dumps(payload)


def as_torch(payload: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": payload}, buffer)
    return buffer.getvalue()


def as_old_torch(payload: Any) -> bytes:
    buffer = io.BytesIO()
    torch.save({"state_dict": payload}, buffer, _use_new_zipfile_serialization=False)
    return buffer.getvalue()


def as_array(payload: Any) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, np.array([payload], dtype=object), allow_pickle=True)
    return buffer.getvalue()


def as_arrays(payload: Any) -> bytes:
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        archive.writestr("images.npy", as_array(payload))
    return buffer.getvalue()


FORMS = [as_pickle, as_torch, as_old_torch, as_array, as_arrays]


def read_text(path: Path) -> object:
    from macl.modalities.text.data import TextDataConfig, load_text

    return load_text(TextDataConfig(path=str(path)), "train")


def read_graphs(path: Path) -> object:
    pytest.importorskip("torch_geometric")
    from macl.modalities.graphs.data import GraphDataConfig, load_graphs

    return load_graphs(GraphDataConfig(path=path))


def read_molecules(path: Path) -> object:
    pytest.importorskip("rdkit")
    from macl.modalities.molecules.data import MoleculeDataConfig, load_molecules

    return load_molecules(MoleculeDataConfig(path=path, cache=path.parent / "cache"))


READERS: dict[str, tuple[str, Callable[[Path], object]]] = {
    "a checkpoint": ("last.ckpt", lambda path: SafeCheckpointIO().load_checkpoint(path)),
    "weights": ("a.safetensors", lambda path: load_weights(torch.nn.Linear(1, 1), path)),
    "metadata": ("a.safetensors", read_metadata),
    "arrays": ("a.npz", lambda path: open_images(ImageDataConfig(), path)),
    "an image": ("a.png", lambda path: open_images(ImageDataConfig(), path)),
    "a recipe": ("a.yaml", lambda path: recipes.load(str(path))),
    "parquet": ("a.parquet", read_text),
    "jsonl": ("a.jsonl", read_text),
    "csv": ("a.csv", read_text),
    "lines": ("a.txt", read_text),
    "a TU archive": ("a.zip", read_graphs),
    "SMILES": ("a.csv", read_molecules),
    "SMILES in parquet": ("a.parquet", read_molecules),
}


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("reader", READERS)
def test_a_payload_is_refused_and_not_run(
    reader: str, form: Callable[[Any], bytes], tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    name, read = READERS[reader]
    path = tmp_path / name
    path.write_bytes(form(Payload(trace)))
    with pytest.raises(UserError, match=path.stem):
        read(path)
    assert not trace.exists()


def test_the_payload_would_have_run(tmp_path: Path) -> None:
    """Otherwise nothing above means anything."""
    pickle.loads(as_pickle(Payload(tmp_path / "trace")))
    assert (tmp_path / "trace").is_dir()


@pytest.mark.parametrize("form", FORMS)
def test_a_run_with_a_payload_for_weights(
    form: Callable[[Any], bytes], tmp_path: Path, trained: Run
) -> None:
    trace = tmp_path / "trace"
    weights = trained.folder / "encoder.safetensors"
    weights.write_bytes(form(Payload(trace)))
    with pytest.raises(UserError, match=r"encoder\.safetensors"):
        _ = Run.open(trained.folder).encoder
    assert not trace.exists()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Run:
    made = recipe("epochs=1", "data.limit=70", "monitor_every=0")
    return shared.trained(made, tmp_path_factory.mktemp("trained") / "run")


@pytest.mark.parametrize("form", [as_pickle, as_torch, as_old_torch])
def test_a_sentence_encoder_with_a_payload_for_weights(
    form: Callable[[Any], bytes], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    from macl.modalities.text.encoders import TextEncoderConfig
    from macl.modalities.text.folders import load_text_encoder

    config = transformers.BertConfig(
        vocab_size=8, hidden_size=8, num_hidden_layers=1, num_attention_heads=1,
        intermediate_size=8,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    words = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "b", "c")
    transformers.BertTokenizer(vocab={w: i for i, w in enumerate(words)}).save_pretrained(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "pytorch_model.bin").write_bytes(form(Payload(trace)))
    with pytest.raises(UserError, match="cannot be read as a model of transformers"):
        load_text_encoder(TextEncoderConfig(name=str(tmp_path)))
    assert not trace.exists()


@pytest.mark.parametrize("form", FORMS)
def test_an_image_encoder_with_a_payload_for_weights(
    form: Callable[[Any], bytes], tmp_path: Path
) -> None:
    transformers = pytest.importorskip("transformers")
    from macl.modalities.images.pretrained import build_huggingface

    config = transformers.ViTConfig(
        hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8,
        image_size=8, patch_size=4,
    )  # fmt: skip
    config.save_pretrained(tmp_path)
    trace = tmp_path / "trace"
    (tmp_path / "pytorch_model.bin").write_bytes(form(Payload(trace)))
    with pytest.raises(UserError, match="cannot be read as a model of transformers"):
        build_huggingface(tmp_path)
    assert not trace.exists()


def test_a_molecule_cache_with_a_payload_is_made_again(tmp_path: Path) -> None:
    pytest.importorskip("rdkit")
    pytest.importorskip("torch_geometric")
    from macl.modalities.molecules.data import MoleculeDataConfig, load_molecules

    source, cache, trace = tmp_path / "a.smi", tmp_path / "cache", tmp_path / "trace"
    source.write_text("CCO\nCCN\n")
    config = MoleculeDataConfig(path=source, cache=cache)
    load_molecules(config)
    (stored,) = cache.glob("*.safetensors")
    good = stored.read_bytes()
    for form in FORMS:
        stored.write_bytes(form(Payload(trace)))
        assert len(load_molecules(config)) == 2
        assert stored.read_bytes() == good
    assert not trace.exists()
