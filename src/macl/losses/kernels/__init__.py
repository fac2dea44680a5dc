"""The streamed operator: one interface, an implementation per device.

`selected(device)` names the implementation that runs there: "cpu", "torch" or "triton".
"""

from macl.losses.kernels.interface import Exclusions, LogitMap
from macl.losses.kernels.maps import CosineTemperature, InverseTanh
from macl.losses.kernels.select import selected

__all__ = ["CosineTemperature", "Exclusions", "InverseTanh", "LogitMap", "selected"]
