"""A batch larger than memory in a loop of your own: one line in place of GradCache.

pip install macl scikit-learn
python examples/own_loop_cached.py
"""

from __future__ import annotations

import torch
from sklearn.datasets import load_digits
from torch import nn

import macl


def train(chunk: int | None, steps: int = 10, batch: int = 512) -> list[float]:
    """Train on noisy digits, in chunks or at once; returns the loss of every step."""
    torch.manual_seed(0)
    images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16
    encoder = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32))
    criterion = macl.MACL(temperature=0.1)
    step = macl.cached(encoder, criterion, chunk=chunk or batch)
    optimizer = torch.optim.Adam(step.parameters(), lr=1e-3)
    losses = []
    for _ in range(steps):
        chosen = images[torch.randperm(len(images))[:batch]]
        one, two = (chosen + 0.2 * torch.randn_like(chosen) for _ in range(2))
        loss = step(one, two)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    network = nn.Sequential(nn.Linear(64, 512), nn.ReLU(), nn.Linear(512, 32))
    print(macl.plan(network, torch.randn(8, 64), batch=512, memory=2**21))
    for pieces in (None, 64):
        print(f"chunk={pieces}:", [round(loss, 4) for loss in train(pieces)])
