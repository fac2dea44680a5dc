"""What all tests share: repeatable examples, one torch thread (workers run side by side)."""

from __future__ import annotations

import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "macl",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("macl")
torch.set_num_threads(1)
