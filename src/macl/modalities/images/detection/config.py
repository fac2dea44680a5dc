"""The settings of the detection protocol; the defaults are the paper's."""

from __future__ import annotations

from typing import Annotated, ClassVar, Self

from pydantic import Field, PositiveInt, model_validator

from macl.core.section import AbsolutePath, Section
from macl.recipes.optim import Fraction

VocSet = Annotated[str, Field(pattern=r"^\d{4}/\w+$")]
Color = tuple[float, float, float]


class DetectionConfig(Section):
    """Fine-tuning of a Faster R-CNN on VOC. A C4 backbone with the "24k" schedule, as in MoCo."""

    user_only: ClassVar[frozenset[str]] = frozenset({"figures", "folder"})

    data: AbsolutePath | None = None
    """VOCdevkit, or the folder that holds it."""
    train: tuple[VocSet, ...] = Field(default=("2007/trainval", "2012/trainval"), min_length=1)
    """YEAR/SET to train on."""
    test: tuple[VocSet, ...] = Field(default=("2007/test",), min_length=1)
    """YEAR/SET to evaluate on."""
    iterations: int = Field(default=24_000, ge=0)
    batch_size: PositiveInt = 16
    """Images per iteration, all devices together."""
    lr: float = Field(default=0.02, gt=0)
    momentum: float = Field(default=0.9, ge=0, lt=1)
    weight_decay: float = Field(default=1e-4, ge=0)
    milestones: tuple[Fraction, ...] = (18 / 24, 22 / 24)
    """Fractions of the training after which lr drops tenfold."""
    warmup: int = Field(default=100, ge=0)
    """Iterations in which lr rises."""
    short_sides: tuple[PositiveInt, ...] = Field(default=tuple(range(480, 801, 32)), min_length=1)
    """The short side of a training image is one of these; of a test image the last."""
    max_side: PositiveInt = 1333
    """No longer side than this."""
    mean: Color | None = None
    """Of the pixels; by default that of the views."""
    std: Color | None = None
    anchor_sizes: tuple[PositiveInt, ...] = Field(default=(32, 64, 128, 256, 512), min_length=1)
    candidates: tuple[PositiveInt, PositiveInt] = (12_000, 6_000)
    """Proposals before suppression, in training and in test."""
    proposals: tuple[PositiveInt, PositiveInt] = (2_000, 1_000)
    """Proposals after suppression, in training and in test."""
    rois: PositiveInt = 512
    """Proposals per image that the loss is taken over."""
    roi_size: int = Field(default=14, ge=2)
    """Side of the features of a proposal before res5."""
    precise_bn: int = Field(default=200, ge=0)
    """Batches that give batch normalization its final statistics."""
    devices: PositiveInt = 1
    """Processes (GPUs, or CPU workers)."""
    workers: int = Field(default=0, ge=0)
    """Processes that read images, per device."""
    save_every: PositiveInt = 500
    """Iterations between checkpoints."""
    folder: AbsolutePath | None = None
    """Where detectors are kept; by default in the run, or in runs/detection."""
    figures: AbsolutePath | None = None
    """Draw detections into this folder."""
    pictures: int = Field(default=16, ge=0)
    """How many images are drawn."""

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.iterations and self.warmup >= self.iterations:
            raise ValueError(
                f"a warm-up of {self.warmup} iterations leaves nothing of {self.iterations}; "
                "lower warmup too"
            )
        return self

    def training(self) -> dict[str, object]:
        """What decides how the detector comes out, and nothing else."""
        beside = {"data", "test", "workers", "save_every", "folder", "figures", "pictures"}
        return self.model_dump(mode="json", exclude=beside)
