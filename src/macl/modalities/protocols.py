"""The contracts between a modality and the rest: data sets, views, and what embeds them."""

from __future__ import annotations

import abc
import hashlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from macl.core.errors import UserError
from macl.probes.score import Score

Inputs = Any
"""What `Dataset.collate` makes of samples: a tensor, a list of strings, a batch of graphs."""

View = Any
"""What an encoder takes: a tensor, a mapping of tensors, a batch of graphs."""


class SkippedRow(NamedTuple):
    """A row of the user's file that could not be read."""

    row: int
    """Counted from 1."""
    name: str
    reason: str


class Dataset(abc.ABC):
    """A map-style data set whose items have names and, sometimes, classes."""

    names: Sequence[str]
    """What a person calls item i: a file name, a sentence, a SMILES string."""
    labels: Tensor | None = None
    """(N,) int64 classes, or None. Training uses them only with a loss that takes labels."""
    classes: Sequence[str] = ()
    """The name of class c, where known."""
    has_negatives: bool = False
    """Whether every item brings a hard negative, which the views give as a third view."""
    rows: Sequence[int] | None = None
    """The row of the user's file, from 1, that item i was read from; None where item i is row i."""
    skipped_rows: Sequence[SkippedRow] = ()
    """The rows of the user's file that are not here."""

    @abc.abstractmethod
    def __len__(self) -> int: ...

    @abc.abstractmethod
    def __getitem__(self, index: int) -> Any: ...

    @abc.abstractmethod
    def collate(self, samples: list[Any]) -> Inputs:
        """Join samples into the inputs that views take, without randomness: that is the views'."""

    def size(self, index: int) -> int:
        """How large an item is: when embedded, those of similar size share a batch."""
        return 1


class DataMark(NamedTuple):
    """Identifies data without reading all of it."""

    samples: int
    names: str
    """A hash of some of the names, evenly spread."""

    @classmethod
    def of(cls, dataset: Dataset, most: int = 1000) -> DataMark:
        """The mark of a data set, from at most `most` + 1 names."""
        n = len(dataset)
        chosen = sorted({i * (n - 1) // most for i in range(most + 1)}) if n else []
        text = "\n".join(dataset.names[i] for i in chosen)
        return cls(n, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())

    def require_same(self, before: DataMark) -> None:
        """Raise `UserError` unless this is the data that a run began with."""
        if self == before:
            return
        change = (
            f"{before.samples:,} samples then, {self.samples:,} now"
            if self.samples != before.samples
            else "as many samples, but other ones or in another order"
        )
        raise UserError(
            f"the training data is not what the run began with: {change}. Resume it with that "
            "data, or train on this into another folder (`out=`)."
        )


class Views(abc.ABC):
    """Two random views of a batch for training, one plain view for everything else.

    Randomness comes from torch's global generator of the device alone, which the trainer seeds at
    every step; that is what makes a resumed run equal to an uninterrupted one.
    """

    groups: Callable[[Inputs], Tensor] | None = None
    """Duplicates of a batch: inputs → (B,) int64; samples of one group are never each other's
    negatives. With hard negatives their groups follow, (2B,) in all. None: there are no groups."""

    on_host: ClassVar[bool] = False
    """Whether the trainer makes views before it moves them to a device: where their sizes depend on
    what is drawn, a device would be waited for."""

    @abc.abstractmethod
    def __call__(self, inputs: Inputs) -> tuple[View, ...]:
        """Two views; a third, where the data has one, holds hard negatives."""

    @abc.abstractmethod
    def plain(self, inputs: Inputs) -> View:
        """The inputs as they are, for evaluation and embedding."""

    def light(self, inputs: Inputs) -> View:
        """Random crops and flips alone, for a linear probe that augments its training items."""
        raise UserError("evaluation.linear.augment=true is for images; leave it out.")

    def by(self, transform: Callable[..., Any]) -> Views:
        """The same with random views by a user's own transform of an item."""
        raise UserError(f"{type(self).__name__} are not made by a transform; leave it out.")


class Embed(Protocol):
    """A data set through the frozen encoder in eval mode, in order."""

    def __call__(self, dataset: Dataset, /, *, augmented: bool = False) -> Tensor:
        """(N, D) float32, on the CPU or the encoder's device; `augmented`: of `Views.light`."""


Monitor = Callable[[Embed], Score]
"""Scores an encoder quickly during training, from how it embeds; larger is better."""


@dataclass(frozen=True)
class Items:
    """N captions and, where the modality has them, N pictures or N drawings."""

    captions: list[str]
    pictures: Iterable[Tensor] | None = None
    """(3, h, w) uint8 each, read when iterated over."""
    drawings: list[str | None] | None = None
    """SVG documents; None for an item that cannot be drawn."""


class Graph(NamedTuple):
    """A network with named inputs that is written to one ONNX file."""

    file: str
    network: nn.Module
    """Its result is (B, out_dim)."""
    inputs: Mapping[str, Tensor]
    """An example of each input, (B, …)."""
    as_mapping: bool = False
    """Whether the network takes the inputs as one mapping, or each by its position."""
    others: Mapping[str, Tensor] | None = None
    """Other inputs, of another size, that the file is checked with; None: random numbers."""
    free: tuple[int, ...] = (0,)
    """Dimensions of every input that may have any size: the batch, and 1 for a length."""

    def arguments(self, inputs: Mapping[str, Any]) -> tuple[Any, ...]:
        """What the network is called with."""
        return (dict(inputs),) if self.as_mapping else tuple(inputs.values())
