"""Every command as a function: keyword arguments in, objects out, silent unless `progress=True`.

    import macl

    run = macl.train("digits", loss="dcl", epochs=5)
    run.evaluate()

`import macl.api` loads no torch. The functions that train import it when the recipe was checked;
those that need an encoder are in modules that are loaded when they are asked for.
"""

import importlib
from typing import TYPE_CHECKING, Any

# ruff: noqa: E402  where a package is missing, the first line says what to install
from macl.core.installed import require_training_packages

require_training_packages("the functions of macl.api")

from macl.api.adaptation import adapt
from macl.api.experiments import compare, reproduce, run_comparison, run_reproduction
from macl.api.training import list_recipes, resolve, train

if TYPE_CHECKING:
    from macl.api.atlas import add_map
    from macl.api.encoders import diagnose, evaluate, export, report
    from macl.api.mining import mine
    from macl.api.tuning import tune
    from macl.api.vectors import embed, embed_parts, index, search

__all__ = [
    "adapt", "add_map", "compare", "diagnose", "embed", "embed_parts", "evaluate", "export",
    "index", "list_recipes", "mine", "report", "reproduce", "resolve", "run_comparison",
    "run_reproduction", "search", "train", "tune",
]  # fmt: skip

_LATER = {
    **dict.fromkeys(("diagnose", "evaluate", "export", "report"), "encoders"),
    **dict.fromkeys(("embed", "embed_parts", "index", "search"), "vectors"),
    "add_map": "atlas",
    "mine": "mining",
    "tune": "tuning",
}
"""The module of each function that is loaded when it is asked for."""


def __getattr__(name: str) -> Any:
    if name not in _LATER:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"macl.api.{_LATER[name]}"), name)
