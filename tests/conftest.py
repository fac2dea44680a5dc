"""What all tests share: repeatable examples, one torch thread, a fork server, slow tests first."""

from __future__ import annotations

import multiprocessing
import os
import resource
import shutil
import tempfile
from collections.abc import Iterator
from multiprocessing import forkserver
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

import shared
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


def pytest_configure(config: pytest.Config) -> None:
    """The processes of xdist find the variable of the one that starts them."""
    if shared.VARIABLE not in os.environ:
        os.environ[shared.VARIABLE] = tempfile.mkdtemp(prefix="macl-tests-")
        config.add_cleanup(lambda: shutil.rmtree(os.environ.pop(shared.VARIABLE)))


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--cpu-times", metavar="FILE", help="append the CPU seconds of every phase of every test"
    )


def cpu_seconds() -> float:
    """Processor time of this process, of its children that have ended, and of the fork server."""
    own = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    total = sum(each.ru_utime + each.ru_stime for each in own)
    server = forkserver._forkserver._forkserver_pid
    if server is not None:
        fields = Path(f"/proc/{server}/stat").read_text().rpartition(")")[2].split()
        total += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return total


def recorded(item: pytest.Item, phase: str) -> Iterator[None]:
    before = cpu_seconds()
    yield
    if file := item.config.getoption("--cpu-times"):
        with open(file, "a", encoding="utf-8") as out:
            out.write(f"{cpu_seconds() - before:.3f}\t{phase}\t{item.nodeid}\n")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    yield from recorded(item, "setup")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    yield from recorded(item, "call")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Iterator[None]:
    yield from recorded(item, "teardown")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first: no worker is left alone with a long test at the end."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)
