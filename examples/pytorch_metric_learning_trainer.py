"""A loss of macl in a trainer of pytorch-metric-learning, with labels as the source of pairs.

pip install 'macl[integrations]'
python examples/pytorch_metric_learning_trainer.py
"""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import torch
from pytorch_metric_learning import samplers, trainers
from pytorch_metric_learning.utils import common_functions
from sklearn.datasets import load_digits
from torch import nn
from torch.utils.data import TensorDataset

from macl import MACL
from macl.integrations.pytorch_metric_learning import ContrastiveLoss


def train(loss: nn.Module, epochs: int = 2) -> list[float]:
    """Train on labeled digits; returns the loss of every step."""
    torch.manual_seed(0)
    common_functions.NUMPY_RANDOM = np.random.default_rng(0)  # what samplers draw from
    digits = load_digits()
    images = torch.tensor(digits.images, dtype=torch.float32).flatten(1) / 16
    labels = torch.tensor(digits.target)
    trunk = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    losses: list[float] = []

    def record(trainer: Any) -> None:
        losses.append(float(trainer.losses["metric_loss"]))

    trainer = trainers.MetricLossOnly(
        models={"trunk": trunk},
        optimizers={"trunk_optimizer": torch.optim.Adam(trunk.parameters(), lr=1e-3)},
        batch_size=64,
        loss_funcs={"metric_loss": loss},
        dataset=TensorDataset(images, labels),
        # Every class of a batch has four members: four positives, and negatives of other classes.
        sampler=samplers.MPerClassSampler(labels, m=4, length_before_new_iter=640),
        data_device=torch.device("cpu"),
        dataloader_num_workers=0,
        end_of_iteration_hook=record,
    )
    trainer.train(num_epochs=epochs)
    return losses


if __name__ == "__main__":
    logging.getLogger("pytorch-metric-learning").setLevel(logging.ERROR)
    criterion = ContrastiveLoss(MACL(temperature=0.1), collect_stats=True)
    print([round(loss, 3) for loss in train(criterion)])
    print(f"A {criterion.alignment:.2f}, τ {criterion.temperature:.3f}")
