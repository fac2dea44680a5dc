"""What is declared is what is imported, and the light part needs torch and numpy alone."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

import shared

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "macl"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

LIGHT = ("__init__", "losses", "distributed", "geometry", "diagnosis", "integrations")
"""What the base dependencies must suffice for. `__main__` and `cli` say what to install."""

EXTRAS = {
    "integrations": ["integrations"],
    "modalities/images": ["timm", "text"],
    "modalities/images/detection": ["detection"],
    "modalities": ["shards", "adapt"],
    "modalities/text": ["text"],
    "modalities/image_text": ["text", "shards"],
    "modalities/graphs": ["graphs"],
    "modalities/molecules": ["molecules"],
    "training": ["wandb", "mlflow"],
    "runs": ["onnx", "text"],
    "runs/engines": ["search"],
    "experiments": ["cluster", "tune"],
    "core": ["remote"],
    "reporting": ["viz", "graphs", "molecules"],
}
"""Extras that a folder may import from, beside `train`."""

COMES_WITH_TORCH = {"triton"}
"""Where torch is built for CUDA; without it, plain torch is used."""


@cache
def owners() -> dict[str, set[str]]:
    """Top-level module → the installed distributions that contain it."""
    found = packages_distributions().items()
    return {module: set(map(canonicalize_name, names)) for module, names in found}


def declared(*extras: str) -> set[str]:
    """Distributions that the base and these extras name, those of extras that they include too."""
    found: set[str] = set()
    texts = list(PROJECT["dependencies"])
    for extra in extras:
        texts += PROJECT["optional-dependencies"][extra]
    for requirement in map(Requirement, texts):
        if requirement.name == "macl":
            found |= declared(*requirement.extras)
        else:
            found.add(canonicalize_name(requirement.name))
    return found


def runtime_imports(tree: ast.AST) -> Iterator[str]:
    """Top-level names of imported packages, without those for the type checker alone."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level and node.module:
            yield node.module.partition(".")[0]
        yield from runtime_imports(node)


def undeclared(file: Path) -> list[str]:
    path = file.relative_to(SOURCE).as_posix()
    light = path.removesuffix(".py").partition("/")[0] in LIGHT
    extras = [] if light else ["train"]
    for folder, more in EXTRAS.items():
        if path.startswith(f"{folder}/"):
            extras += more
    allowed = declared(*extras)
    third_party = set(runtime_imports(ast.parse(file.read_text(encoding="utf-8"))))
    third_party -= {"macl", *sys.stdlib_module_names, *COMES_WITH_TORCH}
    return [
        f"{path}: {name}"
        for name in sorted(third_party)
        if not owners().get(name, {canonicalize_name(name)}) & allowed
    ]


def test_every_import_is_declared() -> None:
    files = sorted(SOURCE.rglob("*.py"))
    assert len(files) > 50
    assert [problem for file in files for problem in undeclared(file)] == []


def test_base_dependencies_are_torch_and_numpy() -> None:
    assert declared() == {"torch", "numpy"}


def test_an_undeclared_import_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(PROJECT, "dependencies", ["torch"])
    assert undeclared(SOURCE / "runs" / "vectors.py") == ["runs/vectors.py: numpy"]


# --- the wheel, where nothing but torch and numpy can be imported


def closure(*names: str) -> list[str]:
    """These distributions and what they require, as far as it is installed."""
    found: dict[str, None] = {}
    waiting = list(names)
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name in found:
            continue
        found[name] = None
        try:
            listed = requires(name) or []
        except ModuleNotFoundError:
            continue
        waiting += [
            requirement.name
            for requirement in map(Requirement, listed)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
        ]
    return list(found)


def importable(*distributions: str) -> list[str]:
    """Top-level modules that these distributions and their dependencies install."""
    allowed = set(closure(*distributions))
    return sorted(module for module, names in owners().items() if names & allowed)


@pytest.fixture(scope="module")
def installed() -> Path:
    """The wheel of this source tree, in a folder of its own."""
    pytest.importorskip("build", reason="needs build")
    return shared.installed()


HOOK = """
import sys
from importlib.machinery import BuiltinImporter, FrozenImporter, PathFinder

class Only(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        top = name.partition(".")[0]
        standard = top in sys.stdlib_module_names or top.startswith("_sysconfigdata")
        known = standard or top in ALLOWED
        return super().find_spec(name, path, target) if known else None

sys.meta_path[:] = [BuiltinImporter, FrozenImporter, Only]
sys.path.insert(0, TARGET)
import macl
assert macl.__file__.startswith(TARGET), macl.__file__
"""


