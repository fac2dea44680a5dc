"""How strongly images are augmented: the settings of SimCLR for each kind of image."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Interpolation = Literal["bilinear", "bicubic"]
"""How pixels of a resized image are computed; antialiased, as Pillow does it."""


@dataclass(frozen=True)
class Augmentation:
    """The settings of one view, in the order they are applied."""

    size: int | None
    """Output side; None keeps the images' own."""
    crop_scale: tuple[float, float]
    """Area of the crop as a share of the image."""
    crop_ratio: tuple[float, float]
    """Width over height of the crop."""
    flip: float
    """Probability of mirroring left to right; the other probabilities end in _p."""
    jitter: tuple[float, float, float, float]
    """Strength of brightness, contrast, saturation and hue."""
    jitter_p: float
    gray_p: float
    blur_p: float
    blur_sigma: tuple[float, float]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    crop: float | None
    """Evaluation: side of the central crop over the short side of the resized image; None: the
    whole image, resized to a square."""
    interpolation: Interpolation = "bilinear"


IMAGENET = Augmentation(
    size=224,
    crop_scale=(0.08, 1.0),
    crop_ratio=(3 / 4, 4 / 3),
    flip=0.5,
    jitter=(0.8, 0.8, 0.8, 0.2),
    jitter_p=0.8,
    gray_p=0.2,
    blur_p=0.5,
    blur_sigma=(0.1, 2.0),
    mean=(0.485, 0.456, 0.406),
    std=(0.229, 0.224, 0.225),
    crop=0.875,
)

CIFAR = replace(
    IMAGENET,
    size=None,
    jitter=(0.4, 0.4, 0.4, 0.1),
    blur_p=0.0,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    crop=None,
)

# A mirrored or strongly cropped digit is another digit, and color has no meaning.
DIGITS = replace(
    CIFAR,
    crop_scale=(0.5, 1.0),
    flip=0.0,
    jitter_p=0.0,
    gray_p=0.0,
    mean=(0.3053, 0.3053, 0.3053),
    std=(0.3760, 0.3760, 0.3760),
)

# A caption names colors and sides, so they are kept; mean and std are those of CLIP's encoders.
CLIP = replace(
    IMAGENET,
    crop_scale=(0.9, 1.0),
    flip=0.0,
    jitter_p=0.0,
    gray_p=0.0,
    blur_p=0.0,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    crop=None,
)

PRESETS = {"cifar": CIFAR, "imagenet": IMAGENET, "digits": DIGITS, "clip": CLIP}
