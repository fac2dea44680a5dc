"""Every command as a function: keyword arguments in, objects out, silent unless `progress=True`.

    import macl

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()

A function imports what it needs when it is called, after the recipe and its overrides were
checked: a mistake in them is reported before torch is loaded.
"""

from macl.api.encoders import diagnose, embed, evaluate, export, report, search
from macl.api.experiments import compare, reproduce, run_comparison, run_reproduction
from macl.api.training import list_recipes, resolve, train

__all__ = [
    "compare",
    "diagnose",
    "embed",
    "evaluate",
    "export",
    "list_recipes",
    "report",
    "reproduce",
    "resolve",
    "run_comparison",
    "run_reproduction",
    "search",
    "train",
]
