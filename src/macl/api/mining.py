"""Hard negatives and near-duplicates of a data set, by an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.api.vectors import embed
from macl.core.errors import UserError
from macl.core.installed import needs_training_packages
from macl.runs.outputs import check_file

if TYPE_CHECKING:
    from torch import Tensor

    from macl.core.mining import Space
    from macl.recipes import Overrides
    from macl.runs.elsewhere import RunLike

SUFFIXES = (".parquet", ".jsonl", ".csv")
NEAR = 0.95
"""The least similarity of near-duplicates."""


@dataclass(frozen=True)
class Mined:
    """A table of texts or names, one row for each pair that was found."""

    columns: dict[str, list[str]]
    """By name: anchor, positive where there are any, negative; or first, second."""
    scores: list[float]
    """The similarity of each pair that was found, row by row."""
    false_negative_share: float | None = None
    """Estimated share of false negatives among the most similar candidates, which were left out;
    None without labels and guide."""

    def __len__(self) -> int:
        return len(self.scores)

    def save(self, path: PathLike, *, overwrite: bool = False) -> Path:
        """Write the columns as .parquet, .jsonl or .csv; duplicates with their similarity."""
        import pandas as pd

        from macl.core.files import atomic_write

        file = check_mined_output(path, overwrite)
        table = pd.DataFrame(self.columns)
        if "second" in self.columns:
            table["similarity"] = self.scores
        as_lines = {"orient": "records", "lines": True, "force_ascii": False}
        write = {
            ".parquet": partial(table.to_parquet, index=False),
            ".csv": partial(table.to_csv, index=False),
            ".jsonl": partial(table.to_json, **as_lines),
        }
        atomic_write(file, write[file.suffix])
        return file


def check_mined_output(path: PathLike, overwrite: bool = False) -> Path:
    """The path; `UserError` where nothing can be written there, before any long work."""
    check_file(Path(path), SUFFIXES, overwrite)
    return Path(path)


@needs_training_packages
def mine(
    run: RunLike,
    source: PathLike,
    *,
    k: int = 1,
    ranks: tuple[int, int] = (1, 100),
    margin: float | None = None,
    relative: bool = False,
    guide: RunLike | None = None,
    duplicates: bool | float = False,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> Mined:
    """Find hard negatives for the pairs of a data set, or its near-duplicates.

    Similarities are computed block by block: memory holds the vectors and 64 MB. Negatives of an
    anchor are positives of other rows, or other items where there are no positives, but not those
    of rows that share a text with it, nor those of its class where `overrides` name a
    `data.label`. The result has a row for each triplet, which `macl train` (data.column=anchor
    data.positive=positive data.negative=negative) and sentence-transformers read as it is.

    Args:
        run: a run, or an encoder: an exported folder, a weights file, a name.
        source: a file or folder, read as by `embed`; {"data.positive": "…"} names the positives.
        k: negatives of an anchor, at most; each is a row of the result.
        ranks: first and last place by similarity; (11, 100) leaves out the nearest ten.
        margin: a negative is less similar to the anchor than the positive by at least this.
        relative: the margin is a share of the positive's similarity.
        guide: another encoder; what it finds more similar than the positive, less the margin, is
            left out.
        duplicates: instead, list pairs with a cosine similarity of this or more; True is 0.95.
        overrides: of the data section, for how `source` is read: {"data.column": "query"}.
        device: "auto" is a GPU if there is one, else the CPU; or "cpu", "cuda:1".
        precision: "32", "bf16" or "16"; "auto" is bf16 where a GPU computes in it, else 32.
        progress: show progress bars.
    """
    from macl.core.mining import Rules, hard_negatives, near_duplicates
    from macl.runs.elsewhere import open_encoder

    if k < 1 or not 1 <= ranks[0] <= ranks[1]:
        raise UserError(
            f"k={k} and ranks={ranks}: mine one negative at least, from a first to a last place, "
            "1 being the most similar."
        )
    if not -1 <= float(duplicates) <= 1:
        raise UserError(f"duplicates={duplicates}: a cosine similarity is at most 1.")
    where: dict[str, Any] = {"device": device, "precision": precision, "progress": progress}
    with progress_bars(progress):
        opened = open_encoder(run, device, precision)
        dataset = _opened_data(opened, Path(source), dict(overrides or {}))
        names = [str(name) for name in dataset.names]
        if duplicates:
            vectors = _unit(embed(opened, dataset, **where).values, device)
            pairs = near_duplicates(vectors, NEAR if duplicates is True else float(duplicates))
            first, second = ([names[i] for i in x.tolist()] for x in (pairs.rows, pairs.columns))
            return Mined({"first": first, "second": second}, pairs.scores.tolist())
        texts = _Texts.of(dataset, names)
        if texts.positions is None and (margin is not None or guide is not None):
            raise UserError(
                "margin and guide compare negatives with positives: name their column with "
                "overrides={'data.positive': '…'}."
            )
        space = _space(opened, dataset, texts, where)
        groups, labels = texts.relations(dataset, space.anchors.device)
        judge = None if guide is None else _space(guide, dataset, texts, where)
        negatives = hard_negatives(
            space, groups, Rules(k, ranks, margin, relative), labels=labels, guide=judge
        )
    columns = {"anchor": [names[i] for i in negatives.rows.tolist()]}
    if texts.positions is not None:
        columns["positive"] = [texts.positives[i] for i in negatives.rows.tolist()]
    columns["negative"] = [texts.candidates[i] for i in negatives.columns.tolist()]
    return Mined(columns, negatives.scores.tolist(), negatives.false_share)


@dataclass
class _Texts:
    """Anchors and candidates by name, and where the anchors' positives are."""

    anchors: list[str]
    positives: list[str]
    candidates: list[str]
    owners: list[int]
    """The first row that each candidate comes from."""
    positions: list[int] | None
    """Of the positives among the candidates."""

    @classmethod
    def of(cls, dataset: Any, names: list[str]) -> _Texts:
        columns = getattr(dataset, "columns", [names])
        positives = [str(text) for text in columns[1]] if len(columns) > 1 else []
        first: dict[str, int] = {}
        for row, text in enumerate(positives or names):
            first.setdefault(text, row)
        place = {text: at for at, text in enumerate(first)}
        positions = [place[text] for text in positives] if positives else None
        return cls(names, positives, list(first), list(first.values()), positions)

    def relations(
        self, dataset: Any, device: Any
    ) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor] | None]:
        """Groups of anchors and candidates that share a text; their classes, where known."""
        import torch

        from macl.modalities.text.data import duplicate_groups

        columns = [self.anchors, *([self.positives] if self.positives else [])]
        owners = torch.tensor(self.owners, device=device)
        groups = duplicate_groups(*columns).to(device)
        if dataset.labels is None:
            return (groups, groups[owners]), None
        labels = dataset.labels.to(device)
        return (groups, groups[owners]), (labels, labels[owners])


