"""A run is a folder: its recipe, metrics, checkpoints, encoder and results; vectors and export."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macl.runs.run import Run

__all__ = ["Run"]


def __getattr__(name: str) -> Any:
    if name == "Run":  # when it is asked for: it imports torch
        from macl.runs.run import Run

        return Run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
