"""benchmarks/gpu.py times the loss that each name says; its estimates follow the grids."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

pytest.importorskip("triton.language", reason="triton is not installed; nothing to estimate")
sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))

from gpu import errors
from gpu_estimates import CHIPS, held, launch_time, materialized, ours
from gpu_peers import CANDIDATES, Candidate, inputs

A100 = CHIPS[0]
RUN_HERE = [
    c
    for c in CANDIDATES
    if c.package in ("torch", "open_clip")
    and c.name not in ("FlexAttention", "macl.MACL", "cross-entropy, torch.compile")
]


@pytest.mark.parametrize("candidate", RUN_HERE, ids=lambda c: f"{c.shape}: {c.name}")
def test_a_candidate_is_the_loss_of_its_shape(candidate: Candidate) -> None:
    if not candidate.installed:
        pytest.skip(f"{candidate.package} is not installed")
    z = inputs(candidate.shape, 6, 8, torch.device("cpu"))
    loss, gradient = errors(candidate, z, half=False)
    assert loss < 1e-5
    assert gradient < 1e-5


def test_estimates_follow_the_grid() -> None:
    flops = 6 * 8192**2 * 128
    ideal = 1e3 * flops / (0.4 * 312e12)
    half = ours(8192, 128, 1, A100)
    assert ideal < half.ms < 1.5 * ideal
    assert half.busy > 0.9
    assert ours(8192, 128, 2, A100).ms > 2 * half.ms
    assert half.ms < materialized(8192, 128, A100) / 3


def test_products_at_large_widths() -> None:
    """At D = 768 a step has 4 products: the backward takes three times a forward's."""
    forward, backward = (launch_time(d, 8192, 768, 1, A100).ms for d in ("forward", "backward"))
    assert backward < 3.5 * forward


def test_the_held_matrix_is_charged_float32_products() -> None:
    """So the page says where "auto" is slower than the peer, which multiplies in half precision."""
    small, large = ((held(n, 128, A100), materialized(n, 128, A100)) for n in (1024, 4096))
    assert small[0] < 1.5 * small[1]
    assert large[0] > large[1] > ours(4096, 128, 1, A100).ms
