"""The loss family: mathematics only, on torch alone."""

from macl.losses.context import TrainingContext
from macl.losses.contrastive import Contrast, ContrastiveLoss
from macl.losses.family import DCL, DCLW, HCL, MACL, DualTemperature, FlatNCE, InfoNCE, NTXent
from macl.losses.fastclip import FastCLIP
from macl.losses.logit_maps import DySTreSS, TemperatureFree
from macl.losses.siglip import SigLIP
from macl.losses.sogclr import ISogCLR, SogCLR
from macl.losses.supcon import SupCon
from macl.losses.temperature import (
    AlignmentAdaptive,
    Cosine,
    CosineSchedule,
    Fixed,
    Learned,
    LearnedTemperature,
    Temperature,
)
from macl.losses.tempnet import TempNet

__all__ = [
    "DCL",
    "DCLW",
    "HCL",
    "MACL",
    "AlignmentAdaptive",
    "Contrast",
    "ContrastiveLoss",
    "Cosine",
    "CosineSchedule",
    "DualTemperature",
    "DySTreSS",
    "FastCLIP",
    "Fixed",
    "FlatNCE",
    "ISogCLR",
    "InfoNCE",
    "Learned",
    "LearnedTemperature",
    "NTXent",
    "SigLIP",
    "SogCLR",
    "SupCon",
    "TempNet",
    "Temperature",
    "TemperatureFree",
    "TrainingContext",
]
