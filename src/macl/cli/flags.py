"""Messages of the functions below, which name Python arguments, with the flags of the commands.

A message writes arguments as `out=`, `resume=True` or `seeds=3` and calls as `macl.train("run",
resume=True)`, within backticks: here they become --out, --resume, --seeds 3 and `macl train run
--resume`.
"""

from __future__ import annotations

import ast
import re
import shlex

SAME = (
    *("allow_imports", "confirm", "control", "criterion", "data", "devices", "download", "dtype"),
    *("engine", "executor", "jobs", "kind", "metrics", "nodes", "onnx", "out", "overwrite"),
    *("part_items", "parts", "points", "projection", "resume", "seeds", "store", "trials"),
    *("vary", "where"),
)
OPTIONS = {"layouts": "layout", "protocols": "protocol"}
OPTIONS |= {name: name.replace("_", "-") for name in SAME}
"""Arguments of the functions of `macl.api` → flags."""


def with_flags(text: str) -> str:
    """The message with flags in place of Python arguments, and commands in place of calls."""
    return re.sub(r"`([^`\n]+)`", lambda match: _in_shell(match[1]) or match[0], text)


def _in_shell(code: str) -> str | None:
    """What a user of the command line writes; None where `code` is something else."""
    name, equals, value = code.partition("=")
    if equals and name in OPTIONS:
        return _flag(name, value)
    if not code.startswith("macl."):
        return None
    try:
        call = ast.parse(code, mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call) or not isinstance(call.func, ast.Attribute):
        return None
    words = [shlex.quote(_value(argument)) for argument in call.args]
    words += [_flag(k.arg, ast.unparse(k.value)) for k in call.keywords if k.arg in OPTIONS]
    return f"`{' '.join(['macl', call.func.attr, *words])}`"


def _flag(name: str, value: str) -> str:
    flag = OPTIONS[name]
    if value in ("", "True", "False"):
        return f"--no-{flag}" if value == "False" else f"--{flag}"
    return f"--{flag} {shlex.quote(_literal(value))}"


def _literal(value: str) -> str:
    """A quoted string without its quotes; other values as they are."""
    try:
        return _value(ast.parse(value, mode="eval").body)
    except SyntaxError:
        return value


def _value(node: ast.expr) -> str:
    return str(node.value) if isinstance(node, ast.Constant) else ast.unparse(node)
