"""The recipe sections of images, without torch: mistakes in a recipe are found before it loads."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, NonNegativeFloat, PositiveFloat, field_validator, model_validator

from macl.core.section import AbsolutePath, Section, absolute
from macl.modalities.images.detection.config import DetectionConfig
from macl.probes.sections import KnnConfig, LinearProbeConfig
from macl.recipes.tuning import TunableEncoder

VALIDATION_NAMES = ("val", "validation")
TEST_NAMES = ("test", *VALIDATION_NAMES)

SMALL = {"resnet8": 1, "resnet14": 2, "resnet20": 3}
"""Blocks in each of three stages; depth = 6 · blocks + 2, as the ResNet paper has it for CIFAR."""

ImageProtocol = Literal["knn", "linear", "geometry", "voc-detection"]

PROBES: tuple[ImageProtocol, ...] = ("knn", "linear", "geometry")
"""Protocols on frozen features of labeled images."""

Interpolation = Literal["bilinear", "bicubic"]
"""How pixels of a resized image are computed; antialiased, as Pillow does it."""

Share = Annotated[float, Field(gt=0, le=1)]
HueStrength = Annotated[float, Field(ge=0, le=0.5)]
Probability = Annotated[float, Field(ge=0, le=1)]


@dataclass(frozen=True)
class Augmentation:
    """`ImageViewsConfig`, resolved, in the order it is applied; the defaults are ImageNet's."""

    size: int | None = 224
    crop_scale: tuple[float, float] = (0.08, 1.0)
    crop_ratio: tuple[float, float] = (3 / 4, 4 / 3)
    flip: float = 0.5
    jitter: tuple[float, float, float, float] = (0.8, 0.8, 0.8, 0.2)
    jitter_p: float = 0.8
    gray_p: float = 0.2
    blur_p: float = 0.5
    blur_sigma: tuple[float, float] = (0.1, 2.0)
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    crop: float | Literal["whole"] = 0.875
    interpolation: Interpolation = "bilinear"


