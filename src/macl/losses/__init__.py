"""The loss family: mathematics only, on torch alone."""

from macl.losses.context import TrainingContext
from macl.losses.contrastive import Contrast, ContrastiveLoss
from macl.losses.family import DCL, DCLW, HCL, MACL, DualTemperature, FlatNCE, InfoNCE, NTXent
from macl.losses.temperature import AlignmentAdaptive, Cosine, Fixed, Learned, Temperature

__all__ = [
    "DCL",
    "DCLW",
    "HCL",
    "MACL",
    "AlignmentAdaptive",
    "Contrast",
    "ContrastiveLoss",
    "Cosine",
    "DualTemperature",
    "Fixed",
    "FlatNCE",
    "InfoNCE",
    "Learned",
    "NTXent",
    "Temperature",
    "TrainingContext",
]
