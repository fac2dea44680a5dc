"""CLIP's and SigLIP's losses as open_clip computes them: the same value, the same gradients."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import InfoNCE, LearnedTemperature, SigLIP

pytest.importorskip("open_clip", reason="open_clip_torch is not installed")
from open_clip.loss import ClipLoss, SigLipLoss

SCALE, BIAS = 14.0, -4.0
TOLERANCE = {"atol": 1e-6, "rtol": 1e-6}


class Towers(nn.Module):
    """Two small towers and the scale and bias that open_clip trains."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 16))
        self.text = nn.Sequential(nn.EmbeddingBag(50, 32), nn.Tanh(), nn.Linear(32, 16))
        self.log_scale = nn.Parameter(torch.tensor(SCALE).log())
        self.bias = nn.Parameter(torch.tensor(BIAS))

    def forward(self, n: int) -> tuple[Tensor, Tensor]:
        """Vectors of n random pictures and texts, (n, 16) each."""
        draw = torch.Generator().manual_seed(n)
        pixels = torch.randn(n, 12, generator=draw, dtype=torch.float64)
        return self.image(pixels), self.text(torch.randint(50, (n, 5), generator=draw))


@pytest.fixture
def towers() -> Towers:
    torch.manual_seed(0)
    return Towers().double()


def tower_gradients(towers: Towers, loss: Tensor, *own: Tensor) -> list[Tensor]:
    return list(
        torch.autograd.grad(loss, [*towers.image.parameters(), *towers.text.parameters(), *own])
    )


@pytest.mark.parametrize("n", [2, 37, 512])
def test_clip(towers: Towers, n: int) -> None:
    images, texts = towers(n)
    units = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    theirs = ClipLoss()(*units, towers.log_scale.exp())
    temperature = LearnedTemperature(1 / SCALE).double()
    ours = InfoNCE(temperature, negatives="cross", symmetric=True)(*towers(n))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    mine = tower_gradients(towers, ours, temperature.log_temperature)
    other = tower_gradients(towers, theirs, towers.log_scale)
    other[-1] = -other[-1]  # θ = log τ is minus their logarithm of the scale
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, **TOLERANCE)


@pytest.mark.parametrize("n", [2, 37, 512])
def test_siglip(towers: Towers, n: int) -> None:
    images, texts = towers(n)
    units = F.normalize(images, dim=1), F.normalize(texts, dim=1)
    theirs = SigLipLoss()(*units, towers.log_scale.exp(), towers.bias)
    criterion = SigLIP(1 / SCALE, bias=BIAS).double()
    ours = criterion(*towers(n))
    torch.testing.assert_close(ours, theirs, **TOLERANCE)
    mine = tower_gradients(towers, ours, criterion.temperature.log_scale, criterion.bias)
    other = tower_gradients(towers, theirs, towers.log_scale, towers.bias)
    for one, two in zip(mine, other, strict=True):
        torch.testing.assert_close(one, two, **TOLERANCE)
