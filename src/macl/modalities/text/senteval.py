"""SentEval's folder of tasks: where each file is and how its lines are read."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from macl.core.errors import UserError

STS_SETS = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "headlines", "OnWN"),  # SMT is not free to share and is not reported
    "STS14": ("deft-forum", "deft-news", "headlines", "images", "OnWN", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}
_BINARY = {  # task: file of class 1, file of class 0
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
_BINARY_LABELS = ("0", "1")
_PLACES = ("downstream/STS", "downstream/MR", "STS", "MR")  # by which SentEval is known
_TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


class Texts(NamedTuple):
    """Sentences, or pairs of them, each with a number."""

    first: list[str]
    second: list[str]
    """Empty where these are no pairs."""
    numbers: list[float]
    """Classes from 0 of a transfer task, similarities that people gave of an STS task."""


def find_root(folder: Path) -> Path:
    """The folder with STS, MR, … in it: `folder` itself or its `downstream`."""
    for place in _PLACES:
        if (folder / place).is_dir():
            return (folder / place).parent
    raise UserError(
        f"{folder} is not SentEval's data folder: it should contain downstream/STS, "
        "downstream/MR and so on. Give `data=` or evaluation.senteval the folder that SentEval "
        "calls its task path."
    )


def is_senteval(folder: Path) -> bool:
    """Whether `find_root` would find one."""
    return any((folder / place).is_dir() for place in _PLACES)


def read_sts(root: Path, task: str, split: str = "test") -> dict[str, Texts]:
    """The scored pairs of an STS task by subset; STS-B and SICK-R are one subset each."""
    if task == "STS-B":
        path = root / f"STS/STSBenchmark/sts-{split}.csv"
        return {task: _pairs(path, _lines(path), score=4, first=5)}
    if task == "SICK-R":
        path = root / "SICK" / ("SICK_test_annotated.txt" if split == "test" else "SICK_trial.txt")
        return {task: _pairs(path, _lines(path), score=3, first=1, header=1)}
    if split != "test":
        raise UserError(f"{task} has a test split only; STS-B and SICK-R have a dev split.")
    folder = root / f"STS/{task}-en-test"
    subsets = {}
    for name in STS_SETS[task]:
        path = folder / f"STS.gs.{name}.txt"
        gold, texts = _lines(path), _lines(folder / f"STS.input.{name}.txt")
        if len(texts) != len(gold):
            raise UserError(f"{folder}: {name} has {len(texts)} pairs but {len(gold)} scores.")
        lines = [f"{score}\t{pair}" for score, pair in zip(gold, texts, strict=True)]
        subsets[name] = _pairs(path, lines, score=0, first=1)
    return subsets


def read_transfer(root: Path, task: str) -> dict[str, Texts]:
    """A transfer task by part: "train" always; "test" and "dev" where the task has fixed ones."""
    if task in _BINARY:
        ones, zeros = (_lines(root / name, "latin-1") for name in _BINARY[task])
        items = [(1, text) for text in ones] + [(0, text) for text in zeros]
        return {"train": _labeled(root / task, items)}
    if task == "SST2":
        folder, parts = root / "SST/binary", ("train", "dev", "test")
        return {part: _parsed(folder / f"sentiment-{part}", "utf-8", _sst) for part in parts}
    if task == "TREC":
        files = {"train": "train_5500.label", "test": "TREC_10.label"}
        return {part: _parsed(root / "TREC" / f, "latin-1", _trec) for part, f in files.items()}
    paths = {part: root / f"MRPC/msr_paraphrase_{part}.txt" for part in ("train", "test")}
    return {part: _parsed(path, "utf-8", _mrpc, header=1) for part, path in paths.items()}


def _sst(line: str) -> tuple[int, str]:
    text, label = line.rsplit("\t", 1)
    return _BINARY_LABELS.index(label.strip()), text


def _trec(line: str) -> tuple[int, str]:
    label, text = line.split(" ", 1)
    return _TREC_CLASSES.index(label.split(":")[0]), text


def _mrpc(line: str) -> tuple[int, str, str]:
    label, _, _, first, second, *_ = line.split("\t")
    return _BINARY_LABELS.index(label), first, second


def _parsed(
    path: Path, encoding: str, parse: Callable[[str], tuple[Any, ...]], header: int = 0
) -> Texts:
    lines = _lines(path, encoding)
    return _labeled(path, _each(path, lines, parse, "a text with its class", header))


def _labeled(path: Path, items: Sequence[tuple[Any, ...]]) -> Texts:
    """Texts or pairs of two classes at least: with fewer there is nothing to classify."""
    classes = len({label for label, *_ in items})
    if classes < 2:
        raise UserError(f"{path} holds {len(items)} items of {classes} classes; is it cut short?")
    return _texts(items)


def _pairs(path: Path, lines: Sequence[str], score: int, first: int, header: int = 0) -> Texts:
    """The pairs in column `first` and the next, with their score; without one they are left out."""

    def parse(line: str) -> tuple[float | None, str, str]:
        fields = line.split("\t")
        gold, one, other = fields[score].strip(), fields[first], fields[first + 1]
        if gold and not math.isfinite(float(gold)):
            raise ValueError(f"the score is {gold}")
        return float(gold) if gold else None, one, other

    items = _each(path, lines, parse, "a pair with its score", header)
    scored = [item for item in items if item[0] is not None]
    if not scored:
        raise UserError(f"{path} holds no pair with a score; is it cut short?")
    return _texts(scored)


def _each(
    path: Path, lines: Sequence[str], parse: Callable[[str], Any], what: str, header: int
) -> list[Any]:
    """What `parse` makes of each line after the header; `UserError` for one that is not `what`."""
    items = []
    for number, line in enumerate(lines[header:], start=1 + header):
        try:
            items.append(parse(line))
        except (IndexError, ValueError) as error:
            raise UserError(f"{path}: line {number} is not {what} ({error}).") from error
    return items


def _texts(items: Sequence[tuple[Any, ...]]) -> Texts:
    numbers, *columns = zip(*items, strict=True)
    # Single blanks between words, as SentEval gives texts to an encoder.
    first, *second = ([" ".join(text.split()) for text in column] for column in columns)
    return Texts(first, second[0] if second else [], list(numbers))


def _lines(path: Path, encoding: str = "utf-8") -> list[str]:
    """Lines ended by newlines only: `splitlines` would also break at rarer characters."""
    if not path.is_file():
        raise UserError(f"{path} is missing. It is part of SentEval's data folder.")
    try:
        text = path.read_text(encoding)
    except UnicodeDecodeError as error:
        raise UserError(f"{path} is not {encoding} text as SentEval has it.") from error
    if not text.strip():
        raise UserError(f"{path} is empty. Fetch SentEval's data again.")
    return text.removesuffix("\n").split("\n")