def run_light(installed: Path, code: str, *more: str) -> subprocess.CompletedProcess[str]:
    """Run `code` where macl is the installed one and only torch, numpy and `more` are found."""
    allowed = {"macl", *importable("torch", "numpy", *more)}
    assert "lightning" not in allowed, "the hook would let too much through"
    head = f"ALLOWED = {sorted(allowed)!r}\nTARGET = {str(installed)!r}\n"
    return subprocess.run(
        # -I: neither PYTHONPATH nor the working folder, where the source tree may be.
        [sys.executable, "-I", "-c", head + HOOK + code],
        capture_output=True,
        text=True,
        cwd=installed,
    )


USE_EVERYTHING = """
import inspect, torch, macl
from macl import geometry, distributed, losses
from macl.losses.temperature import Temperature

z1, z2 = (torch.randn(8, 4, requires_grad=True) for _ in range(2))
tried = []
for name in losses.__all__:
    kind = getattr(macl, name, None) or getattr(losses, name)
    if not (inspect.isclass(kind) and issubclass(kind, macl.ContrastiveLoss)):
        continue
    required = [p for p in inspect.signature(kind).parameters.values()
                if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
    if required or kind is macl.ContrastiveLoss:
        continue
    criterion = kind(size=8) if "size" in inspect.signature(kind).parameters else kind()
    own = {"indices": torch.arange(8)} if kind.takes_indices else {}
    criterion(z1, z2, **own).backward()
    tried.append(name)
assert set("MACL NTXent InfoNCE DCL DCLW FlatNCE DualTemperature HCL".split()) <= set(tried)
kinds = [macl.Fixed(0.1), macl.AlignmentAdaptive(0.1), macl.Learned(0.1), macl.Cosine(0.1, 0.5, 10)]
for kind in kinds:
    assert isinstance(kind, Temperature)
    macl.NTXent(temperature=kind)(z1, z2).backward()
labels = torch.arange(8) % 2
assert geometry.uniformity(z1).isfinite() and geometry.tolerance(z1, labels).isfinite()
assert geometry.effective_rank(z1).isfinite()
print(macl.diagnose(torch.randn(64, 16), torch.randn(64, 16)))
import importlib
for name in ("pytorch_metric_learning", "sentence_transformers"):
    try:
        importlib.import_module(f"macl.integrations.{name}")
    except ImportError as error:
        assert "pip install" in str(error), error
    else:
        raise AssertionError(f"{name} is here, so this shows nothing")
print(macl.__version__)
"""


def test_the_light_part_runs_with_torch_and_numpy_alone(installed: Path) -> None:
    """And an integration without its library says what to install."""
    done = run_light(installed, USE_EVERYTHING)
    assert done.returncode == 0, done.stderr
    version = re.search(r'__version__ = "(.*)"', (SOURCE / "__init__.py").read_text())
    assert version is not None
    assert done.stdout.splitlines()[-1] == version[1]
    (metadata,) = installed.glob("macl-*.dist-info/METADATA")
    assert f"Version: {version[1]}\n" in metadata.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("name", "use"),
    [
        pytest.param(
            "pytorch-metric-learning",
            """
import torch, macl
from macl.integrations.pytorch_metric_learning import ContrastiveLoss
z = torch.randn(8, 4, requires_grad=True)
ContrastiveLoss(macl.MACL())(z, torch.arange(8) // 2).backward()
""",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "sentence-transformers",
            "from macl.integrations.sentence_transformers import LogContrast, MACLLoss",
            marks=pytest.mark.slow,
        ),
    ],
    ids=["pytorch-metric-learning", "sentence-transformers"],
)
def test_an_integration_needs_no_more_than_its_library(
    name: str, use: str, installed: Path
) -> None:
    pytest.importorskip(name.replace("-", "_"), reason=f"needs {name}")
    # The extra [train] of sentence-transformers.
    more = ["datasets", "accelerate"] if name == "sentence-transformers" else []
    done = run_light(installed, use, name, *more)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("command", [["train", "digits"], []], ids=["train", "nothing"])
def test_commands_without_their_extra_say_what_to_install(
    command: list[str], installed: Path
) -> None:
    code = f"sys.argv = {['macl', *command]!r}\n"
    code += "import runpy\nrunpy.run_module('macl', run_name='__main__')"
    done = run_light(installed, code)
    assert done.returncode not in (0, None)
    assert "pip install 'macl[train]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_data_files_are_in_the_wheel(installed: Path) -> None:
    for pattern in (
        "recipes/yaml/*.yaml",
        "paper/yaml/*.yaml",
        "reporting/*.html",
        "py.typed",
    ):
        expected = {file.name for file in SOURCE.glob(pattern)}
        assert expected
        assert {file.name for file in (installed / "macl").glob(pattern)} == expected
