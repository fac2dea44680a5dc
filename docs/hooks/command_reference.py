"""The reference of the command line, from the command line itself."""

from __future__ import annotations

import re
from typing import Any

import typer

from macl.cli.application import app


def reference() -> str:
    """Markdown: every command with its arguments and options."""
    group: Any = typer.main.get_command(app)
    parts = []
    for name, command in sorted(group.commands.items()):
        context = command.make_context(name, [], resilient_parsing=True)
        words = " ".join(command.collect_usage_pieces(context))
        parts += [
            f"## macl {name}",
            "",
            f"`macl {name} {words}`",
            "",
            _plain(command.help or ""),
            "",
        ]
        rows = [
            _row(parameter)
            for parameter in command.params
            if not getattr(parameter, "hidden", False)
        ]
        if rows:
            parts += ["| argument | what it is | default |", "|---|---|---|", *rows, ""]
    return "\n".join(parts)


def _row(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = f"`{parameter.metavar or parameter.name.upper()}`"
    else:
        name = ", ".join(f"`{each}`" for each in (*parameter.opts, *parameter.secondary_opts))
    default = parameter.default
    shown = "" if default in (None, False, (), []) or callable(default) else f"`{default}`"
    return f"| {name} | {_plain(getattr(parameter, 'help', '') or '')} | {shown} |"


def _plain(text: str) -> str:
    """Help text without the terminal's markup."""
    text = re.sub(r"\[/?[a-z ]+\]", "", text)
    return text.replace("|", "\\|").replace("\b", "").strip()
