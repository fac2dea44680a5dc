"""What `make demo` runs prints a result that means something, and a second call uses it again."""

from __future__ import annotations

import importlib.util
import runpy
from pathlib import Path

import pytest

from macl.core.signals import Interrupted

FILE = Path(__file__).parents[2] / "examples" / "demo.py"


def test_the_demo_shows_before_and_after(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    spec = importlib.util.spec_from_file_location("demo", FILE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    small = {"epochs": 1, "data.limit": 200, "encoder.width": 8, "evaluation.linear.epochs": 2}
    scores = module.demo(tmp_path, **small)
    shown = capsys.readouterr().out
    assert "before   after" in shown
    for before, after in scores.values():
        assert f"{before:8.1f}{after:8.1f}" in shown
    assert "200 images without any label" in shown
    assert "τ = " in shown
    assert "W̄ = " in shown
    assert (tmp_path / "report.html").is_file()
    assert str(tmp_path / "report.html") in shown
    assert "macl compare digits" in shown
    assert module.demo(tmp_path, **small) == scores
    assert "using the trained encoder" in capsys.readouterr().out


def test_ctrl_c_in_the_demo_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object, **__: object) -> None:
        raise Interrupted("SIGINT")

    monkeypatch.setattr("macl.train", stop)
    with pytest.raises(SystemExit, match="the same command continues"):
        runpy.run_path(str(FILE), run_name="__main__")
