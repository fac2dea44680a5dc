"""What all tests share: repeatable examples, one torch thread, a fork server, slow tests first."""

from __future__ import annotations

import multiprocessing

import pytest
import torch
from hypothesis import HealthCheck, settings

from forking import PRELOADED

settings.register_profile(
    "macl",
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
settings.load_profile("macl")
torch.set_num_threads(1)  # workers run side by side
multiprocessing.set_forkserver_preload(PRELOADED)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: no worker is left alone with a long test at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
