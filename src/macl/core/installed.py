"""What the packages of macl[train] are, and what to say where one is missing."""

from __future__ import annotations

from importlib.util import find_spec

from macl.core.errors import UserError

INSTALL = "pip install 'macl[train]'"
"""What installs the packages that the commands and the functions of `macl.api` need."""

REQUIRED = frozenset(
    {
        *("jinja2", "lightning", "markupsafe", "matplotlib", "numpy", "packaging", "pandas", "PIL"),
        *("platformdirs", "pyarrow", "pydantic", "rich", "safetensors", "scipy", "sklearn"),
        *("tensorboard", "torch", "torchvision", "typer", "typing_extensions", "yaml"),
    }
)
"""The modules of macl[train]."""


def require_training_packages(what: str) -> None:
    """`UserError` that says what to install for `what`, if a package of macl[train] is missing.

    The base package holds the losses and needs torch and numpy alone.
    """
    for package in sorted(REQUIRED):
        if find_spec(package) is None:
            raise UserError(f"{what} need {package}: {INSTALL}")


def require(package: str, extra: str, what: str = "this") -> None:
    """`UserError` that says what to install for `what`, unless a package of an extra is there."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs {package}: pip install 'macl[{extra}]'")
