"""`macl mine`: hard negatives and near-duplicates of a data set."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from macl.cli.arguments import (
    DeviceOption,
    DownloadOption,
    EncoderArgument,
    PrecisionOption,
    on_this_machine,
    placed,
    reading,
)
from macl.cli.console import escaped, message


def mine(
    run: EncoderArgument,
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="A file or folder, as for `macl embed`.")
    ],
    output: Annotated[
        Path,
        typer.Option("--output", "-o", help="The file to write; ends in .parquet, .jsonl or .csv."),
    ],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[KEY=VALUE]...",
            help="How to read the input, such as data.column=query data.positive=answer.",
        ),
    ] = None,
    k: Annotated[int, typer.Option("-k", help="Negatives of an anchor, at most.")] = 1,
    ranks: Annotated[
        tuple[int, int],
        typer.Option(help="First and last place among the candidates by similarity."),
    ] = (1, 100),
    margin: Annotated[
        float | None,
        typer.Option(help="By how much a negative is less similar than the positive, at least."),
    ] = None,
    relative: Annotated[
        bool, typer.Option("--relative", help="The margin is a share of the positive's similarity.")
    ] = False,
    guide: Annotated[
        str | None,
        typer.Option(help="Another encoder, which says what is too similar to be a negative."),
    ] = None,
    duplicates: Annotated[
        bool, typer.Option("--duplicates", help="List near-duplicates instead of negatives.")
    ] = False,
    threshold: Annotated[
        float, typer.Option(help="Least cosine similarity of near-duplicates.")
    ] = 0.95,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the output if it exists.")
    ] = False,
    download: DownloadOption = False,
    device: DeviceOption = "auto",
    precision: PrecisionOption = "auto",
) -> None:
    """Find hard negatives for pairs, or near-duplicates, in a file that can be trained on."""
    from macl import api
    from macl.api.mining import check_mined_output

    check_mined_output(output, overwrite)
    run = on_this_machine(run, download)
    found = api.mine(
        run,
        source,
        k=k,
        ranks=ranks,
        margin=margin,
        relative=relative,
        guide=guide,
        duplicates=threshold if duplicates else False,
        overrides=reading(run, overrides or ()),
        progress=True,
        **placed(device, precision),
    )
    found.save(output, overwrite=overwrite)
    what = "pairs of near-duplicates" if duplicates else "triplets"
    message(f"{len(found):,} {what} in {escaped(str(output))}")
    if found.false_negative_share is not None:
        share = f"{found.false_negative_share:.1%}"
        message(f"left out as likely false negatives: {share} of the nearest candidates")
