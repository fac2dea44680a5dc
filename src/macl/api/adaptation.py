"""`macl.adapt`: a pretrained encoder, adapted and judged."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from macl.api.common import PathLike, progress_bars
from macl.core.errors import UserError
from macl.core.progress import bars_fit
from macl.experiments import PAGE, SUMMARY

if TYPE_CHECKING:
    from lightning.pytorch import Callback

    from macl.experiments.adapt import Adapted
    from macl.recipes import Overrides


def adapt(
    encoder: PathLike,
    data: PathLike | None = None,
    *,
    out: PathLike | None = None,
    weights: PathLike | None = None,
    labels: PathLike | None = None,
    modality: str | None = None,
    seeds: int = 3,
    holdout: float = 0.2,
    lora: int | None = None,
    download: bool = False,
    overrides: Overrides | None = None,
    transform: Callable[..., Any] | None = None,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
) -> Adapted:
    """Adapt a pretrained encoder to your data without labels, and judge it before and after.

    The original is kept unless the adapted encoder is shown to be better on held-out items. The
    folder `out` holds the chosen encoder (`encoder/`, in the format it came in), adapt.json, a
    report page and the runs.

    Args:
        encoder: timm:NAME, torchvision:NAME, hf:OWNER/NAME, a folder of transformers,
            sentence-transformers, timm or `macl export`, package:NAME, or an earlier run. Or the
            folder of a finished adaptation, to judge it by `labels` that came later.
        data: a file or folder of items.
        out: the folder to write; started again, it continues.
        weights: a file for a network given by name.
        labels: a table with a heading: names of items, then one or more columns of labels; several
            labels of an item are separated by semicolons. By default the classes of the data.
        modality: where the encoder's form does not show it: "images" for a CLIP's vision tower.
        seeds: trainings.
        holdout: share of the items that training does not see.
        lora: train matrices of this rank alone.
        download: let the encoder's library fetch its weights.
        overrides: of the recipe: {"epochs": 1, "views.size": 96}.
        transform: makes the views of an image: of torchvision v2, albumentations, or a function.
        callbacks: further callbacks for the Lightning trainers.
        progress: show progress bars.
    """
    known = is_adapted(encoder, data, out, labels)
    folder = Path(encoder) if known or out is None else Path(out)

    from macl.core.files import owned_folder
    from macl.experiments import adapt as module
    from macl.modalities.hub import local_encoder
    from macl.reporting.adaptation import write_adaptation
    from macl.training.fit import Compute

    given = dict(overrides or {})
    if lora is not None:
        given["encoder.lora"] = {"rank": lora}
    if download:
        given["encoder.download"] = True
    with progress_bars(progress), owned_folder(folder):
        if labels is not None and known:
            adapted = module.rejudge(folder, Path(labels))
        else:
            assert data is not None
            adapted = module.adapt(
                local_encoder(str(encoder), download),
                Path(data),
                folder,
                modality=modality,
                weights=None if weights is None else Path(weights),
                labels=None if labels is None else Path(labels),
                seeds=seeds,
                holdout=holdout,
                overrides=given,
                transform=transform,
                callbacks=callbacks,
                compute=Compute(progress=progress and bars_fit()),
            )
        write_adaptation(adapted.folder)
    return adapted


def is_adapted(
    encoder: PathLike, data: PathLike | None, out: PathLike | None, labels: PathLike | None
) -> bool:
    """Whether `encoder` is a finished adaptation; `UserError` where the rest does not fit that."""
    if (Path(encoder) / SUMMARY).is_file():
        if labels is None or data is not None:
            raise UserError(
                f"{encoder} is a finished adaptation: give `labels=TABLE` to judge it again, and "
                f"no data. To adapt its encoder further, give {Path(encoder) / 'encoder'}."
            )
        return True
    if data is None or out is None:
        missing = ["the data to adapt to (`data=PATH`)"] if data is None else []
        missing += ["the folder to write (`out=DIR`)"] if out is None else []
        raise UserError(f"give {' and '.join(missing)}.")
    if all((Path(out) / name).is_file() for name in (SUMMARY, PAGE)):
        again = f"`macl.adapt({str(out)!r}, labels='TABLE')`"
        raise UserError(
            f"{out} holds a finished adaptation; choose another folder. {again} judges it by "
            "other labels."
        )
    return False
