"""Reports whether embeddings suffer from either dilemma or from collapse, and what to change.

    from macl import diagnose
    print(diagnose(z1, z2, temperature=0.1))

`measure` and `space` measure, `assess` compares with thresholds, `advise` turns findings
into changes. `macl.evaluation.diagnose` does it for a run.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from macl.diagnosis.advise import advise
from macl.diagnosis.assess import assess
from macl.diagnosis.measure import Contrast, GradientProfile, gradient_profile
from macl.diagnosis.result import Advice, Diagnosis, Finding
from macl.diagnosis.space import Space, describe
from macl.losses import ContrastiveLoss, NTXent
from macl.losses.build import Inputs

__all__ = ["Advice", "Diagnosis", "Finding", "diagnose"]


def diagnose(
    z1: Tensor,
    z2: Tensor,
    temperature: float | None = None,
    *,
    loss: ContrastiveLoss | None = None,
    labels: Tensor | None = None,
    bank: Tensor | None = None,
    names: Sequence[str] | None = None,
    batch_size: int | None = None,
    features: Tensor | None = None,
) -> Diagnosis:
    """Diagnose the embeddings of two views as the loss sees them.

    Under torch.distributed call it on every rank, as the loss: alignment is a global mean.

    Args:
        z1: (N, D) embeddings of one view, of any scale.
        z2: (N, D) of the other; row i of both is the same item.
        temperature: τ of NT-Xent, which is assumed where no `loss` is given. Default 0.1.
        loss: the loss in use, with its temperature and its negatives.
        labels: (N,) integer classes, where they are known.
        bank: (K, D) negatives in place of the batch's own, such as MoCo's queue.
        names: the names of the N items.
        batch_size: rows are contrasted within batches of this many, in order, as in training; a
            short last one is left out. Default: all N rows are one batch.
        features: (N, D') output of the encoder below the projector; checked for collapse too.

    Raises:
        ValueError: shapes that do not go together, NaN, too few rows.
    """
    if loss is None:
        loss = NTXent(0.1 if temperature is None else temperature)
    elif temperature is not None:
        raise ValueError("a loss has its own temperature: give temperature or loss, not both.")
    for name, given in (("labels", labels), ("names", names), ("features", features)):
        if given is not None and len(given) != len(z1):
            raise ValueError(f"{name} has {len(given)} entries, z1 has {len(z1)} rows.")
    size = len(z1) if batch_size is None else min(batch_size, len(z1))
    if batch_size is not None and batch_size < 2:
        raise ValueError(f"batch_size must be 2 or more, got {batch_size}.")
    items, profiles = torch.arange(len(z1), device=z1.device), []
    for start in range(0, len(z1) - size + 1, size or 1):
        b = slice(start, start + size)
        own = labels[b] if loss.takes_labels and labels is not None else None
        inputs = Inputs(z1[b], z2[b], bank=bank, indices=items[b], positives=own)
        profiles.append(gradient_profile(loss, inputs))
    profile = GradientProfile.join(profiles)
    contrast = Contrast(loss, profile, (z1, z2), labels, names, has_bank=bank is not None)
    below = None if features is None else describe(features)
    return conclude(describe(z1, labels), below, contrast)


def conclude(
    space: Space, features: Space | None, contrast: Contrast | None, notes: Sequence[str] = ()
) -> Diagnosis:
    """The diagnosis that follows from measurements; without `contrast`, of geometry alone."""
    findings = assess(space, features, contrast)
    advice = advise(space, contrast, {finding.name: finding for finding in findings})
    about = f"{space.items:,} items in {space.dimensions} dimensions"
    if contrast is not None:
        about += (
            f", contrasted by {type(contrast.loss).__name__} with "
            f"{contrast.profile.count.median().item():,.0f} negatives each"
        )
    return Diagnosis(tuple(findings), tuple(advice), (f"{about}.", *notes))
