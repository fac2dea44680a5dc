"""Runs what must answer without heavy libraries, in one new interpreter, stage by stage.

Input: a JSON list of macl commands that have a mistake. Output: what each stage imported, by its
top-level name, and the end of each command.
"""

from __future__ import annotations

import contextlib
import io
import json
import sys


def command(*arguments: str) -> list[object]:
    """`macl ARGUMENTS`: its exit code, and what it printed."""
    from macl.cli import main

    sys.argv = ["macl", *arguments]
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
        try:
            main()
        except SystemExit as end:
            return [end.code or 0, out.getvalue()]
    return [0, out.getvalue()]


def package() -> None:
    import macl

    _ = macl.train, macl.compare, macl.UserError


def help_text() -> list[object]:
    return command("--help")


def recipes() -> None:
    from macl import modalities, recipes

    for name in ("digits", "topics", "atlas", "chembl", "clip-small"):
        recipes.load(name)
    modalities.names()


def mistakes() -> list[object]:
    return [command(*arguments) for arguments in json.load(sys.stdin)]


def torch() -> None:
    import torch  # noqa: F401


def losses() -> None:
    import torch

    from macl import MACL, diagnose

    z = torch.eye(8)
    MACL()(z, z)
    diagnose(z, z, temperature=0.5)


if __name__ == "__main__":
    found = {}
    known: set[str] = set()
    for stage in (package, help_text, recipes, mistakes, torch, losses):
        result = stage()
        loaded = {name.partition(".")[0] for name in sys.modules}
        found[stage.__name__] = {"imported": sorted(loaded - known), "result": result}
        known = loaded
    print(json.dumps(found))
