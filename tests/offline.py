"""Runs a Python script in which every attempt to reach a network fails, and is told on stderr.

python offline.py SCRIPT [ARGUMENT …]
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from typing import Any

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


if __name__ == "__main__":
    sys.addaudithook(refuse)
    sys.argv = sys.argv[1:]
    sys.path[0] = os.path.dirname(os.path.abspath(sys.argv[0]))
    runpy.run_path(sys.argv[0], run_name="__main__")
