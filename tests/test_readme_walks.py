"""The commands of the README run word for word from a clean clone, offline, on tiny data.

Only what the README allows is added: overrides that make training short. The other modalities are
on docs/howto/own-data.md, which tests/docs runs.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"^```(\w*)\n(.*?)^```$", TEXT, re.M | re.S)

SHORT = {
    "imagenette-small": "epochs=1 batch_size=8 views.size=16 encoder.width=8 workers=0 "
    "monitor_every=0 schedule.warmup_epochs=0 evaluation.k=2 evaluation.linear.epochs=1",
}
"""Overrides of each recipe that the README trains."""


def walks() -> dict[str, list[list[str]]]:
    """The blocks that train, by recipe: their commands without comments."""
    found = {}
    for language, block in BLOCKS:
        lines = [shlex.split(line, comments=True) for line in block.splitlines()]
        commands = [line[1:] for line in lines if line[:1] == ["macl"]]
        trained = [command[1] for command in commands if command[0] == "train"]
        if not language and trained:
            found[trained[0]] = commands
    return found


def fill(folder: Path) -> None:
    """The user's files that the README names."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 24, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        (folder / "photos" / "ab"[number % 2]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / "photos" / "ab"[number % 2] / f"{number}.png")


def test_the_readme_walks_from_pictures_to_an_export() -> None:
    assert set(walks()) == set(SHORT)
    pictures = [command[0] for command in walks()["imagenette-small"]]
    assert pictures == ["recipes", "train", "evaluate", "embed", "diagnose", "report", "export"]


def test_the_readme_says_what_it_is_for_before_the_theory() -> None:
    order = [
        *("**Adapt or train", "make demo", "pip install", "from macl import", "adapt:begin"),
        *("![", "## Three uses", "## What it does that others do not", "## Why the temperature"),
    ]
    places = [TEXT.index(part) for part in order]
    assert places == sorted(places)


def test_the_first_recipe_for_images_texts_and_pairs_is_adapt() -> None:
    lines = [line for language, block in BLOCKS if not language for line in block.splitlines()]
    commands = [line.split()[1:] for line in lines if line.startswith("macl ")]
    assert [command[0] for command in commands[:4]] == ["adapt", "adapt", "adapt", "recipes"]
    data = [command[command.index("--data") + 1] for command in commands[:3]]
    assert data == ["photos/", "sentences.txt", "captions.csv"]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A clean clone of what is committed."""
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("needs a git repository to clone")
    folder = tmp_path_factory.mktemp("clone") / "macl"
    subprocess.run(["git", "clone", "--quiet", str(ROOT), str(folder)], check=True)
    return folder


@pytest.mark.slow
@pytest.mark.parametrize("recipe", SHORT)
def test_the_commands_run_word_for_word(recipe: str, clone: Path, tmp_path: Path) -> None:
    pytest.importorskip("torchvision")
    fill(tmp_path)
    commands = walks()[recipe]
    for command in commands:
        if command[0] == "train":
            command += SHORT[recipe].split()
    done = subprocess.run(
        [sys.executable, str(ROOT / "tests" / "offline.py")],
        input=json.dumps(commands),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(clone / "src"), "OMP_NUM_THREADS": "1"},
    )
    assert json.loads(done.stdout) == [0] * len(commands), done.stderr
    outputs = [command[command.index("-o") + 1] for command in commands if "-o" in command]
    assert outputs
    for output in outputs:
        assert (tmp_path / output).stat().st_size > 0


@pytest.mark.slow
def test_the_functions_run_as_they_are_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (block,) = [block for language, block in BLOCKS if language == "python" and "train" in block]
    tiny = "overrides={'data.limit': 64, 'evaluation.protocols': ['knn'], 'encoder.width': 4}"
    short = {
        "epochs=5": f"epochs=5, batch_size=32, {tiny}",
        "seeds=3": f"seeds=2, epochs=1, batch_size=32, {tiny}",
        'data="photos/"': f'data="photos/", epochs=1, batch_size=8, workers=0, {tiny}',
    }
    code = block
    for shown, added in short.items():
        assert code.count(shown) == 1
        code = code.replace(shown, added)
    fill(tmp_path)
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert len(names["vectors"]) == 24  # type: ignore[arg-type]
    assert not names["table"].empty  # type: ignore[attr-defined]


def test_every_file_that_the_readme_links_exists() -> None:
    for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", TEXT):
        assert (ROOT / target).exists(), target
