"""A CLIP of open_clip with a loss of macl: one import changes.

    pip install open-clip-torch macl scikit-learn
    python examples/open_clip_loss.py

Its training script does the same with `macl.integrations.open_clip.create_loss(args)`.
"""

from __future__ import annotations

from typing import Any

import open_clip
import torch
from sklearn.datasets import load_digits
from torch.nn.functional import interpolate

from macl.integrations.open_clip import ClipLoss  # was: from open_clip.loss import ClipLoss


def small_clip() -> Any:
    """Both towers with one layer and random weights."""
    torch.manual_seed(0)
    vision = {"image_size": 32, "patch_size": 8, "width": 64, "layers": 1, "head_width": 32}
    text = {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 1}
    return open_clip.CLIP(embed_dim=32, vision_cfg=vision, text_cfg=text)


def train(loss: Any, steps: int = 10, batch: int = 10) -> list[float]:
    """Train on digits and their captions; returns the loss of every step."""
    model = small_clip()
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1) / 16
    captions = open_clip.tokenize([f"the digit {d}" for d in range(10)], context_length=16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    losses = []
    for step in range(steps):
        rows = range(step * batch, (step + 1) * batch)
        image, text, scale = model(
            interpolate(images[list(rows)], size=32), captions[digits.target[list(rows)]]
        )[:3]
        value = loss(image, text, scale)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        losses.append(value.item())
    return losses


if __name__ == "__main__":
    print([round(value, 3) for value in train(ClipLoss())])
