"""Modalities: what is encoded, how views are made, how it is evaluated. Loaded when asked for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from macl.core import plugins

if TYPE_CHECKING:
    from macl.modalities.base import Modality


def names() -> list[str]:
    """The modalities that are installed, other packages' included."""
    return plugins.names("macl.modalities")


def get(name: str) -> Modality:
    """The modality called `name`; its libraries are imported now."""
    modality: Modality = plugins.load("macl.modalities", name)
    return modality
