"""Runs macl commands one after the other, each in a process of its own, importing only once.

Input: a JSON list of {"arguments": […], "environment": {…}}; output: {"code": …, "stderr": …} each.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile

import macl.training.fit  # noqa: F401  the slow import, before the fork
from macl.cli import main

results = []
for command in json.load(sys.stdin):
    with tempfile.TemporaryFile("w+") as errors:
        child = os.fork()
        if child == 0:
            os.dup2(errors.fileno(), 2)
            os.dup2(2, 1)
            os.environ.update(command["environment"])
            sys.argv = ["macl", *command["arguments"]]
            main()
            sys.exit(0)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        errors.seek(0)
        results.append({"code": code, "stderr": errors.read()})
print(json.dumps(results))
