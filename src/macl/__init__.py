"""Contrastive representation learning whose temperature adapts to the model.

from macl import MACL
criterion = MACL(temperature=0.1, alpha=0.5, threshold=0.0)
loss = criterion(z1, z2)
"""

from macl.losses import *  # noqa: F403
from macl.losses import __all__ as __all__

__version__ = "0.1.0"
