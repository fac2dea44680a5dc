"""Small files do not fill the memory or the day: each is refused by name, with its limit."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from hostile_files import FILES

from macl.core import limits
from macl.core.errors import UserError
from macl.core.torch_files import load_torch, within
from tiny import python

HERE = Path(__file__).parent
NEEDS = {"smiles": "rdkit", "bert": "transformers"}


@pytest.mark.slow
def test_every_command_refuses_small_files_in_little_memory(tmp_path: Path) -> None:
    missing = [word for word, library in NEEDS.items() if find_spec(library) is None]
    names = [name for name in FILES if not any(word in name for word in missing)]
    done = python("security/read_hostile.py", tmp_path, *names)
    assert done.returncode == 0, done.stderr
    found = dict(line.split(": ", 1) for line in done.stdout.splitlines())
    assert {key.split(",")[0] for key in found} == set(names)
    wrong = {key: text for key, text in found.items() if not text.startswith(("refused: ", "read"))}
    assert not wrong
    # One molecule is left out and counted; a page says why it has no map.
    read = {key for key, text in found.items() if text == "read"}
    assert {key for key in read if "smiles" not in key and "report" not in key} == set()
    sizes = [path.stat().st_size for path in tmp_path.rglob("*") if path.is_file()]
    assert max(sizes) < 12_000_000


def test_a_limit_is_named_and_can_be_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UserError, match=r"x: 101 is above the limit of 100 .*MACL_LIMIT_DEPTH=101"):
        limits.check_limit("depth", 101, "x")
    monkeypatch.setenv("MACL_LIMIT_DEPTH", "101")
    limits.check_limit("depth", 101, "x")
    monkeypatch.setenv("MACL_LIMIT_DEPTH", "many")
    with pytest.raises(UserError, match="whole number"):
        limits.check_limit("depth", 1, "x")


def test_every_limit_is_documented() -> None:
    page = (HERE.parents[1] / "SECURITY.md").read_text()
    for name, value in limits.LIMITS.items():
        assert f"| `{name}` | {value:,} |" in page


def test_ordinary_checkpoints_are_read(tmp_path: Path) -> None:
    weight = torch.randn(4, 3)
    state = {
        "w": weight,
        "tied": weight,
        "transposed": weight.T,
        "n": 3,
        "list": [1, (2, {"a": 3})],
    }
    for zipped in (True, False):
        torch.save(state, tmp_path / "a.pth", _use_new_zipfile_serialization=zipped)
        found = load_torch(tmp_path / "a.pth")
        assert torch.equal(found["transposed"], weight.T)
        assert found["list"] == state["list"]


def test_a_network_that_fits_its_weights_is_built(tmp_path: Path) -> None:
    (tmp_path / "weights").write_bytes(b"\0" * 4)
    with within(tmp_path / "weights"):
        assert torch.nn.Linear(1000, 1000).weight.numel() == 10**6
        with pytest.raises(UserError, match=r"has 4 bytes.*numbers.*MACL_LIMIT_NUMBERS"):
            torch.nn.Linear(10_000, 10_000)
