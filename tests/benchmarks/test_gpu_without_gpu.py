"""benchmarks/gpu.py on a machine without a GPU: a message, and no page is written."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton", reason="triton is not installed; the benchmark imports it")

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "gpu.py"


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU, which would be measured")
def test_it_says_that_there_is_no_gpu(tmp_path: Path) -> None:
    page = tmp_path / "gpu.md"
    done = subprocess.run(
        [sys.executable, str(SCRIPT), "--output", str(page)], capture_output=True, text=True
    )
    assert done.returncode == 1
    assert "There is no GPU here. --compile-only" in done.stderr
    assert not page.exists()
