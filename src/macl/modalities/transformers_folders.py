"""Folders of the library transformers, read without network and without running code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch

from macl.core.errors import UserError
from macl.core.torch_files import within

SAFELY = {"local_files_only": True, "trust_remote_code": False}
"""How transformers opens a folder."""


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
    from transformers import AutoModel

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
