"""SentEval's own classifier, for all folds and all weight decays at once.

Its 410 trainings per task share their features and take the same steps, so here they are one batch.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from macl.core.progress import track

DECAYS = tuple(10.0**power for power in range(-5, -1))
_LR = 1e-3
_BATCH_SIZE = 64
_EPOCH_PASSES = 4  # one "epoch" of SentEval is this many passes over the data
_TENACITY = 5  # epochs without improvement that are forgiven, over the whole training
_MAX_PASSES = 200


class LinearFit(NamedTuple):
    """The best layer of each training, by accuracy on its own held-out items, in 0…1."""

    weights: Tensor  # (F, R, C, D)
    biases: Tensor  # (F, R, C)
    accuracy: Tensor  # (F, R)


def fit_linear(
    features: Tensor, labels: Tensor, folds: list[tuple[Tensor, Tensor]], decays: Tensor, seed: int
) -> LinearFit:
    """Train F × R linear classifiers: one for each (train, held-out) fold and each weight decay.

    After every four passes each is scored on its held-out items and its best state is kept; it
    stops at the sixth time it did not improve. Folds index (N, D) features and (N,) labels; a pass
    takes as many items, drawn anew, as the smallest has, so that all step together.
    """
    generator = torch.Generator().manual_seed(seed)
    classes, width = int(labels.max()) + 1, features.shape[1]
    shape = (*decays.shape, classes)
    bound = 1 / math.sqrt(width)  # torch's own initial linear layer
    layer = torch.empty(classes, width).uniform_(-bound, bound, generator=generator)
    bias = torch.empty(classes).uniform_(-bound, bound, generator=generator)
    weights = layer.expand(*shape, width).clone().requires_grad_()
    biases = bias.expand(shape).clone().requires_grad_()
    # Adam's own weight decay is one number; as a penalty it can differ between classifiers.
    half_decay = decays.unsqueeze(-1) / 2
    optimizer = torch.optim.Adam([weights, biases], lr=_LR)

    @torch.no_grad()
    def held_out_accuracy() -> Tensor:
        rows = []
        for fold, (_, held_out) in enumerate(folds):
            logits = torch.einsum("bd,rcd->rbc", features[held_out], weights[fold])
            right = (logits + biases[fold].unsqueeze(1)).argmax(-1) == labels[held_out]
            rows.append(right.float().mean(dim=1))
        return torch.stack(rows)

    best = LinearFit(weights.detach().clone(), biases.detach().clone(), torch.full(shape[:2], -1.0))
    failures = torch.zeros(shape[:2])
    for _ in track(range(0, _MAX_PASSES + 1, _EPOCH_PASSES), "Linear classifiers"):
        for _ in range(_EPOCH_PASSES):
            for batch in _batches([train for train, _ in folds], generator):
                x, y = features[batch], labels[batch]
                logits = torch.einsum("fbd,frcd->frbc", x, weights) + biases.unsqueeze(2)
                targets = y.unsqueeze(1).expand(logits.shape[:3])
                losses = F.cross_entropy(logits.flatten(0, 2), targets.flatten(), reduction="sum")
                penalty = half_decay * (weights.square().sum(-1) + biases.square())
                optimizer.zero_grad()
                (losses / batch.shape[1] + penalty.sum()).backward()
                optimizer.step()
        running = failures <= _TENACITY
        accuracy = held_out_accuracy()
        better = running & (accuracy > best.accuracy)
        for kept, current in zip(best, (weights, biases, accuracy), strict=True):
            kept[better] = current.detach()[better]
        failures += running & ~better
        if (failures > _TENACITY).all():
            break
    return best


def _batches(trains: list[Tensor], generator: torch.Generator) -> tuple[Tensor, ...]:
    """One shuffled pass: indices of shape (F, B) for each step."""
    smallest = min(map(len, trains))
    drawn = [train[torch.randperm(len(train), generator=generator)[:smallest]] for train in trains]
    return torch.stack(drawn).split(_BATCH_SIZE, dim=1)
