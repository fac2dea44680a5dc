"""Views of a pair: an augmented image, and the tokens of one of its captions."""

from __future__ import annotations

from operator import attrgetter

import torch
from torch import Tensor

from macl.modalities.image_text.pairs import PairBatch
from macl.modalities.image_text.sections import PairViewsConfig
from macl.modalities.image_text.towers import FEATURES, CaptionFeatures, TwoTowers
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.views import ImageViews
from macl.modalities.protocols import Views
from macl.modalities.text.data import TextBatch
from macl.modalities.text.views import TextViews


class PairViews(Views):
    """View 1 is a tensor for the image tower, view 2 a mapping of tensors for the text tower.

    Where the towers know the captions of the training data, view 2 holds the features of a frozen
    text tower instead of tokens.
    """

    def __init__(self, config: PairViewsConfig, towers: TwoTowers) -> None:
        self.image = ImageViews(config.image)
        self.text = TextViews(config.text, towers.text)
        self.max_length = config.text.max_length
        self.groups = attrgetter("groups")  # by concepts
        self.features: CaptionFeatures | None = None
        if towers.captions is not None:
            self.features = CaptionFeatures(towers.captions, towers.text, self.max_length)

    def __call__(self, inputs: PairBatch) -> tuple[Tensor, dict[str, Tensor]]:
        """(B, 3, size, size) images and (B, T) tokens of a random caption of each."""
        (image,) = self.image.draw(inputs.images, 1)
        captions = draw_captions(inputs)
        if self.features is not None:
            return image, {FEATURES: self.features(captions)}
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
