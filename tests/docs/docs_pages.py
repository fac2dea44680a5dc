"""The code blocks and commands of all pages: how they are found, and which are run.

- ```python blocks of a page run in order, in one namespace, in a folder with the files that pages
  name.
- Commands of ```bash, unmarked and indented blocks are parsed, all of them; `macl` commands also
  run, with overrides that make training short.
- `<!-- not run: REASON -->` before a block says why it is only parsed. `<!-- setup: CODE -->` is
  run before the blocks that follow and not shown.
- Pages of docs/results are records: their commands take minutes to hours and are parsed only.
"""

from __future__ import annotations

import re
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import networkx as nx
import numpy as np
from PIL import Image

from small_pairs import COLORS, picture, write_table

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
sys.path.insert(0, str(DOCS / "hooks"))

PAGES = sorted(path.relative_to(ROOT).as_posix() for path in DOCS.rglob("*.md"))
RECORDS = "docs/results/"

SHORT = {
    "digits": "epochs=1 data.limit=64 batch_size=32 encoder.width=4 monitor_every=0 "
    "evaluation.protocols=[knn]",
    "imagenette-small": "epochs=1 batch_size=8 views.size=16 encoder.width=8 workers=0 "
    "monitor_every=0 schedule.warmup_epochs=0 evaluation.k=2 evaluation.linear.epochs=1",
    "topics": "epochs=1 data.limit=100 encoder.width=32 encoder.layers=1 encoder.heads=2",
    "chembl": "epochs=1 data.limit=64 batch_size=32 encoder.hidden=16",
    "graphcl-mutag": "epochs=1 batch_size=4",
    "atlas": "epochs=1 encoder.hidden=8",
    "digits-captions": "epochs=1 data.limit=100 batch_size=32 monitor_every=0",
    "clip-small": "epochs=1 batch_size=8 monitor_every=0 views.image.size=24 data.holdout=0.3",
}
"""Overrides that make the training of a recipe take a second."""

ELSEWHERE = {
    "pip": "installs packages",
    "torchrun": "needs several processes; tests/training/test_ddp.py has them",
    "make": "is the suite itself",
    "python": "takes minutes; the file exists",
    "mike": "publishes",
    "git": "changes the repository",
    ".venv/bin/pre-commit": "changes the repository",
}
"""Programs that no page's test runs, and why."""

FENCE = re.compile(r"^( *)```([\w-]*)[^\n]*\n(.*?)^\1```$", re.M | re.S)
INDENTED = re.compile(r"(?<=\n\n)(?:    [^\n]*\n+)*    [^\n]*(?=\n|\Z)")
COMMENT = re.compile(r"<!-- (not run|setup): (.*?) ?-->", re.S)
COMMAND = re.compile(r"(?:macl|make|pip|python|torchrun|mike|git|\.venv/bin/pre-commit) ")
LOOP = re.compile(r"for (\w+) in ([^;]+); do\n(.*?)done", re.S)
VARIABLE = re.compile(r'^(\w+)="([^"]*)"$', re.M)
SYNOPSIS = re.compile(r"[…\[]|\b(RECIPE|TABLE|RUN|DIR|COMMAND|FILE|NAME)\b")
"""What a command that shows its form has in place of values."""


@dataclass(frozen=True)
class Block:
    """A block of code with its place; `reason` is why it is not run."""

    language: str
    code: str
    line: int
    reason: str = ""


def read(page: str) -> str:
    """The text of a page with what the site's hooks add to it, but for pictures."""
    text = (ROOT / page).read_text(encoding="utf-8")
    from expansion import expand
    from menu import front_matter

    facts = front_matter(text)
    return expand(text.replace("<!-- figure -->", ""), facts)


def blocks(text: str) -> list[Block]:
    """All blocks of a page in order; setups are Python blocks."""
    found = []
    for match in FENCE.finditer(text):
        indent = len(match[1])
        code = "".join(line[indent:] for line in match[3].splitlines(keepends=True))
        found.append((match.start(), match[2], code))
    rest = FENCE.sub(lambda match: re.sub(r"[^\n]", ".", match[0]), text)
    # What is indented below an item of a list, or below `:::`, is not code.
    for match in INDENTED.finditer(rest):
        before = rest[: match.start()].rstrip().rsplit("\n\n", 1)[-1]
        if not re.match(r"\s*([-*] |\d+\. )|:::", before.splitlines()[0] if before else ""):
            found.append((match.start(), "", re.sub(r"^    ", "", match[0], flags=re.M) + "\n"))
    for match in COMMENT.finditer(rest):
        if match[1] == "setup":
            found.append((match.start(), "python", match[2] + "\n"))
    return [
        Block(language, code, text.count("\n", 0, start) + 2, _reason(rest, start))
        for start, language, code in sorted(found)
    ]


