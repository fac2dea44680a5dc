"""The objects that the functions of `macl.api` return."""

from __future__ import annotations

from macl import runs
from macl.api import encoders, vectors
from macl.runs.index import Index, Match
from macl.runs.vectors import Vectors

__all__ = ["Index", "Match", "Run", "Vectors"]


class Run(runs.Run):
    """A run folder; the functions of `macl.api` that take a run are its methods.

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()
    run.embed("pictures/").save("vectors.parquet")
    """

    evaluate = encoders.evaluate
    embed = vectors.embed  # type: ignore[assignment]
    search = vectors.search
    export = encoders.export
    diagnose = encoders.diagnose
    report = encoders.report
