"""Modalities: what is encoded, how views are made, how it is judged. Loaded when asked for."""

from __future__ import annotations

import importlib
from typing import Any

from macl.core.errors import UserError, nearest
from macl.modalities.base import Modality

NAMES = ("images", "text", "graphs", "molecules")
EXTRAS = {"text": "text", "graphs": "graphs", "molecules": "molecules"}


def get(name: str) -> Modality[Any, Any, Any, Any]:
    """The modality called `name`; its libraries are imported now."""
    if name not in NAMES:
        raise UserError(f"no modality is called {name!r}.{nearest(name, NAMES)}")
    try:
        return importlib.import_module(f"macl.modalities.{name}").MODALITY
    except ModuleNotFoundError as error:
        extra = EXTRAS.get(name)
        if extra is None or (error.name or "").startswith("macl"):
            raise
        raise UserError(
            f"{name} needs {error.name}, which is not installed: pip install 'macl[{extra}]'."
        ) from error