def _reason(text: str, start: int) -> str:
    before = text[:start].rstrip()
    comments = list(COMMENT.finditer(before))
    if comments and comments[-1].end() == len(before) and comments[-1][1] == "not run":
        return " ".join(comments[-1][2].split())
    return ""


def commands(code: str) -> Iterator[list[str]]:
    """The commands of a block as arguments; loops and variables of the shell are expanded."""
    script = code.replace("\\\n", " ")
    for name, values, body in LOOP.findall(script):
        script += "".join(body.replace(f"${name}", value) for value in values.split())
    script = LOOP.sub("", script)
    for name, value in VARIABLE.findall(script):
        script = script.replace(f"${name}", " ".join(value.split()))
    for line in script.splitlines():
        line = line.strip().removeprefix("$ ")
        if COMMAND.match(line) and not SYNOPSIS.search(
            re.sub(r"\s#.*|'[^']*'|\"[^\"]*\"", "", line)
        ):
            yield shlex.split(line, comments=True)


def page_commands(page: str) -> list[tuple[Block, list[str]]]:
    """Every command in a block of a page."""
    found = []
    for block in blocks(read(page)):
        if block.language in ("", "bash", "sh", "console"):
            found += [(block, command) for command in commands(block.code)]
    return found


def is_run(page: str, block: Block, command: list[str]) -> bool:
    """Whether the test runs a command."""
    return command[0] == "macl" and not block.reason and not page.startswith(RECORDS)


def shortened(arguments: list[str]) -> list[str]:
    """A command of `macl` with the overrides that make it short."""
    if arguments[0] not in ("train", "compare"):
        return arguments
    extra = SHORT.get(arguments[1], "").split()
    if arguments[0] == "compare":
        extra += ["--seeds", "1"]
    given = {each.split("=")[0] for each in arguments[2:] if not each.startswith("-")}
    if "batch_size" in given:
        given.add("data.limit")  # a batch needs as many samples
    return [*arguments, *(each for each in extra if each.split("=")[0] not in given)]


def fill(folder: Path) -> None:
    """The user's files that the pages name."""
    pixels = np.random.default_rng(0).integers(0, 256, (24, 20, 24, 3), dtype=np.uint8)
    for number, image in enumerate(pixels):
        kind = folder / "photos" / "ab"[number % 2]
        kind.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(kind / f"{number}.png")
    sentences = [f"This is sentence {number} about subject {number % 7}." for number in range(150)]
    (folder / "my_sentences.txt").write_text("\n".join(sentences) + "\n", encoding="utf-8")
    answers = [(f"What is {number}?", f"It is the number {number}.") for number in range(20)]
    write_table(folder / "pairs.csv", ("query", "answer"), answers)
    smiles = ["C" * n + end for n in range(1, 9) for end in ("O", "N", "C(=O)O", "c1ccccc1")]
    (folder / "my_molecules.smi").write_text("\n".join(smiles) + "\n", encoding="utf-8")
    graphs = folder / "my_graphs"
    graphs.mkdir()
    for number in range(3, 11):
        nx.write_graphml(nx.cycle_graph(number), graphs / f"{number}.graphml")
    (folder / "my_graphs.graphml").write_text(_graphml(), encoding="utf-8")
    rows = []
    for number, color in enumerate(sorted(COLORS) * 3):
        name = f"pictures/{number}.png"
        picture(folder / name, color, number)
        rows.append((name, f"a {color} square", color))
        picture(folder / "class-folders" / color / f"{number}.png", color, number)
    write_table(folder / "captions.csv", ("file", "caption", "concept"), rows)
    picture(folder / "query.png", "red", 99)


def _graphml() -> str:
    """One file with twenty cycles and stars of two classes."""
    parts = ['<graphml xmlns="http://graphml.graphdrawing.org/xmlns">']
    parts.append('<key id="c" for="graph" attr.name="label" attr.type="string"/>')
    for number in range(20):
        graph = (nx.star_graph if number % 2 else nx.cycle_graph)(4 + number // 2)
        parts.append(f'<graph edgedefault="undirected"><data key="c">{number % 2}</data>')
        parts += [f'<node id="n{node}"/>' for node in graph]
        parts += [f'<edge source="n{a}" target="n{b}"/>' for a, b in graph.edges]
        parts.append("</graph>")
    return "\n".join([*parts, "</graphml>"])
