"""As tests/offline.py; a run folder of an earlier command of the page is written again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from offline import refuse, run


def fresh(arguments: list[str]) -> list[str]:
    """The command, with its run folder removed if a block before it made one of that name."""
    if arguments[0] == "train" and "--out" in arguments and "--resume" not in arguments:
        shutil.rmtree(arguments[arguments.index("--out") + 1], ignore_errors=True)
    return arguments


if __name__ == "__main__":
    sys.addaudithook(refuse)
    out, sys.stdout = sys.stdout, sys.stderr
    print(json.dumps([run(fresh(arguments)) for arguments in json.load(sys.stdin)]), file=out)
