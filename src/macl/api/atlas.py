"""What a viewer of embeddings needs beside the vectors: a plane, pictures, classes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow import parquet

from macl.api.common import PathLike
from macl.core.errors import UserError
from macl.core.files import atomic_write
from macl.recipes import Overrides
from macl.reporting import Projection
from macl.reporting.items import square_thumbnail
from macl.reporting.map import choose_projection, lay_out
from macl.runs.elsewhere import RunLike, open_encoder
from macl.runs.vectors import read_vectors


def add_map(
    vectors: PathLike,
    run: RunLike,
    source: PathLike,
    *,
    projection: str | None = None,
    overrides: Overrides | None = None,
) -> list[str]:
    """Add columns to a .parquet file of vectors, so that `embedding-atlas` opens it as it is.

    `x` and `y` are a projection to the plane; `image` holds thumbnails where items are pictures,
    `label` classes where there are any. Sentences and SMILES strings are in `name` already.

    Args:
        vectors: what `embed` made of `source`, saved as .parquet; it is replaced.
        run: the run or encoder that made them.
        source: the items.
        projection: "umap" or "pca"; by default UMAP for 1,000 items or more, where it is installed.
        overrides: of the data section, as for `embed`.

    Returns:
        The names of the columns that were added.
    """
    file = Path(vectors)
    if file.suffix != ".parquet":
        raise UserError(f"{file}: a map is added to a .parquet file.")
    stored = read_vectors(file)
    opened = open_encoder(run, "cpu")
    dataset = opened.open_data(Path(source), overrides)
    if list(map(str, dataset.names)) != stored.names:
        raise UserError(f"{file} does not hold the items of {source}: embed them again.")
    wanted = Projection(projection) if projection else None
    plane = lay_out(stored.values, choose_projection(len(stored.names), wanted))
    columns: dict[str, Any] = {axis: plane[:, k].astype("float32") for k, axis in enumerate("xy")}
    items = opened.modality.describe_items(dataset, range(len(dataset)))
    if items.pictures is not None:
        columns["image"] = [{"bytes": _thumbnail(picture)} for picture in items.pictures]
    if dataset.labels is not None and len(dataset.classes):
        columns["label"] = [dataset.classes[label] for label in dataset.labels.tolist()]
    table = parquet.read_table(file)
    for name, values in columns.items():
        table = table.append_column(name, pa.array(values))
    atomic_write(file, lambda out: parquet.write_table(table, out))
    return list(columns)


def _thumbnail(picture: Any) -> bytes:
    out = io.BytesIO()
    square_thumbnail(picture).save(out, "PNG")
    return out.getvalue()
