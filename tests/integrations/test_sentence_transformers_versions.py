"""The wrappers with the oldest version of sentence-transformers that the extras allow.

The newest one is in `constraints.txt`, with which every other test runs.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import macl

pytest.importorskip("sentence_transformers", reason="needs the extra 'text'")
HERE = Path(__file__).parent
FILES = ("test_sentence_transformers.py", "test_sentence_transformers_batches.py")


def oldest_version() -> str:
    """The lower bound in every extra that names the library."""
    project = tomllib.loads((HERE.parents[1] / "pyproject.toml").read_text(encoding="utf-8"))
    extras = project["project"]["optional-dependencies"].values()
    named = [each for extra in extras for each in extra if "sentence-transformers" in each]
    bounds = {each.partition(">=")[2] for each in named}
    assert len(bounds) == 1, named
    return f"{bounds.pop()}.0.0"


@pytest.mark.slow
def test_the_oldest_version_passes_the_tests_of_the_newest(tmp_path: Path) -> None:
    """Its own files alone are exchanged; torch and transformers stay."""
    version = oldest_version()
    wanted = ["--no-deps", "--target", str(tmp_path), f"sentence-transformers=={version}"]
    install = [sys.executable, "-m", "pip", "install", "--quiet", *wanted]
    done = subprocess.run(install, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"sentence-transformers {version} cannot be installed: is there a network?")
    ours = Path(macl.__file__).parents[1]
    path = os.pathsep.join([str(tmp_path), str(ours), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow"]
    command += ["-W", "ignore::DeprecationWarning", *(str(HERE / file) for file in FILES)]
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
    assert (tmp_path / f"sentence_transformers-{version}.dist-info").is_dir()
