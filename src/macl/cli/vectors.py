"""Vectors of your data: `macl embed`, `macl index`, `macl search`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from typer import Argument, Option

from macl import api
from macl.api.common import existing
from macl.cli import arguments
from macl.cli.arguments import placed, typed
from macl.cli.console import message, table, written
from macl.core.errors import UserError
from macl.core.outputs import check_output
from macl.core.shown import one_line, to_cell
from macl.modalities.hub import local_encoder

if TYPE_CHECKING:
    from collections.abc import Sequence


def embed(
    run: arguments.Encoder,
    source: str = Argument(
        metavar="INPUT",
        help="A file or folder to embed; - reads sentences or SMILES, one a line, from standard "
        "input.",
    ),
    output: Path = Option(
        ...,
        "--output",
        "-o",
        help="The file to write; ends in .parquet, .npy, .npz or .csv. Any other name is a folder "
        "of part-00017.parquet files, which the same command continues.",
    ),
    overrides: arguments.Reading = None,
    parts: str = Option("1/1", metavar="I/N", help="Of a folder, every N-th part from the I-th."),
    part_items: int = Option(65_536, min=1, help="With a folder: items of a part."),
    dtype: str = Option("float32", help="Of numbers in .parquet files: float32, float16 or int8."),
    executor: arguments.Executor = "local",
    overwrite: bool = Option(False, "--overwrite", help="Replace the output, and files beside it."),
    dims: int | None = Option(None, min=1, help="Only so many first coordinates of vectors."),
    plane: bool = Option(
        False,
        "--map",
        help="Add a projection to the plane, thumbnails and classes to a .parquet file, which "
        "embedding-atlas then shows.",
    ),
    download: arguments.Download = False,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """Turn your data into vectors, with their names beside them."""
    if plane and (output.suffix != ".parquet" or source == "-"):
        raise UserError("--map adds columns to a .parquet file of the items in a file or folder.")
    folder = output.suffix == "" or output.is_dir()
    if not folder:
        if (parts, executor) != ("1/1", "local"):
            raise UserError(f"--parts and --executor need a folder; {output} is a file.")
        check_output(output, overwrite, dtype)
    if source != "-":
        existing(Path(source))
    run = local_encoder(run, download)
    given = typed(overrides, run)

    items: str | Sequence[str] = source
    if source == "-":
        items = [line.rstrip("\n") for line in sys.stdin if line.strip()]
        if not items:
            raise UserError("standard input is empty: give one sentence or SMILES a line.")
    options: dict[str, Any] = {"dims": dims, "overrides": given, "progress": True}
    options |= placed(device, precision)
    if folder:
        missing = api.embed_parts(
            run,
            items,
            output,
            parts=_fraction(parts),
            part_items=part_items,
            dtype=dtype,
            executor=executor,
            **options,
        )
        if missing:
            message(f"{len(missing)} parts of {output} are still to be made")
            return
        from macl.runs.stored import Stored

        stored = Stored.open(output)
        size = f"{len(stored):,} vectors of {stored.width} dimensions"
        message(f"{size} in {len(stored.parts)} parts in {output}")
        for file in sorted(output.glob("*.skipped.csv")):
            message(f"failed items: {file}")
        return
    vectors = api.embed(run, items, **options)
    first, *beside = vectors.save(output, dtype=dtype, overwrite=overwrite)
    size = f"{len(vectors):,} vectors of {vectors.values.shape[1]} dimensions"
    message(f"{size} in {first}")
    if plane:
        added = api.add_map(first, run, source, overrides=given)
        message(f"columns for a viewer: {', '.join(added)}")
    written(*beside)


def _fraction(text: str) -> tuple[int, int]:
    """(2, 4) of "2/4"."""
    number, slash, count = text.partition("/")
    if not (slash and number.isdecimal() and count.isdecimal()):
        raise UserError(f"--parts {text}: write I/N, such as 1/4 for the first of four.")
    return int(number), int(count)


def index(
    vectors: Path = Argument(callback=existing, help="What `macl embed` wrote."),
    output: Path = Option(..., "--output", "-o", help="The folder to write, new."),
    engine: str = Option("faiss", help="faiss: in memory; lancedb: on disk or in an object store."),
    kind: str | None = Option(
        None,
        help="In the engine's words: HNSW32 or IVF4096,PQ48 for faiss; IvfPq, IvfFlat, HnswPq or "
        "HnswSq for lancedb. Default: IVF-PQ with refinement.",
    ),
    store: str | None = Option(None, help="Where the data of lancedb go: s3://bucket/photos."),
    recall: float = Option(0.95, help="Search as widely as this recall@10 needs."),
) -> None:
    """Index stored vectors for `macl search`; prints recall@10 and queries a second."""
    built = api.index(vectors, output, engine=engine, kind=kind, store=store, recall=recall).built
    assert built is not None
    settings = ", ".join(f"{key} {value}" for key, value in built.settings.items() if value)
    message(f"{built.count:,} vectors in {output}: {built.engine}, {settings}")
    message(
        f"recall@10 {built.recall:.3f}, {built.queries_per_second:,.0f} queries a second, built in "
        f"{built.build_seconds:.1f} s"
    )


def search(
    run: arguments.Encoder,
    query: str = Argument(help="A text, or a file with one item such as a picture."),
    vectors: Path = Option(
        ..., "--in", callback=existing, help="What `macl embed` or `index` wrote with this run."
    ),
    overrides: arguments.Reading = None,
    k: int = Option(10, "-k", min=1, help="How many to list."),
    where: list[str] | None = Option(
        None,
        metavar="COLUMN=VALUE",
        help="Only rows that meet this: label=cat, label=cat,dog, row<1000. May be repeated.",
    ),
    store: str | None = Option(None, help="Where `macl index --store` put the data."),
    output: Path | None = Option(
        None,
        "--output",
        "-o",
        help="Take every item of the file QUERY as a query, and write the results to this .csv "
        "file.",
    ),
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """List the vectors nearest to a query, with their cosine similarity."""
    from macl.core.files import write_csv
    from macl.runs.index import Index
    from macl.runs.stored import parse_condition

    if output is not None and output.suffix != ".csv":
        raise UserError(f"{output}: results are written as .csv.")
    options: dict[str, Any] = {
        "where": list(map(parse_condition, where or ())),
        "overrides": typed(overrides, run),
    }
    index = Index.open(vectors, run, store=store, **placed(device, precision))
    if output is not None:
        answers = index.query_all(query, k, **options)
        lines = [
            (to_cell(name), rank, to_cell(m.name), m.score, m.row)
            for name, matches in answers
            for rank, m in enumerate(matches, start=1)
        ]
        write_csv(output, ("query", "rank", "name", "score", "row"), lines)
        message(f"{len(answers):,} queries, written: {output}")
        return
    nearest = index.query(query, k, **options)
    rows = [
        (number, f"{m.score:.4f}", one_line(m.name)) for number, m in enumerate(nearest, start=1)
    ]
    table(f"Nearest to {query}", ("rank", "score", "name"), rows)
