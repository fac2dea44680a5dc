"""An object whose unpickling leaves a trace."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


class Payload:
    """Unpickling this makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.folder),)
