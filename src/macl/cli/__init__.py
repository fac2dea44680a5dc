"""The command line: parse, call, print. Each command imports torch when it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; a mistake in the input is reported without traceback.

    The base package holds the losses and needs torch alone. Without the packages of macl[train] a
    command says what to install.
    """
    from macl.core.errors import UserError
    from macl.core.installed import INSTALL, missing_package
    from macl.core.signals import Interrupted

    try:
        from macl.cli.application import app
        from macl.cli.console import message, print_labeled, show_warnings_as_messages
        from macl.cli.flags import with_flags

        show_warnings_as_messages()
        try:
            app()
        except UserError as error:
            print_labeled(with_flags(str(error)), "[bold red]error[/]: ")
            sys.exit(2)
        except Interrupted as stop:
            message(f"stopped by {stop}; the same command continues")
            sys.exit(130)
    except ModuleNotFoundError as error:
        package = missing_package(error)
        if package is None:
            raise
        print(f"error: the commands of macl need {package}: {INSTALL}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:  # training handles it itself; here something is still being loaded
        print("interrupted", file=sys.stderr)
        sys.exit(130)
