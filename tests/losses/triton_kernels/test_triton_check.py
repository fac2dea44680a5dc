"""The self-check of the Triton kernels: its answer, what it keeps, and what it says."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("triton.language", reason="triton is not installed; its kernels cannot run")

import macl
from macl.losses.ops.triton import check

HERE = Path(__file__).parent
CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)
CONTEXTS = ("plain", "no_grad", "inference_mode", "autocast", "Function.forward",
            "Function.backward", "custom_op", "compiled custom_op")  # fmt: skip


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("cache")
    settings = {"TRITON_INTERPRET": "1", "XDG_CACHE_HOME": str(folder), "OMP_NUM_THREADS": "1"}
    settings["PYTHONPATH"] = str(Path(macl.__file__).parents[1])
    done = subprocess.run(
        [sys.executable, str(HERE / "check_contexts.py")],
        env={**os.environ, **settings},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert len(list((folder / "macl").iterdir())) == 1
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
@pytest.mark.parametrize("context", CONTEXTS)
def test_the_answer_does_not_depend_on_the_context(answers: dict[str, str], context: str) -> None:
    assert answers[context] == ""


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(check, "_reasons", {})


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """As much of torch.cuda as the check asks for; kernels are not run."""
    properties = SimpleNamespace(name="A100", major=8, minor=0, multi_processor_count=108)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13020, raising=False)


def answer(monkeypatch: pytest.MonkeyPatch, error: float) -> list[int]:
    """Let the comparison find an error; returns a list that grows with each comparison."""
    calls: list[int] = []

    def comparisons(device: torch.device) -> Iterator[tuple[str, float, float]]:
        calls.append(1)
        yield "logsumexp", error, 1e-5

    monkeypatch.setattr(check, "comparisons", comparisons)
    return calls


@pytest.mark.usefixtures("gpu")
def test_a_pass_is_kept_and_a_failure_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch, 1.0)
    with pytest.warns(UserWarning, match="logsumexp differs from plain torch by 1.0e\\+00"):
        assert check.unavailable(GPU)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # once is enough
        assert check.unavailable(GPU)
    assert len(calls) == 1
    assert not check._marker(GPU).exists()
    check._reasons.clear()  # another process, later: the cause may be gone
    calls = answer(monkeypatch, 0.0)
    assert check.unavailable(GPU) == ""
    check._reasons.clear()
    assert check.unavailable(GPU) == ""
    assert len(calls) == 1
    assert list(check._marker(GPU).parent.iterdir()) == [check._marker(GPU)]
    assert not check._marker(torch.device("cuda", 0)).exists()


@pytest.mark.usefixtures("gpu")
def test_the_key_has_device_driver_and_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    answer(monkeypatch, 0.0)
    assert check.unavailable(GPU) == ""
    before = check.key(GPU)
    for part in ("cuda:1", "A100", "sm_80", "driver 13020", torch.__version__, macl.__version__):
        assert part in before
    monkeypatch.setattr(torch._C, "_cuda_getDriverVersion", lambda: 13030)
    assert check.key(GPU) != before
    assert check.key(torch.device("cuda", 0)) != before


@pytest.mark.usefixtures("gpu")
def test_an_exception_is_the_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(device: torch.device) -> str:
        raise RuntimeError("ptxas is missing")

    monkeypatch.setattr(check, "disagreement", fails)
    with pytest.warns(UserWarning, match="RuntimeError: ptxas is missing"):
        assert "ptxas" in check.unavailable(GPU)
    assert not check._marker(GPU).exists()


@pytest.mark.usefixtures("gpu")
def test_no_check_while_a_graph_is_captured(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = answer(monkeypatch, 0.0)
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert "captured" in check.unavailable(GPU)
    assert calls == []
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    assert check.unavailable(GPU) == ""
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    assert check.unavailable(GPU) == ""


@pytest.mark.usefixtures("gpu")
def test_no_memory_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(device: torch.device) -> str:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(check, "disagreement", full)
    assert "memory" in check.unavailable(GPU)
    monkeypatch.setattr(check, "disagreement", lambda device: "")
    assert check.unavailable(GPU) == ""


@pytest.mark.usefixtures("gpu")
def test_a_cache_that_cannot_be_written_costs_a_check(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "macl").write_text("a file in place of the folder")
    answer(monkeypatch, 0.0)
    assert check.unavailable(GPU) == ""
    assert not check._marker(GPU).exists()


@pytest.mark.usefixtures("gpu")
def test_rocm_falls_back_with_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.version, "hip", "7.0")
    with pytest.warns(UserWarning, match="never ran on ROCm") as messages:
        assert check.unavailable(GPU) == check.unavailable(GPU) != ""
    assert len(messages) == 1


def test_other_devices_have_a_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.warns(UserWarning, match="never ran on xpu"):
        assert check.unavailable(torch.device("xpu", 0))
    assert "GPU" in check.unavailable(CPU)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert "8.0" in check.missing(GPU)
    monkeypatch.setattr(check.importlib.util, "find_spec", lambda name: None)
    assert "not installed" in check.missing(GPU)
