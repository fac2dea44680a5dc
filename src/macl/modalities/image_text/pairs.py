"""Pictures with captions: the data set and its batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.images.batch import ImageBatch
from macl.modalities.protocols import Dataset
from macl.modalities.text.data import TextDataset, duplicate_groups

Captions = tuple[str, ...]


class Pair(NamedTuple):
    """A picture, its captions, and the number of its concept."""

    image: Tensor
    """(3, h, w) uint8."""
    captions: Captions
    group: int


class PairBatch(NamedTuple):
    """B pictures, their captions and their concepts."""

    images: ImageBatch
    captions: list[Captions]
    groups: Tensor
    """(B,) int64; pairs of one concept are never each other's negatives."""


class PairDataset(Dataset):
    """Pictures with one or several captions each.

    Args:
        images: the pictures, with their names.
        captions: the captions of picture i, one at least.
        concepts: what picture i shows, N texts or (N,) numbers; pictures of one concept share all
            their captions.
        labels: (N,) int64 classes for evaluation.
        classes: their names.
        groups: (N,) int64, by default from captions and concepts; see `caption_groups`.
    """

    def __init__(
        self,
        images: Dataset,
        captions: Sequence[Captions],
        concepts: Sequence[str] | Tensor | None = None,
        labels: Tensor | None = None,
        classes: Sequence[str] = (),
        groups: Tensor | None = None,
    ) -> None:
        self.images, self.captions, self.concepts = images, captions, concepts
        self.names, self.labels, self.classes = images.names, labels, classes
        if groups is None:
            groups = caption_groups(captions, None if concepts is None else _listed(concepts))
        self.groups = groups

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, index: int) -> Pair:
        return Pair(self.images[index], self.captions[index], int(self.groups[index]))

    def collate(self, samples: list[Pair]) -> PairBatch:
        """Join pairs; which caption is used is drawn by the views."""
        return PairBatch(
            ImageBatch.of([pair.image for pair in samples]),
            [pair.captions for pair in samples],
            torch.tensor([pair.group for pair in samples]),
        )

    def select(self, indices: Tensor) -> PairDataset:
        """The pairs at `indices`, in that order."""
        images: Any = self.images
        return PairDataset(
            images.select(indices),
            _picked(self.captions, indices),
            None if self.concepts is None else _picked(self.concepts, indices),
            None if self.labels is None else self.labels[indices],
            self.classes,
            self.groups[indices],
        )

    def texts(self) -> TextDataset:
        """The distinct captions, in the order of their first picture."""
        return TextDataset([list(dict.fromkeys(c for own in self.captions for c in own))])

    def matches(self, texts: Sequence[str]) -> Tensor:
        """(P, 2) int64: picture i and caption j of `texts` belong together, ordered by picture.

        A caption fits every picture that has it, and every other picture of the same concept.
        """
        place = {text: j for j, text in enumerate(texts)}
        concepts = range(len(self)) if self.concepts is None else _listed(self.concepts)
        fitting: dict[Any, set[int]] = {}
        for concept, own in zip(concepts, self.captions, strict=True):
            fitting.setdefault(concept, set()).update(place[c] for c in own if c in place)
        found = [(i, j) for i, concept in enumerate(concepts) for j in sorted(fitting[concept])]
        return torch.tensor(found, dtype=torch.int64).reshape(-1, 2)


def _picked(values: Any, indices: Tensor) -> Any:
    """The values at `indices`: of a tensor, a list, or what selects by itself."""
    if isinstance(values, Tensor):
        return values[indices]
    if hasattr(values, "select"):
        return values.select(indices)
    return [values[i] for i in indices.tolist()]


def _listed(values: Sequence[str] | Tensor) -> Sequence[Any]:
    return values.tolist() if isinstance(values, Tensor) else values


def caption_groups(captions: Sequence[Captions], concepts: Sequence[str] | None = None) -> Tensor:
    """(N,) int64: pictures that share a caption or a concept share a number, also in steps.

    The number depends on captions and concepts alone, so that it is the same in every process.
    """
    if not captions:
        raise UserError("there is no picture with a caption.")
    most = max(map(len, captions))
    # Where a picture has fewer captions its last one is repeated, which joins nothing new.
    columns = [[own[min(k, len(own) - 1)] for own in captions] for k in range(most)]
    if concepts is not None:
        columns.insert(0, [f"concept\0{concept}" for concept in concepts])
    return duplicate_groups(*columns)
