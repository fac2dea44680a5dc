"""The fuzz tests with new examples, many times as many as in the suite.

    python tests/long/fuzz.py [--times 20]

Losses, recipes and overrides, and every file reader: a value, or an error in words.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--times", type=int, default=20)
    times = parser.parse_args().times
    files = sorted(map(str, Path(__file__).parents[1].glob("test_fuzz_*.py")))
    command = [sys.executable, "-m", "pytest", *files]
    sys.exit(subprocess.call(command, env={**os.environ, "FUZZ_TIMES": str(times)}))


if __name__ == "__main__":
    main()
