"""Encoders of Hugging Face: from and to its hub when the user asks, and folders of transformers.

Folders are read without network and without running code.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from macl.core.errors import UserError
from macl.core.installed import require

HUB = "hf:"
"""How the name of an encoder on the hub begins."""
FILES = ("*.json", "*.txt", "*.model", "*.safetensors")
"""What is fetched: nothing that is executed, no pickles, no ONNX."""
SAFELY = {"local_files_only": True, "trust_remote_code": False}
"""How transformers opens a folder."""


def local_encoder(name: str, download: bool = False) -> str:
    """The folder of hf:NAME, see `fetch`; other names as they are."""
    return str(fetch(name.removeprefix(HUB), download)) if name.startswith(HUB) else name


def fetch(
    name: str, download: bool, files: Sequence[str] = FILES, allow: str = "`download=True`"
) -> Path:
    """The folder of the model OWNER/NAME in the hub's local cache, fetched with `download`.

    `files` are patterns of what is fetched; `allow` is how a user allows it.
    """
    with _explained(name, "Check the connection." if download else f"Allow fetching it: {allow}."):
        from huggingface_hub import snapshot_download

        # The patterns are given in any case: without, a cache that lacks other files is refused.
        return Path(
            snapshot_download(name, allow_patterns=list(files), local_files_only=not download)
        )


def push(folder: Path, name: str, private: bool = False) -> str:
    """Upload an exported folder as the model NAME with the hub's own login; returns its address."""
    name = name.removeprefix(HUB)
    with _explained(name, "Check the connection."):
        from huggingface_hub import HfApi

        api = HfApi()
        address = api.create_repo(name, private=private, exist_ok=True)
        api.upload_folder(
            repo_id=name, folder_path=folder, commit_message="Encoder exported by macl"
        )
        return str(address)


@contextmanager
def _explained(name: str, remedy: str) -> Iterator[None]:
    """Failures of the hub's library as `UserError`."""
    require("huggingface_hub", "text", "the hub")
    from huggingface_hub import errors

    try:
        yield
    except errors.HFValidationError as error:
        raise UserError(f"{name} is neither a folder nor a name on the hub, OWNER/NAME.") from error
    except errors.LocalTokenNotFoundError as error:
        raise UserError("log in to the hub first: `hf auth login`, or set HF_TOKEN.") from error
    except errors.LocalEntryNotFoundError as error:
        raise UserError(f"{name} is neither a folder nor in the local cache. {remedy}") from error
    except (errors.HfHubHTTPError, OSError) as error:
        raise UserError(f"{name}: the hub answers: {error}") from error


@contextmanager
def reading(folder: Path) -> Iterator[None]:
    """Quiet reading of `folder`; a `UserError` where transformers cannot read it."""
    try:
        with quiet():
            yield
    except (OSError, ValueError, KeyError, RuntimeError, UnpicklingError) as error:
        raise UserError(f"{folder} cannot be read as a model of transformers: {error}") from error


def read_network(folder: Path, config: Any, weights: bool) -> Any:
    """The network of a folder with its weights; or one built from `config` alone."""
    import torch
    from transformers import AutoModel

    from macl.core.torch_files import within

    if not weights:
        return AutoModel.from_config(config, trust_remote_code=False)
    with within(folder):
        return AutoModel.from_pretrained(folder, config=config, dtype=torch.float32, **SAFELY)


@contextmanager
def quiet() -> Iterator[None]:
    """Without the library's progress bars and its reports of weights that a network lacks."""
    from transformers.utils import logging

    verbosity, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(verbosity)
        if bars:
            logging.enable_progress_bar()
