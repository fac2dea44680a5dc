"""Scripts in processes of their own, without the seconds that torch and lightning take to import.

They are forked from multiprocessing's fork server, one for each process of pytest, which has only
imported: see conftest.py. A script finds its arguments, variables, folder and streams as in a new
interpreter.
"""

from __future__ import annotations

import multiprocessing
import os
import runpy
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path

PRELOADED = ["macl.training.fit"]
SERVER = multiprocessing.get_context("forkserver")


class Forked:
    """A running script, by its path from this folder."""

    def __init__(
        self,
        script: str | Path,
        *arguments: str | Path,
        environment: Mapping[str, str],
        folder: Path | None = None,
        input: str = "",
    ) -> None:
        self.command = [str(Path(__file__).parent / script), *map(str, arguments)]
        self._place = tempfile.TemporaryDirectory()
        self._streams = [Path(self._place.name) / name for name in ("in", "out", "err")]
        for path, text in zip(self._streams, (input, "", ""), strict=True):
            path.write_text(text, encoding="utf-8")
        where = str(folder or Path.cwd())
        given = (self.command, dict(environment), where, [*map(str, self._streams)])
        self._process = SERVER.Process(target=_run, args=given)
        self._process.start()

    def wait(self, seconds: float = 300) -> subprocess.CompletedProcess[str]:
        """How it ended; a negative code is the signal that ended it."""
        self._process.join(seconds)
        code = self._process.exitcode
        if code is None:
            self.kill()
            raise subprocess.TimeoutExpired(self.command, seconds)
        out, err = (path.read_text(encoding="utf-8") for path in self._streams[1:])
        self._place.cleanup()
        return subprocess.CompletedProcess(self.command, code, out, err)

    def kill(self) -> None:
        """End it at once."""
        self._process.kill()
        self._process.join()
        self._place.cleanup()


def _run(command: list[str], variables: dict[str, str], folder: str, streams: list[str]) -> None:
    import torch

    torch.set_num_threads(1)  # the variable for it is read when torch is imported
    for number, path in enumerate(streams):
        os.dup2(os.open(path, os.O_RDWR | os.O_APPEND), number)
    sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)  # multiprocessing has closed it
    os.environ.clear()
    os.environ.update(variables)
    os.chdir(folder)
    sys.argv = command
    runpy.run_path(command[0], run_name="__main__")
