"""The command line: parse, call, print. Each command imports what it needs, when it runs."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from macl.cli.application import app

__all__ = ["app", "main"]

INSTALL = "pip install 'macl[train]'"
"""What installs the packages that the commands need."""


def __getattr__(name: str) -> Any:
    if name == "app":
        from macl.cli.application import app

        return app
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def main() -> None:
    """Run a command; a mistake in the input is reported without traceback.

    The base package holds the losses and needs torch alone. Without the packages of macl[train] a
    command says what to install.
    """
    from macl.core.errors import UserError

    try:
        from macl.cli.application import app, print_error, show_warnings_as_messages

        show_warnings_as_messages()
        try:
            app()
        except UserError as error:
            print_error(str(error))
            sys.exit(2)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in REQUIRED:
            raise
        print(f"error: the commands of macl need {package}: {INSTALL}", file=sys.stderr)
        sys.exit(2)


REQUIRED = frozenset(
    {
        *("jinja2", "lightning", "markupsafe", "matplotlib", "numpy", "packaging", "pandas", "PIL"),
        *("platformdirs", "pyarrow", "pydantic", "rich", "safetensors", "scipy", "sklearn"),
        *("tensorboard", "torch", "torchvision", "typer", "typing_extensions", "yaml"),
    }
)
"""The modules of macl[train]."""
