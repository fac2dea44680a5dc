"""Methods: who is contrasted with whom. They know nothing of images, text or graphs."""

from macl.methods.base import Method
from macl.methods.moco import MoCo
from macl.methods.nnclr import NNCLR
from macl.methods.simclr import SimCLR

__all__ = ["NNCLR", "Method", "MoCo", "SimCLR"]
