"""What the packages of macl[train] are, and what to say where one is missing."""

from __future__ import annotations

import functools
from collections.abc import Callable
from importlib.util import find_spec
from typing import ParamSpec, TypeVar

from macl.core.errors import UserError

P = ParamSpec("P")
T = TypeVar("T")

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


def missing_package(error: ModuleNotFoundError) -> str | None:
    """The package of macl[train] that an import missed; None where it missed something else."""
    package = (error.name or "").partition(".")[0]
    return package if package in REQUIRED else None


def require(package: str, extra: str, what: str = "this") -> None:
    """`UserError` that says what to install for `what`, unless a package of an extra is there."""
    if find_spec(package) is None:
        raise UserError(f"{what} needs {package}: pip install 'macl[{extra}]'")


def needs_training_packages(function: Callable[P, T]) -> Callable[P, T]:
    """The function, with a `UserError` that says what to install in place of a failed import."""

    @functools.wraps(function)
    def checked(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return function(*args, **kwargs)
        except ModuleNotFoundError as error:
            package = missing_package(error)
            if package is None:
                raise
            raise UserError(f"macl.{function.__name__} needs {package}: {INSTALL}") from error

    return checked
