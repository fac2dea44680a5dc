"""Runs macl commands one after the other where every attempt to reach a network fails.

Input: a JSON list of argument lists; output: a JSON list of exit codes, 2 for a mistake told in
words. What was tried to reach a network, and everything else that is told, goes to stderr.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import traceback
from typing import Any

from macl.cli.application import app
from macl.core.errors import UserError

NETWORK = ("socket.connect", "socket.getaddrinfo", "socket.gethostbyname", "socket.sendto")


def refuse(event: str, arguments: tuple[Any, ...]) -> None:
    """An audit hook: Python tells it of everything before it happens."""
    if event not in NETWORK:
        return
    # A socket of the file system stays on this machine; processes talk to each other over it.
    if event == "socket.connect" and arguments[0].family == socket.AF_UNIX:
        return
    os.write(2, f"NETWORK: {event} {arguments[1:]}\n".encode())
    raise OSError(f"no network here: {event}")


def run(arguments: list[str]) -> int:
    """One command; returns its exit code."""
    try:
        app(arguments, standalone_mode=False)
    except UserError as error:
        print(error, file=sys.stderr)
        return 2
    except BaseException:
        traceback.print_exc()
        return 1
    return 0


if __name__ == "__main__":
    sys.addaudithook(refuse)
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps([run(arguments) for arguments in json.load(sys.stdin)]), file=out)
