"""The digits of scikit-learn with captions: pairs that need no file."""

from __future__ import annotations

from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.images.sources import read_digits

WORDS = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")

PHRASES = ("a handwritten {}", "the digit {}", "someone wrote the number {}", "{} in black ink")


def digit_pairs(split: str) -> PairDataset:
    """The digits of "train" or "test", each with every phrase about it; a digit is a concept."""
    images = read_digits(split)
    assert images.labels is not None
    words = [WORDS[label] for label in images.labels.tolist()]
    captions = [tuple(phrase.format(word) for phrase in PHRASES) for word in words]
    return PairDataset(images, captions, words, images.labels, WORDS)
