"""Two encoders on the same held-out items: stored vectors, labels, and what they show."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import save
from torch import Tensor

from macl import geometry
from macl.core.devices import Placement
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.similarity import nearest_rows
from macl.core.weights import read_weights
from macl.experiments.verdict import (
    NEIGHBORS,
    Labels,
    Scores,
    Verdict,
    judge,
    knn_scores,
    linear_accuracy,
)
from macl.modalities.embedding import embedder
from macl.modalities.image_text.evaluation import retrieval_ranks
from macl.modalities.protocols import Dataset
from macl.runs import Run

DUPLICATE = 0.999
"""Cosine similarity from which two items count as duplicates."""
VECTORS = "vectors/{}.safetensors"
"""What an encoder made of the items, by the name of its run."""
FEWEST = 20
"""Labeled held-out items below which nothing is judged."""

Column = Mapping[str, frozenset[str]]
"""Name of an item → its labels."""
Task = tuple[Labels, Labels]
"""Labels of the bank and of the held-out items."""


@dataclass(frozen=True)
class Vectors:
    """What an encoder makes of the labeled bank and of the held-out items."""

    bank: Tensor
    test: Tensor
    facing: Tensor
    """The other side of held-out pairs, (M, D); empty without pairs."""

    @classmethod
    def read(cls, out: Path, name: str) -> Vectors:
        """Those that `write_vectors` wrote for the run called `name`."""
        return cls(**read_weights(out / VECTORS.format(name)))

    def neighbors(self, count: int = 1) -> Tensor:
        """(M, count) positions of the nearest other held-out items."""
        unit = F.normalize(self.test, dim=1)
        return nearest_rows(unit, unit, count, exclude_own=True)[1]


def write_vectors(run: Run, out: Path, bank: Dataset, test: Dataset) -> None:
    """Embed the judged items with the encoder of a run, once."""
    file = out / VECTORS.format(run.folder.name)
    if file.is_file():
        return
    where = Placement(run.placement.device, "32")
    embed = embedder(run.encoder, run.views, workers=run.recipe.workers, placement=where)
    facing = run.modality.facing(test, range(len(test)))
    other = torch.empty(0) if facing is None else embed(facing[0])
    stored = save({"bank": embed(bank), "test": embed(test), "facing": other})
    atomic_write(file, lambda target: target.write(stored))


def read_labels(path: Path) -> list[Column]:
    """The label columns of a table with a heading: name of an item → its labels."""
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = list(csv.reader(file, delimiter="\t" if path.suffix == ".tsv" else ","))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise UserError(f"labels {path} cannot be read: {error}") from error
    width = len(rows[0]) if rows else 0
    if width < 2 or any(len(row) != width for row in rows):
        raise UserError(f"labels {path}: every line needs a name and the same number of labels.")
    return [
        {
            row[0]: frozenset(part.strip() for part in row[column].split(";") if part.strip())
            for row in rows[1:]
            if row[column].strip()
        }
        for column in range(1, width)
    ]


def own_task(bank: Dataset, test: Dataset) -> list[Task]:
    """The classes of the data themselves, where it has some."""
    if bank.labels is None or test.labels is None:
        return []
    names = dict(enumerate(bank.classes))
    known, truth = (
        [frozenset([names.get(c, str(c))]) for c in labels.tolist()]
        for labels in (bank.labels, test.labels)
    )
    return [(known, truth)]


def labels_by_name(column: Column, names: Sequence[str]) -> Labels:
    """The labels of each item; one of the two paths may begin further up than the other.

    a/0.png is cats/a/0.png, but not b/0.png. `UserError` where a path names several.
    """
    others = {row: Path(row).parts for row in column.keys() - set(names)}
    ends: dict[tuple[str, ...], list[str]] = {}
    for row, parts in others.items():
        for start in range(1, len(parts)):
            ends.setdefault(parts[start:], []).append(row)
    labels, used = [], dict[str, str]()
    for name in names:
        parts = Path(name).parts
        shorter = ("/".join(parts[start:]) for start in range(1, len(parts)))
        rows = [name] if name in column else ends.get(parts, [])
        rows = rows or [row for row in shorter if row in others]
        for row in rows:
            if used.setdefault(row, name) != name:
                raise UserError(f"labels: {row} names {used[row]} and {name}. Give longer paths.")
        if len({column[row] for row in rows}) > 1:
            raise UserError(f"labels: {' and '.join(rows[:2])} both name {name}.")
        labels.append(column[rows[0]] if rows else frozenset[str]())
    return labels


def tasks_of(columns: Sequence[Column], bank: Sequence[str], test: Sequence[str]) -> list[Task]:
    """Each label column by the names of the items."""
    tasks = []
    for column in columns:
        labels = labels_by_name(column, [*bank, *test])
        tasks.append((labels[: len(bank)], labels[len(bank) :]))
    if not any(any(each) for task in tasks for each in task):
        rows = [row for column in columns for row in column] or [""]
        raise UserError(
            f"no item is in the table of labels: items have names such as {test[0][:80]!r}, the "
            f"table {rows[0][:80]!r}."
        )
    labeled, known = len(_judged(tasks)), min(sum(map(bool, k)) for k, _ in tasks)
    if labeled < FEWEST or not known:
        raise UserError(
            f"{labeled} held-out items and {known} others have labels; {FEWEST} held-out ones at "
            "least and some others are needed. Label more of the items, whatever part they are in."
        )
    return tasks


def judgement(
    original: Vectors, adapted: Sequence[Vectors], tasks: Sequence[Task], matches: Tensor | None
) -> tuple[Verdict, dict[str, Any]]:
    """The verdict, by the labels or by retrieval of pairs (`matches`), and adapt.json's figures.

    Geometry, then kNN or retrieval in percent: "before", "after" as means and by "seeds". "classes"
    are of the first label column; "neighbors changed" is a share of the items.
    """
    before, seeds = _geometry(original), [_geometry(each) for each in adapted]
    changed = original.neighbors() != adapted[0].neighbors()
    verdict = Verdict("not judged", "there are no labels", seeds=len(adapted))
    classes: dict[str, dict[str, float]] = {}
    if tasks or matches is not None:
        scored = [_item_scores(each, tasks, matches) for each in (original, *adapted)]
        for row, (_, _, figures) in zip((before, *seeds), scored, strict=True):
            row |= figures
        first, *others = (scores for scores, _, _ in scored)
        verdict = judge(first, others, max(chance for _, chance, _ in scored))
        if tasks:
            truth = [tasks[0][1][i] for i in _judged(tasks)]
            after = np.mean(others, axis=0)
            for name in sorted(set().union(*truth)):
                rows = [i for i, each in enumerate(truth) if name in each]
                one, two = (100 * float(scores[rows].mean()) for scores in (first, after))
                classes[name] = {"items": len(rows), "before": one, "after": two}
    return verdict, {
        "before": before,
        "after": {name: float(np.mean([row[name] for row in seeds])) for name in before},
        "seeds": seeds,
        "classes": classes,
        "neighbors changed": float(changed.double().mean()),
    }


def _judged(tasks: Sequence[Task]) -> list[int]:
    """Held-out items that have a label in every column."""
    return [i for i in range(len(tasks[0][1])) if all(truth[i] for _, truth in tasks)]


def _item_scores(
    vectors: Vectors, tasks: Sequence[Task], matches: Tensor | None
) -> tuple[Scores, float, dict[str, float]]:
    """A score of each judged item, over the label columns their mean; what chance gives; figures.

    The figures, in percent, have a linear probe beside kNN where each item has one label.
    """
    if not tasks:
        assert matches is not None
        ranks = retrieval_ranks(vectors.test, vectors.facing, matches)
        scores = (ranks == 1).double().numpy()
        return scores, 1 / len(vectors.facing), {"image-to-text R@1": 100 * float(scores.mean())}
    rows, judged = _judged(tasks), []
    for known, truth in tasks:
        bank = [i for i, labels in enumerate(known) if labels]
        names = [known[i] for i in bank], [truth[i] for i in rows]
        judged.append((vectors.bank[bank], names[0], vectors.test[rows], names[1]))
    by_task = [knn_scores(*task) for task in judged]
    scores = np.mean([each for each, _ in by_task], axis=0)
    figures = {f"knn (k={NEIGHBORS})": 100 * float(scores.mean())}
    linear = [value for task in judged if (value := linear_accuracy(*task)) is not None]
    if linear:
        figures["linear probe"] = float(np.mean(linear))
    return scores, float(np.mean([chance for _, chance in by_task])), figures


def _geometry(vectors: Vectors) -> dict[str, float]:
    """What can be known without labels."""
    unit = F.normalize(vectors.test, dim=1)
    nearest = nearest_rows(unit, unit, 1, exclude_own=True)[0]
    return {
        "uniformity": float(geometry.uniformity(vectors.test)),
        "effective rank": float(geometry.effective_rank(vectors.test)),
        "mean cosine": float((unit.mean(0) ** 2).sum()),
        "duplicates": 100 * float((nearest > DUPLICATE).double().mean()),
    }