CIFAR = Augmentation(
    size=None,
    jitter=(0.4, 0.4, 0.4, 0.1),
    blur_p=0.0,
    mean=(0.4914, 0.4822, 0.4465),
    std=(0.2470, 0.2435, 0.2616),
    crop="whole",
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
CLIP = Augmentation(
    crop_scale=(0.9, 1.0),
    flip=0.0,
    jitter_p=0.0,
    gray_p=0.0,
    blur_p=0.0,
    mean=(0.48145466, 0.4578275, 0.40821073),
    std=(0.26862954, 0.26130258, 0.27577711),
    crop="whole",
)

PRESETS = {"cifar": CIFAR, "imagenet": Augmentation(), "digits": DIGITS, "clip": CLIP}


class ImageDataConfig(Section):
    """Where the images come from and which of them belong to which split."""

    user_only: ClassVar[frozenset[str]] = frozenset({"download"})

    source: Literal["auto", "digits", "npz", "folder", "records", "cifar10", "cifar100"] = "auto"
    """What path holds; auto looks, and without a path means digits."""
    path: AbsolutePath | None = None
    """A folder of images, with or without split and class folders; an .npz file or a folder with
    train.npz and test.npz; the folder that holds CIFAR's own folder; WebDataset shards (a .tar,
    a-{00..12}.tar, a folder of them); a Hugging Face data set on disk."""
    test_path: AbsolutePath | None = None
    """Test images, a folder or an .npz file, when they are not beside path."""
    train_split: str | None = None
    """Sub-folder (or .npz file) of path to train on. By default train, or the whole folder if it is
    not divided into splits."""
    test_split: str | None = Field(
        None, description=f"The same for test; by default the first of {', '.join(TEST_NAMES)}."
    )
    classes: AbsolutePath | None = None
    """A text file with a class folder per line; the others are left out. So a list of
    ImageNet-100's synsets makes it of ImageNet-1K."""
    holdout: float = Field(0.0, ge=0, lt=1)
    """Fraction of train set apart as validation, to choose settings or, where there is no test
    split, to evaluate on images that training did not see."""
    limit: int | None = Field(None, ge=1)
    """A random subset of each split; train and validation count as one."""
    seed: int = 0
    """Draws holdout and subset, whatever the seed of the run."""
    max_side: int | None = Field(None, ge=1)
    """Shrink on reading until the shorter side is at most this."""
    on_error: Literal["fail", "skip", "skip-few"] = "skip-few"
    """Unreadable files: fail on the first, skip all, or skip-few: skip up to 1% of the files and
    fail above."""
    download: bool = False
    """Let torchvision download CIFAR into path, or shards be read from a URL."""

    @model_validator(mode="after")
    def _path_suits_source(self) -> ImageDataConfig:
        if self.source == "digits" and self.path is not None:
            raise ValueError(f"source=digits has no path; use source=auto to read {self.path}")
        if self.source not in ("auto", "digits") and self.path is None:
            raise ValueError(f"source={self.source} needs path, a file or folder: `data=PATH`")
        return self


class ImageViewsConfig(Section):
    """The `views` section of an image recipe: a preset, and whatever departs from it."""

    preset: Literal["cifar", "imagenet", "digits", "clip"] = "cifar"
    size: Annotated[int, Field(ge=2)] | None = None
    """Output side; none in the preset either: that of the images."""
    crop_scale: tuple[Share, Share] | None = None
    """Area of the crop as a share of the image."""
    crop_ratio: tuple[PositiveFloat, PositiveFloat] | None = None
    """Width over height of the crop."""
    flip: Probability | None = None
    """Probability of mirroring left to right; the other probabilities end in _p."""
    jitter: tuple[NonNegativeFloat, NonNegativeFloat, NonNegativeFloat, HueStrength] | None = None
    """Strength of brightness, contrast, saturation and hue."""
    jitter_p: Probability | None = None
    gray_p: Probability | None = None
    blur_p: Probability | None = None
    blur_sigma: tuple[PositiveFloat, PositiveFloat] | None = None
    mean: tuple[float, ...] | None = None
    """Of the pixels in [0, 1], one value for each channel."""
    std: tuple[PositiveFloat, ...] | None = None
    crop: Share | Literal["whole"] | None = None
    """Evaluation: side of the central crop over the short side of the resized image; whole: the
    whole image, resized to a square."""
    interpolation: Interpolation | None = None

    @field_validator("crop_scale", "crop_ratio", "blur_sigma")
    @classmethod
    def _ascending(cls, value: tuple[float, float] | None) -> tuple[float, float] | None:
        if value is not None and value[0] > value[1]:
            raise ValueError(f"give (smallest, largest), not {value}")
        return value

    @model_validator(mode="after")
    def _same_channels(self) -> ImageViewsConfig:
        chosen = self.resolve()
        if not chosen.mean or len(chosen.mean) != len(chosen.std):
            raise ValueError(
                f"mean has {len(chosen.mean)} values and std {len(chosen.std)}: give both one for "
                "each channel"
            )
        return self

    def resolve(self) -> Augmentation:
        """The preset with this section's own values in place of its."""
        own = self.model_dump(exclude={"preset"}, exclude_none=True)
        return replace(PRESETS[self.preset], **own)


class ImageEncoderConfig(TunableEncoder):
    """Which encoder, and where its weights start."""

    name: str = Field(
        "resnet18",
        description=f"A torchvision ResNet, {', '.join(SMALL)}, timm:NAME, torchvision:NAME, a "
        "folder of Hugging Face's, timm's or `macl export`, package.module:factory",
    )
    stem: Literal["cifar", "imagenet"] = "cifar"
    """ResNets: 3×3 and no pooling for small images, or 7×7, stride 2 and max-pool."""
    width: int | None = Field(None, ge=1)
    """ResNets: channels of the first stage; by default 64, small ones 16."""
    zero_init_residual: bool = False
    """ResNets: start every residual block as the identity."""
    weights: AbsolutePath | None = None
    """Start from this .safetensors or .pth file or Hugging Face folder; a ResNet's weights may have
    torchvision's, timm's, MoCo's, lightly's or detectron2's names."""
    pretrained: bool = False
    """timm: and torchvision: start from the library's own weights, as its cache has them."""
    download: bool = False
    """Let the library fetch those weights."""
    img_size: int | None = Field(None, ge=1)
    """Side of the images that a transformer of timm or torchvision is built for; by default that of
    the views."""
    channels: int = Field(3, ge=1)
    """Of the images; by default as many as views.mean has values."""
    allow_import: bool = False
    """Let name import and run Python code as package.module:factory."""

    @field_validator("name")
    @classmethod
    def _absolute_folder(cls, name: str) -> str:
        """A folder stays right wherever the program is started from later."""
        folder = absolute(Path(name))
        holds = any((folder / file).is_file() for file in ("config.json", "encoder.safetensors"))
        return str(folder) if holds and ":" not in name else name

    @classmethod
    def keep_for_name(cls, name: str, kept: dict[str, Any]) -> dict[str, Any]:
        """Keep settings between ResNets; drop weights and import permission of the old encoder."""
        dropped = {"weights", "pretrained", "img_size", "channels", "allow_import"}
        if ":" in name or "/" in name:
            dropped |= {"stem", "width", "zero_init_residual"}
        return {key: value for key, value in kept.items() if key not in dropped}


class ImageEvaluationConfig(KnnConfig):
    """Which protocols, and their settings; the defaults are the paper's for CIFAR-10."""

    protocols: tuple[ImageProtocol, ...] = PROBES
    split: Literal["test", "validation"] = "test"
    """What is evaluated; choose settings on validation (data.holdout) and report on test."""
    k: int = Field(default=200, ge=1)
    """Neighbors of the kNN probe."""
    linear: LinearProbeConfig = LinearProbeConfig()
    detection: DetectionConfig = DetectionConfig()
    """Of voc-detection, which fine-tunes the encoder on data of its own."""


SECTIONS: dict[str, type[Section]] = {
    "data": ImageDataConfig,
    "views": ImageViewsConfig,
    "encoder": ImageEncoderConfig,
    "evaluation": ImageEvaluationConfig,
}
