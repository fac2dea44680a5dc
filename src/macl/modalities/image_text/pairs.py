"""Images with captions: the data set, its batches and their views."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from functools import cached_property
from operator import attrgetter
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from macl.core import batching
from macl.core.progress import track
from macl.modalities.image_text.sections import PairViewsConfig
from macl.modalities.image_text.towers import FEATURES, TwoTowers
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sources import read_digits
from macl.modalities.images.views import ImageViews
from macl.modalities.protocols import Dataset, Views
from macl.modalities.splits import picked
from macl.modalities.text.data import TextBatch, TextDataset, duplicate_groups
from macl.modalities.text.encoders import TextViews

Captions = tuple[str, ...]

Pair = tuple[Tensor, Captions, int]
"""An image, (3, h, w) uint8, its captions, and the number of its group."""

BATCH = 256
"""Captions that a frozen tower encodes at once."""


class PairBatch(NamedTuple):
    """B images, their captions and their concepts."""

    images: ImageBatch
    captions: list[Captions]
    groups: Tensor
    """(B,) int64; pairs of one concept are never each other's negatives."""


class PairDataset(Dataset):
    """Images with one or several captions each, and perhaps classes for evaluation.

    Images of one concept, a text or number each, share all their captions. `groups`, (N,) int64,
    are by default from captions and concepts.
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
        self.groups = caption_groups(captions, concepts) if groups is None else groups

    def __len__(self) -> int:
        return len(self.captions)

    def __getitem__(self, index: int) -> Pair:
        return self.images[index], self.captions[index], int(self.groups[index])

    def collate(self, samples: list[Pair]) -> PairBatch:
        """Join pairs; which caption is used is drawn by the views."""
        images, captions, groups = zip(*samples, strict=True)
        return PairBatch(ImageBatch.of(images), list(captions), torch.tensor(groups))

    def select(self, indices: Tensor) -> PairDataset:
        """The pairs at `indices`, in that order."""
        chosen = copy.copy(self)
        for name in ("images", "captions", "concepts", "names", "labels", "groups"):
            setattr(chosen, name, picked(getattr(self, name), indices))
        return chosen

    def texts(self) -> TextDataset:
        """The distinct captions, in the order of their first image."""
        return TextDataset([list(dict.fromkeys(c for own in self.captions for c in own))])

    def matches(self) -> Tensor:
        """(P, 2) int64: image i and caption j of `texts()` belong together, ordered by image.

        A caption fits every image that has it, and every other image of the same concept.
        """
        place = {text: j for j, text in enumerate(self.texts().names)}
        concepts = np.asarray(range(len(self)) if self.concepts is None else self.concepts).tolist()
        fitting: dict[Any, set[int]] = {}
        for concept, own in zip(concepts, self.captions, strict=True):
            fitting.setdefault(concept, set()).update(place[c] for c in own)
        pairs = [(i, j) for i, concept in enumerate(concepts) for j in sorted(fitting[concept])]
        return torch.tensor(pairs, dtype=torch.int64).reshape(-1, 2)


def caption_groups(captions: Sequence[Captions], concepts: Any = None) -> Tensor:
    """(N,) int64: images that share a caption or a concept share a `duplicate_groups` number."""
    most = max(map(len, captions))
    # Where an image has fewer captions its last one is repeated, which joins nothing new.
    columns = [[own[min(k, len(own) - 1)] for own in captions] for k in range(most)]
    if concepts is not None:
        columns.insert(0, [f"concept\0{concept}" for concept in concepts])
    return duplicate_groups(*columns)


WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

PHRASES = ("a handwritten {}", "the digit {}", "someone wrote the number {}", "{} in black ink")


def digit_pairs(split: str) -> PairDataset:
    """The digits of "train" or "test", each with every phrase about it; a digit is a concept."""
    images = read_digits(split)
    assert images.labels is not None
    words = [WORDS[label] for label in images.labels.tolist()]
    captions = [tuple(phrase.format(word) for phrase in PHRASES) for word in words]
    return PairDataset(images, captions, words, images.labels, WORDS)


class PairViews(Views):
    """An augmented image, and the tokens of one of its captions or a frozen tower's features."""

    def __init__(self, config: PairViewsConfig, towers: TwoTowers) -> None:
        self.image = ImageViews(config.image)
        self.text = TextViews(config.text, towers.text)
        self.max_length = config.text.max_length
        self.groups = attrgetter("groups")  # by concepts
        # Neighbors of equal length waste no padding.
        self.captions = sorted(towers.captions or (), key=len, reverse=True)
        self.place = {caption: row for row, caption in enumerate(self.captions)}

    @cached_property
    @torch.no_grad()
    def features(self) -> Tensor:
        """What the frozen tower gives of all captions, whichever batch asks for them."""
        tower = self.text.encoder
        starts = range(0, len(self.captions), BATCH)
        batches = (self.captions[start : start + BATCH] for start in starts)
        texts = track(batches, "captions", len(starts))
        return torch.cat([tower(tower.tokenize(some, self.max_length)) for some in texts])

    def __call__(self, inputs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, 3, size, size) images and (B, T) tokens of a random caption of each."""
        (image,) = self.image.draw(inputs.images, 1)
        captions = draw_captions(inputs)
        if self.captions:
            rows = torch.tensor([self.place[caption] for caption in captions])
            return image, {FEATURES: self.features[batching.move(rows, self.features.device)]}
        return image, self.text.encoder.tokenize(captions, self.max_length)

    def plain(self, inputs: PairBatch | ImageBatch | TextBatch) -> Tensor | dict[str, Tensor]:
        """The view of one side: texts give tokens, images and pairs give images."""
        if isinstance(inputs, TextBatch):
            return self.text.plain(inputs)
        return self.image.plain(inputs.images if isinstance(inputs, PairBatch) else inputs)


def draw_captions(batch: PairBatch) -> list[str]:
    """One caption of each image, uniformly, from torch's generator of the CPU."""
    draws = torch.rand(len(batch.captions)).tolist()
    pairs = zip(batch.captions, draws, strict=True)
    return [own[min(int(draw * len(own)), len(own) - 1)] for own, draw in pairs]