def _opened_data(opened: Any, source: Path, overrides: dict[str, Any]) -> Any:
    """The whole of `source`: as training data where roles of columns are named, else by item."""
    if not {"data.positive", "data.label"} & overrides.keys():
        return opened.open_data(source, overrides)
    config = opened.data_config({**data_overrides(source), **overrides})
    whole = {"limit": None, "holdout": 0.0}
    there = [k for k in whole if k in type(config).model_fields and f"data.{k}" not in overrides]
    config = config.model_copy(update={key: whole[key] for key in there})
    return opened.modality.load(config, "train")


def _space(encoder: Any, dataset: Any, texts: _Texts, where: dict[str, Any]) -> Space:
    import torch

    from macl.core.mining import Space

    anchors = _unit(embed(encoder, dataset, **where).values, where["device"])
    if texts.positions is None:
        return Space(anchors, anchors[torch.tensor(texts.owners, device=anchors.device)])
    candidates = _unit(embed(encoder, texts.candidates, **where).values, where["device"])
    return Space(anchors, candidates, torch.tensor(texts.positions, device=anchors.device))


def _unit(vectors: Tensor, device: str) -> Tensor:
    from torch.nn.functional import normalize

    from macl.core.devices import place

    return normalize(vectors, dim=1).to(place(device).device)
