"""Hard negatives and near-duplicates of a data set, by an encoder."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from torch import Tensor
from torch.nn.functional import normalize

from macl.api.common import PathLike, data_overrides, progress_bars
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.core.mining import Rules, Space, hard_negatives, near_duplicates
from macl.core.outputs import MINED_SUFFIXES, check_file
from macl.modalities.text.data import duplicate_groups
from macl.recipes import Overrides
from macl.runs.elsewhere import RunLike, open_encoder, opened_items


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
        file = Path(path)
        check_file(file, MINED_SUFFIXES, overwrite)
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


def mine(
    run: RunLike,
    source: PathLike,
    *,
    k: int = 1,
    ranks: tuple[int, int] = (1, 100),
    margin: float | None = None,
    relative: bool = False,
    guide: RunLike | None = None,
    false_negatives: bool = False,
    duplicates: bool | float = False,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> Mined:
    """Find hard negatives for the pairs of a data set, likely false ones, or near-duplicates.

    Similarities are computed block by block: memory holds the vectors and 64 MB. Negatives of an
    anchor are positives of other rows, or other items where there are no positives, but not those
    of rows that share a text with it, nor those of its class where `overrides` name a
    `data.label`. The result has a row for each triplet, which `macl train` (data.column=anchor
    data.positive=positive data.negative=negative) and sentence-transformers read as it is.

    `device`, `precision`, `progress` are as in `embed`.

    Args:
        run: a run, or an encoder: an exported folder, a weights file, a name.
        source: a file or folder, read as by `embed`; {"data.positive": "…"} names the positives.
        k: negatives of an anchor, at most; each is a row of the result.
        ranks: first and last place by similarity; (11, 100) leaves out the nearest ten.
        margin: a negative is less similar to the anchor than the positive by at least this.
        relative: the margin is a share of the positive's similarity.
        guide: another encoder; what it finds more similar than the positive, less the margin, is
            left out.
        false_negatives: instead, list what labels or the guide leave out of the k nearest.
        duplicates: instead, list pairs with a cosine similarity of this or more; True is 0.95.
        overrides: of the data section, for how `source` is read: {"data.column": "query"}.
    """

    if k < 1 or not 1 <= ranks[0] <= ranks[1]:
        raise UserError(
            f"k={k} and ranks={ranks}: mine one negative at least, from a first to a last place, "
            "1 being the most similar."
        )
    if not -1 <= float(duplicates) <= 1:
        raise UserError(f"duplicates={duplicates}: a cosine similarity is at most 1.")
    with progress_bars(progress):
        opened = open_encoder(run, device, precision)
        dataset = _opened_data(opened, Path(source), dict(overrides or {}))
        names = [str(name) for name in dataset.names]
        if duplicates:
            least = 0.95 if duplicates is True else float(duplicates)
            pairs = near_duplicates(_unit_rows(opened, dataset), least)
            first, second = ([names[i] for i in x.tolist()] for x in (pairs.rows, pairs.columns))
            return Mined({"first": first, "second": second}, pairs.scores.tolist())
        if false_negatives and guide is None and dataset.labels is None:
            raise UserError(
                "false negatives are what labels or another encoder find: give `guide=`, or name "
                "the labels with overrides={'data.label': '…'}."
            )
        columns = {"anchor": names}
        given: Any = getattr(dataset, "columns", ())
        if len(given) > 1:
            columns["positive"] = [str(text) for text in given[1]]
        elif margin is not None or guide is not None:
            raise UserError(
                "margin and guide compare negatives with positives: name their column with "
                "overrides={'data.positive': '…'}."
            )
        # Candidates are the texts of the last column, each once, with the first row that has it.
        places, candidates = pd.factorize(np.array([*columns.values()][-1], dtype=object))
        owners = torch.from_numpy(np.unique(places, return_index=True)[1])

        def space(encoder: Any) -> Space:
            anchors = _unit_rows(encoder, dataset)
            if "positive" not in columns:
                return Space(anchors, anchors[owners])
            rows = _unit_rows(encoder, candidates.tolist())
            return Space(anchors, rows, torch.from_numpy(places).to(rows.device))

        def of_both(numbers: Tensor) -> tuple[Tensor, Tensor]:
            return numbers.to(opened.placement.device), numbers[owners].to(opened.placement.device)

        negatives = hard_negatives(
            space(opened),
            of_both(duplicate_groups(*columns.values())),
            Rules(k, ranks, margin, relative),
            labels=None if dataset.labels is None else of_both(dataset.labels),
            guide=None if guide is None else space(open_encoder(guide, device, precision)),
            false_only=false_negatives,
        )
    found = {name: [texts[i] for i in negatives.rows.tolist()] for name, texts in columns.items()}
    found["false_negative" if false_negatives else "negative"] = candidates[
        negatives.columns.cpu().numpy()
    ].tolist()
    return Mined(found, negatives.scores.tolist(), negatives.false_share)


def _opened_data(opened: Any, source: Path, overrides: dict[str, Any]) -> Any:
    """The whole of `source`: as training data where roles of columns are named, else by item."""
    if not {"data.positive", "data.label"} & overrides.keys():
        return opened.open_data(source, overrides)
    config = opened.data_config({**data_overrides(source), **overrides})
    whole = {"limit": None, "holdout": 0.0}
    there = [k for k in whole if k in type(config).model_fields and f"data.{k}" not in overrides]
    config = config.model_copy(update={key: whole[key] for key in there})
    return opened.modality.load(config, "train")


def _unit_rows(encoder: Any, source: Any) -> Tensor:
    """Vectors of length 1, where the encoder computes."""
    with opened_items(encoder, source, None) as dataset:
        return normalize(encoder.embed(dataset), dim=1).to(encoder.placement.device)
