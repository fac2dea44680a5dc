"""`macl mine`: hard negatives and near-duplicates of a data set."""

from __future__ import annotations

from pathlib import Path

from typer import Argument, Option

from macl import api
from macl.cli import arguments
from macl.cli.arguments import placed, typed
from macl.cli.console import message
from macl.core.outputs import MINED_SUFFIXES, check_file
from macl.modalities.hub import local_encoder


def mine(
    run: arguments.Encoder,
    source: str = Argument(
        metavar="INPUT", help="As for `macl embed`; data.positive=COLUMN names positives."
    ),
    output: Path = Option(..., "--output", "-o", help="A .parquet, .jsonl or .csv file to write."),
    overrides: arguments.Reading = None,
    k: int = Option(1, "-k", help="Negatives of an anchor, at most."),
    ranks: tuple[int, int] = Option((1, 100), help="First and last place by similarity."),
    margin: float | None = Option(None, help="How much less similar than the positive, at least."),
    relative: bool = Option(False, "--relative", help="The margin is a share of the similarity."),
    guide: str | None = Option(None, help="Another encoder, which judges what is too similar."),
    false_negatives: bool = Option(
        False, "--false-negatives", help="List what labels or the guide leave out instead."
    ),
    duplicates: bool = Option(False, "--duplicates", help="List near-duplicates, not negatives."),
    threshold: float = Option(0.95, help="Least cosine similarity of near-duplicates."),
    overwrite: bool = Option(False, "--overwrite", help="Replace the output if it exists."),
    download: arguments.Download = False,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
) -> None:
    """Find hard negatives for pairs, likely false ones, or near-duplicates."""
    check_file(output, MINED_SUFFIXES, overwrite)
    run = local_encoder(run, download)
    mined = api.mine(
        run,
        source,
        k=k,
        ranks=ranks,
        margin=margin,
        relative=relative,
        guide=guide,
        false_negatives=false_negatives,
        duplicates=threshold if duplicates else False,
        overrides=typed(overrides, run),
        progress=True,
        **placed(device, precision),
    )
    mined.save(output, overwrite=overwrite)
    what = "pairs of near-duplicates" if duplicates else "triplets"
    what = "likely false negatives" if false_negatives else what
    message(f"{len(mined):,} {what} in {output}")
    if mined.false_negative_share is not None:
        share = f"{mined.false_negative_share:.1%}"
        message(f"left out as likely false negatives: {share} of the nearest candidates")
