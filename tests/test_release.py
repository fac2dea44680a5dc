"""What a release needs beside the code: valid files about it, and one version everywhere."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

import macl
import shared

ROOT = Path(__file__).parents[1]
FORMS = ".github/ISSUE_TEMPLATE"
DOCUMENTS = {
    "CITATION.cff": ["vendor.citation-file-format"],
    ".github/workflows/test.yml": [
        "vendor.github-workflows",
        "custom.github-workflows-require-timeout",
    ],
    ".github/workflows/publish.yml": [
        "vendor.github-workflows",
        "custom.github-workflows-require-timeout",
    ],
    f"{FORMS}/bug.yml": ["vendor.github-issue-forms"],
    f"{FORMS}/feature.yml": ["vendor.github-issue-forms"],
    f"{FORMS}/config.yml": ["vendor.github-issue-config"],
}
"""Documents and the schemas, inside check-jsonschema, that they must follow."""


def is_valid(schema: str, document: Path) -> bool:
    command = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", schema, str(document)]
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_document_follows_its_schema(name: str) -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema")
    for schema in DOCUMENTS[name]:
        assert is_valid(schema, ROOT / name), schema


def test_a_wrong_document_is_noticed(tmp_path: Path) -> None:
    pytest.importorskip("check_jsonschema", reason="needs check-jsonschema")
    text = (ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8")
    wrong = tmp_path / "test.yml"
    wrong.write_text(text.replace("runs-on:", "run-on:"), encoding="utf-8")
    assert not is_valid("vendor.github-workflows", wrong)


def test_every_yaml_of_the_host_is_checked() -> None:
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / ".github").rglob("*.yml")}
    assert found == {name for name in DOCUMENTS if name.startswith(".github")}


def test_the_version_is_the_same_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == macl.__version__
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## \[?(\d[\w.]*)", changelog, re.M)
    assert newest is not None
    assert newest[1] == macl.__version__


def test_hosted_tests_run_make_test_for_the_supported_pythons() -> None:
    workflow = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text(encoding="utf-8"))
    job = workflow["jobs"]["test"]
    pythons = job["strategy"]["matrix"]["python"]
    project = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    oldest = re.search(r'requires-python = ">=(3\.\d+)"', project)
    assert oldest is not None
    assert pythons[0] == oldest[1]
    assert len(pythons) >= 4
    for command in ("make test", "make test-slow"):
        assert {"run": command} in job["steps"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for step in (step for each in workflow["jobs"].values() for step in each["steps"]):
        for target in re.findall(r"^make ([\w-]+)$", step.get("run", ""), re.M):
            assert re.search(rf"^{target}:", makefile, re.M), f"make {target}"


def test_the_sources_are_of_the_oldest_supported_python() -> None:
    """Syntax alone; names of newer standard libraries are for the hosted tests."""
    files = [path for name in ("src", "tests", "examples") for path in (ROOT / name).rglob("*.py")]
    assert len(files) > 200
    for path in files:
        ast.parse(path.read_text(encoding="utf-8"), str(path), feature_version=(3, 11))


def test_files_that_the_documents_name_exist() -> None:
    for name in ("SECURITY.md", "CONTRIBUTING.md"):
        text = (ROOT / name).read_text(encoding="utf-8")
        for path in re.findall(r"`((?:tests|docs|benchmarks|examples)/[\w/.-]+\.\w+)`", text):
            assert (ROOT / path).is_file(), f"{name}: {path}"


@pytest.mark.slow
def test_wheel_and_source_archive_pass_twine() -> None:
    pytest.importorskip("build", reason="needs build")
    pytest.importorskip("twine", reason="needs twine")
    made = shared.distributions()
    names = sorted(path.name for path in made.iterdir())
    version = macl.__version__
    assert names == [f"macl-{version}-py3-none-any.whl", f"macl-{version}.tar.gz"]
    check = ["twine", "check", "--strict", *(str(made / name) for name in names)]
    done = subprocess.run([sys.executable, "-m", *check], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("PASSED") == 2
