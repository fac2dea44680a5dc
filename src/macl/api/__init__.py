"""Every command as a function: keyword arguments in, objects out, silent unless `progress=True`.

    import macl

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()

A function imports what it needs when it is called, after the recipe and its overrides were
checked: a mistake in them is reported before torch is loaded.
"""

# ruff: noqa: E402  where a package is missing, the first line says what to install
from macl.core.installed import require_training_packages

require_training_packages()

from macl.api.adaptation import adapt
from macl.api.atlas import add_map
from macl.api.encoders import diagnose, evaluate, export, report
from macl.api.experiments import compare, reproduce, run_comparison, run_reproduction
from macl.api.mining import mine
from macl.api.training import list_recipes, resolve, train
from macl.api.tuning import tune
from macl.api.vectors import embed, embed_parts, index, search

__all__ = [
    "adapt",
    "add_map",
    "compare",
    "diagnose",
    "embed",
    "embed_parts",
    "evaluate",
    "export",
    "index",
    "list_recipes",
    "mine",
    "report",
    "reproduce",
    "resolve",
    "run_comparison",
    "run_reproduction",
    "search",
    "train",
    "tune",
]
