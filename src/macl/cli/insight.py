"""`macl diagnose`."""

from __future__ import annotations

from typing import Annotated

import typer

from macl.cli.arguments import MovedData, RunArgument
from macl.cli.console import escaped, message, on_terminal, table


def diagnose(
    run: RunArgument,
    data: MovedData = None,
    items: Annotated[
        int,
        typer.Option(
            min=2, help="Training items to encode; rounded to whole batches, at least one."
        ),
    ] = 1024,
) -> None:
    """Report whether a run suffers from either dilemma or collapse, and what to change."""
    from macl import api

    found = api.diagnose(run, data=data, items=items, progress=on_terminal())
    for note in found.notes:
        message(escaped(note))
    findings = [(f.name, f.verdict, f.words) for f in found.findings]
    table(f"Diagnosis of {run}", ("finding", "verdict", "explanation"), findings)
    if found.advice:
        table("Advice", ("change", "because"), [(a.change, a.reason) for a in found.advice])
    message(f"written: {escaped(str(run / 'diagnosis.json'))}")
