"""The protocols between a modality and the rest: data sets, views, and what embeds them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor

from macl.probes.score import Score

Inputs = Any
"""What `Dataset.collate` makes of samples: a tensor, a list of strings, a batch of graphs."""

View = Any
"""What an encoder takes: a tensor, a mapping of tensors, a batch of graphs."""


@runtime_checkable
class Dataset(Protocol):
    """A map-style dataset that knows what its items are called and, sometimes, what they are."""

    labels: Tensor | None
    """(N,) int64 classes, or None. Used by evaluation only, never by training."""

    names: Sequence[str]
    """What a person calls item i: a file name, a sentence, a SMILES string."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def collate(self, samples: list[Any]) -> Inputs:
        """Join samples into the inputs that views take, without randomness: that is the views'."""
        ...


@runtime_checkable
class Views(Protocol):
    """Two random views of a batch for training, one plain view for everything else.

    Randomness comes from torch's global generator of the device alone, which the engine seeds at
    every step; that is what makes a resumed run equal to an uninterrupted one.
    """

    def __call__(self, inputs: Inputs) -> tuple[View, ...]:
        """Two views; a third, where the data has one, holds hard negatives."""
        ...

    def plain(self, inputs: Inputs) -> View:
        """The inputs as they are, for evaluation and embedding."""
        ...


Embed = Callable[[Dataset], Tensor]
"""A data set through the frozen encoder in eval mode, in order: (N, D) float32 on the CPU."""

Look = Callable[[Embed], Score | None]
"""Judges an encoder by how it embeds, quickly."""
