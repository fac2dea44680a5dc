"""One operator over N×K similarities: its implementations, and the choice between them."""

from macl.losses.ops.exclusions import Exclusions, Guide, Listed, Relation
from macl.losses.ops.maps import CosineTemperature, InverseTanh, LogitMap, ShiftedCosineTemperature
from macl.losses.ops.operator import Selection, selected

__all__ = [
    "CosineTemperature",
    "Exclusions",
    "Guide",
    "InverseTanh",
    "Listed",
    "LogitMap",
    "Relation",
    "Selection",
    "ShiftedCosineTemperature",
    "selected",
]
