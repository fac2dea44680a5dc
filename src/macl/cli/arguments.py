"""Arguments that several commands take."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from typer import Argument, Option

from macl.api.common import existing

Run = Annotated[Path, Argument(help="A run folder, as made by `macl train`.")]
Encoder = Annotated[
    str,
    Argument(
        metavar="RUN",
        help="A run folder; or an encoder: what `macl export` or `macl adapt` wrote, hf:NAME on "
        "the hub, or a pretrained one as for `macl evaluate --encoder`.",
    ),
]
Recipe = Annotated[str, Argument(help="A recipe's name or a YAML file.")]
Overrides = Annotated[
    list[str] | None,
    Argument(
        metavar="[KEY=VALUE]...",
        help="Values of the recipe to change, such as loss=dcl loss.temperature=0.2 epochs=20; "
        "`macl recipes NAME` shows a recipe.",
    ),
]
Reading = Annotated[
    list[str] | None,
    Argument(metavar="[KEY=VALUE]...", help="How to read the input, such as data.column=sentence."),
]
Data = Annotated[
    Path | None, Option(callback=existing, help="Your data: a file or a folder. Sets data.path.")
]
MovedData = Annotated[
    Path | None,
    Option(callback=existing, help="Where the run's training data is now, if it was moved."),
]
Device = Annotated[
    str, Option(help="auto: a GPU if there is one, else the CPU; or cpu, cuda:1, mps.")
]
Precision = Annotated[
    str, Option(help="32, bf16 or 16; auto: bf16 where a GPU computes in it, else 32.")
]
Download = Annotated[
    bool, Option("--download", help="Let hf:NAME be fetched from the Hugging Face hub.")
]
Jobs = Annotated[
    str,
    Option(
        metavar="N|auto",
        help="Runs at a time, on a GPU or a core each. auto: as many as there are GPUs, or cores.",
    ),
]
Devices = Annotated[
    int, Option(min=1, help="Processes that train each run: one for each GPU, or on the CPU.")
]
Executor = Annotated[
    str,
    Option(
        help="Who runs the work: local, here; submitit, as an array of SLURM jobs; ray, on the "
        "cluster of ray. The last two need macl[cluster] and folders that all machines share."
    ),
]


def placed(device: str, precision: str) -> dict[str, Any]:
    """Both as arguments of `macl.api`, once they are checked and printed."""
    from macl.cli.console import message
    from macl.core.devices import place

    message(f"encoding on {place(device, precision)}")
    return {"device": device, "precision": precision}


def typed(
    texts: list[str] | None,
    name: str,
    *,
    modality: str | None = None,
    default_section: str | None = None,
) -> dict[str, Any]:
    """Overrides for a run or an encoder, typed by the run's recipe or the encoder's modality."""
    if not texts:
        return {}
    from macl import recipes

    stored = stored_recipe(name)
    if stored is not None:
        values = recipes.read(stored)
    elif modality is not None:
        values = {"modality": modality}
    else:
        from macl.runs.elsewhere import recognize

        values = {"modality": recognize(name).name}
    return dict(recipes.parse(texts, values, default_section=default_section))


def stored_recipe(folder: str) -> str | None:
    """The recipe file of a run folder; None where there is none."""
    file = Path(folder) / "recipe.yaml"
    return str(file) if file.is_file() else None
