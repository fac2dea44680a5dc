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
    *("engine", "executor", "holdout", "jobs", "kind", "labels", "metrics", "modality", "nodes"),
    *("onnx", "out", "overwrite", "part_items", "parts", "points", "projection", "resume"),
    *("seeds", "store", "trials", "vary", "where"),
)
OPTIONS = {"layouts": "layout", "protocols": "protocol"}
OPTIONS |= {name: name.replace("_", "-") for name in SAME}
"""Arguments of the functions of `macl.api` → flags."""


def with_flags(text: str) -> str:
    """The message with flags in place of Python arguments, and commands in place of calls."""
    text = re.sub(r"`(\w+)=([^`\n]*)`", lambda m: _flag(m[1], m[2]) or m[0], text)
    return re.sub(r"`macl\.(\w+)(\([^`\n]*\))`", lambda m: _command(m[1], m[2]) or m[0], text)


def _command(name: str, arguments: str) -> str | None:
    """What a user of the command line writes for a call; None where it is something else."""
    try:
        call = ast.parse(f"macl{arguments}", mode="eval").body
    except SyntaxError:
        return None
    if not isinstance(call, ast.Call):
        return None
    words = [_word(ast.unparse(argument)) for argument in call.args]
    flags = [_flag(each.arg or "", ast.unparse(each.value)) for each in call.keywords]
    return f"`{' '.join(['macl', name, *words, *filter(None, flags)])}`"


def _flag(name: str, value: str) -> str | None:
    flag = OPTIONS.get(name)
    if flag is None:
        return None
    if value in ("", "True", "False"):
        return f"--no-{flag}" if value == "False" else f"--{flag}"
    return f"--{flag} {_word(value)}"


def _word(value: str) -> str:
    """A value as one word of the shell, without the quotes of a Python string."""
    try:
        return shlex.quote(str(ast.literal_eval(value)))
    except (SyntaxError, ValueError):
        return shlex.quote(value)
