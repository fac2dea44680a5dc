"""What a run tells about itself: `macl diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import RunArgument, data_override
from macl.cli.console import escaped, table, tell


def diagnose(
    run: RunArgument,
    data: Annotated[
        Path | None, typer.Option(help="Where the training data is now, if it moved.")
    ] = None,
    items: Annotated[
        int, typer.Option(min=2, help="Training items to look at; whole batches, one at least.")
    ] = 1024,
) -> None:
    """Say whether a run suffers from either dilemma or collapse, and what to change."""
    from macl.evaluation.diagnose import diagnose_run, write_diagnosis
    from macl.runs import Run

    opened = Run.open(run)
    told = diagnose_run(opened, data_override(data), items)
    for note in told.notes:
        tell(escaped(note))
    findings = [(f.name, f.verdict, f.words) for f in told.findings]
    table(f"Diagnosis of {run}", ("finding", "verdict", "in words"), findings)
    if told.advice:
        table("Advice", ("change", "because"), [(a.change, a.reason) for a in told.advice])
    tell(f"written: {escaped(str(write_diagnosis(opened, told)))}")
