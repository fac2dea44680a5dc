"""Embeddings of the training data by a fixed guide model, which judges likely false negatives."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from macl.core.errors import UserError
from macl.methods import Method, MoCo
from macl.modalities.protocols import Dataset
from macl.recipes import Recipe
from macl.runs import Run
from macl.runs.elsewhere import Elsewhere


def guide_embeddings(recipe: Recipe, method: Method, dataset: Dataset) -> Tensor | None:
    """(samples, G) what the encoder `loss.guide` makes of the data; None where none is named.

    Raises:
        UserError: the guide cannot be opened, or the method's negatives are not of the data.
    """
    name = None if recipe.loss is None else recipe.loss.guide
    if name is None:
        return None
    if isinstance(method, MoCo):
        raise UserError(
            "loss.guide compares samples of a batch, and MoCo's negatives come from its queue: use "
            "method=simclr, or leave loss.guide out."
        )
    is_run = Run(Path(name)).recipe_file.is_file()
    opened = Run.open(Path(name)) if is_run else Elsewhere.open(name, modality=recipe.modality)
    if opened.modality.name != recipe.modality:
        raise UserError(f"loss.guide={name} is an encoder of {opened.modality.name}.")
    return opened.embed(dataset).clone()  # an ordinary tensor, which autograd may save
