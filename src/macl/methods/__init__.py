"""Methods: what is contrasted with what. They are independent of the modality."""

from macl.losses.build import Inputs as Contrasted
from macl.methods.base import Method, Step
from macl.methods.contrastive import ContrastiveMethod, SimCLR
from macl.methods.moco import MoCo
from macl.methods.nnclr import NNCLR

__all__ = ["NNCLR", "Contrasted", "ContrastiveMethod", "Method", "MoCo", "SimCLR", "Step"]
