"""The command line: parse, call, print. Each command imports torch when it runs."""

from __future__ import annotations

import sys


def main() -> None:
    """Run a command; a mistake in the input is reported without traceback."""
    from macl.core.errors import UserError
    from macl.core.installed import require_training_packages
    from macl.core.signals import Interrupted

    try:
        try:
            require_training_packages("the commands of macl")
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            sys.exit(2)
        from macl.cli.application import app
        from macl.cli.console import message, print_labeled, show_warnings_as_messages
        from macl.cli.flags import with_flags

        show_warnings_as_messages()
        app()
    except UserError as error:
        print_labeled(with_flags(str(error)), "[bold red]error[/]: ")
        sys.exit(2)
    except Interrupted as stop:
        message(f"stopped by {stop}; the same command continues")
        sys.exit(130)
    except KeyboardInterrupt:  # training handles it itself; here something is still being loaded
        print("interrupted", file=sys.stderr)
        sys.exit(130)
