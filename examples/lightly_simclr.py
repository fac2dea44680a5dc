"""The SimCLR of lightly's documentation with a loss of macl: one import changes.

pip install lightly macl
python examples/lightly_simclr.py
"""

from __future__ import annotations

import torch
from lightly.models.modules import SimCLRProjectionHead
from lightly.transforms import SimCLRTransform
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torchvision.transforms.functional import to_pil_image

from macl import MACL
from macl.integrations.lightly import MemoryBankLoss, NTXentLoss

Views = list[tuple[Tensor, Tensor]]


class SimCLR(nn.Module):
    """A backbone with lightly's projection head."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(
            nn.Conv2d(3, 16, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.Conv2d(16, 32, 3, stride=2, padding=1),
            nn.ReLU(),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        )
        self.projection_head = SimCLRProjectionHead(32, 64, 32)

    def forward(self, x: Tensor) -> Tensor:
        """(N, 3, 32, 32) → (N, 32) embeddings."""
        return self.projection_head(self.backbone(x))


def digits(count: int) -> Views:
    """Two views by lightly's transform for each of the first digits."""
    transform = SimCLRTransform(input_size=32, min_scale=0.5)
    images = load_digits().images[:count] / 16
    pictures = [to_pil_image(torch.tensor(image, dtype=torch.float32)) for image in images]
    views = [transform(picture.convert("RGB")) for picture in pictures]
    return [(one, two) for one, two in views]


def train(criterion: nn.Module, views: Views, epochs: int = 2) -> list[float]:
    """Train with `criterion`; returns the loss of every step."""
    torch.manual_seed(0)
    loader = torch.utils.data.DataLoader(views, batch_size=64, shuffle=True, drop_last=True)  # type: ignore[arg-type]
    model = SimCLR()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.06)
    losses = []
    for _ in range(epochs):
        for x0, x1 in loader:
            loss = criterion(model(x0), model(x1))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    views = digits(256)
    # was: from lightly.loss import NTXentLoss
    print("NT-Xent", [round(loss, 3) for loss in train(NTXentLoss(temperature=0.1), views)])
    print("MACL   ", [round(loss, 3) for loss in train(MACL(temperature=0.1), views)])
    # With a bank of negatives, as NTXentLoss(memory_bank_size=(1024, 32)) has one.
    banked = MemoryBankLoss(MACL(temperature=0.1), memory_bank_size=(1024, 32))
    print("a bank ", [round(loss, 3) for loss in train(banked, views)])
