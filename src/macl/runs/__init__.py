"""A run is a folder: its recipe, metrics, checkpoints, encoder and results; vectors and export."""

from macl.runs.run import Run

__all__ = ["Run"]
