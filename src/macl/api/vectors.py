"""Vectors of data: embed, index, search."""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from macl.api.common import PathLike, progress_bars
from macl.core.errors import UserError
from macl.core.launch import launched_processes, launched_rank
from macl.experiments.executors import check_executor, outcomes
from macl.modalities.embedding import leading
from macl.modalities.protocols import Dataset
from macl.recipes import Overrides
from macl.runs.elsewhere import Elsewhere, RunLike, open_encoder, opened_items
from macl.runs.index import Index, Match, build
from macl.runs.parts import Plan, share_of, write_parts
from macl.runs.stored import Condition
from macl.runs.vectors import Vectors, fingerprint, write_skipped


def embed(
    run: RunLike | Elsewhere,
    source: PathLike | Sequence[Any] | Dataset,
    *,
    dims: int | None = None,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> Vectors:
    """Turn data into vectors with the encoder of a run.

    Args:
        run: a run or its folder; or an encoder: an exported folder, a weights file, a name.
        source: a file, a folder, a data set object, or a list: of sentences or SMILES strings for
            text and molecules, of networkx graphs or PyG `Data` for graphs.
        dims: only the first coordinates of every vector, as of an encoder trained with `loss.dims`.
        overrides: of the data section, for how `source` is read: {"data.column": "sentence"}.
        device: "auto" is a GPU if there is one, else the CPU; or "cpu", "cuda:1".
        precision: "32", "bf16" or "16"; "auto" is bf16 where a GPU computes in it, else 32.
        progress: show a progress bar.
    """
    opened = open_encoder(run, device, precision)
    with progress_bars(progress), opened_items(opened, source, overrides) as dataset:
        mark = fingerprint(opened.encoder)  # before its weights are moved to a device
        vectors = leading(opened.embed, dims)(dataset)
        return Vectors(vectors, list(dataset.names), dataset.rows, dataset.skipped_rows, mark)


def embed_parts(
    run: RunLike,
    source: PathLike | Sequence[Any] | Dataset,
    folder: PathLike,
    *,
    parts: tuple[int, int] = (1, 1),
    dtype: str = "float32",
    part_items: int = 65_536,
    dims: int | None = None,
    executor: str = "local",
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
    progress: bool = False,
) -> list[int]:
    """Turn data into a folder of part-00017.parquet files, in memory that does not grow with it.

    A part that is there is never made again: the same call continues what was stopped, and calls
    on several machines that share the folder divide the parts, as do the ranks of torchrun.
    Arguments that are not listed are as for `embed`.

    Args:
        folder: new, or with some parts of the same encoder and data.
        parts: (i, n): make every n-th part, beginning with the i-th.
        dtype: of the stored numbers: "float32", "float16" or "int8".
        part_items: items of a part.
        executor: "local": here; "submitit" or "ray": the parts are jobs or tasks of a cluster.

    Returns:
        The parts that are still missing: those of other calls.
    """
    check_executor(executor)
    if executor != "local" and not all(isinstance(x, str | os.PathLike) for x in (run, source)):
        raise UserError(f"`executor={executor}`: give the run and the data as paths.")
    opened, place = open_encoder(run, device, precision), Path(folder)
    with progress_bars(progress), opened_items(opened, source, overrides) as dataset:
        plan = Plan.of(dataset, fingerprint(opened.encoder), dtype, part_items, dims)
        own = share_of(range(plan.parts), *parts)
        here, nodes = launched_processes() or (1, 1)
        own = own[launched_rank() :: here * nodes]
        plan.claim(place)
        write_skipped(place / "input", dataset.skipped_rows)
        if executor == "local":
            write_parts(leading(opened.embed, dims), dataset, place, plan, own)
        else:
            job: dict[str, Any] = {"run": run, "source": source, "overrides": overrides}
            job |= {"folder": place, "plan": plan, "device": device, "precision": precision}
            part = partial(_write_part, **job)
            todo = [number for number in own if number in plan.missing(place)]
            for _ in outcomes(part, todo, executor, 1, place / ".jobs"):
                pass
    return plan.missing(place)


def _write_part(
    number: int, *, run: Any, source: Any, folder: Path, plan: Plan, overrides: Any, **where: str
) -> None:
    """Make a part in a process elsewhere, which opens encoder and data once."""
    key = str((run, source, overrides, where))
    if key not in _opened:
        _opened.clear()
        opened = open_encoder(run, **where)
        _opened[key] = opened.embed, opened.open_data(Path(source), overrides)
    encode, dataset = _opened[key]
    write_parts(leading(encode, plan.dims), dataset, folder, plan, [number])


_opened: dict[str, Any] = {}
"""What this process embeds with."""


def search(
    run: RunLike,
    query: PathLike,
    vectors: PathLike | Vectors,
    *,
    k: int = 10,
    where: Sequence[Condition] = (),
    store: str | None = None,
    overrides: Overrides | None = None,
    device: str = "auto",
    precision: str = "auto",
) -> list[Match]:
    """List the stored vectors nearest to a query, by cosine similarity, nearest first.

    `device`, `precision` are as in `embed`.

    Args:
        run: the run, or its folder, whose encoder made the vectors.
        query: a file with one item; or, for encoders of text, the text itself. With image–text
            either side searches either: a text finds pictures, a picture finds texts.
        vectors: what `macl embed` or `macl index` wrote, or what `macl.embed` returned.
        k: how many to list.
        where: only rows that meet all these conditions on columns: [("label", "==", "cat")].
        store: where the data of an index are, if `index` put them elsewhere.
        overrides: of the data section, for how a query file is read.
    """
    opened = Index.open(vectors, run, store=store, device=device, precision=precision)
    return opened.query(query, k, where=where, overrides=overrides)


def index(
    vectors: PathLike,
    out: PathLike,
    *,
    engine: str = "faiss",
    kind: str | None = None,
    store: str | None = None,
    recall: float = 0.95,
    run: RunLike | None = None,
) -> Index:
    """Build an index of stored vectors, judged by a sample: recall@10 and queries a second.

    Args:
        vectors: what `macl embed` wrote.
        out: the folder of the index, which is new.
        engine: "faiss" in memory, or "lancedb" on disk or in an object store.
        kind: in the engine's words: "HNSW32" or "IVF4096,PQ48" for faiss, "HnswSq" for lancedb.
        store: with lancedb, where the data go: "s3://bucket/photos"; by default into `out`.
        recall: searches look as widely as this recall@10 needs.
        run: whose encoder `Index.query` uses for texts and files.
    """
    if not 0 < recall <= 1:
        raise UserError(f"recall={recall}: a share between 0 and 1.")
    build(Path(vectors), Path(out), engine, kind, store, recall)
    return Index.open(out, run, store=store)
