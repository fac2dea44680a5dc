"""The linear probe: a softmax classifier trained by SGD on cached features of a frozen encoder."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.progress import track
from macl.optim import build_optimizer, build_schedule
from macl.probes.common import require_split, top_accuracies
from macl.probes.sections import LinearProbeConfig
from macl.recipes.optim import OptimizerConfig, ScheduleConfig


class LinearProbeResult(NamedTuple):
    """Test accuracies in percent: "top1", and "top5" where there are more than five classes."""

    last: Mapping[str, float]
    """After the last epoch: the number to report."""
    best: Mapping[str, float]
    """At the epoch of the highest top-1, which is chosen on the test set and so biased upwards."""
    best_epoch: int
    """Counted from 1; the first of several equal ones."""


# A probe may be asked for where gradients are off, as in a validation loop.
@torch.inference_mode(mode=False)
def linear_probe(
    config: LinearProbeConfig,
    train: Tensor,
    train_labels: Tensor | None,
    test: Tensor,
    test_labels: Tensor | None,
    seed: int,
    augmented: Callable[[int], Tensor] | None = None,
) -> LinearProbeResult:
    """Train a linear classifier on (N, D) features and test it on (M, D) features at every epoch.

    Features are used as the encoder gives them, on the device they are on; being in memory, 100
    epochs take seconds. `augmented` gives other (N, D) training features for each epoch, from 0.
    Initial weights ~ N(0, 0.01²) and the order of the batches come from a generator of their own,
    so the global random state is left alone.
    Raises `UserError` for missing labels, a single class, or features that are not finite.
    """
    known, asked, classes = require_split(train, train_labels, test, test_labels)
    generator = torch.Generator().manual_seed(seed)
    classifier = nn.utils.skip_init(nn.Linear, train.shape[1], classes, dtype=train.dtype)
    nn.init.normal_(classifier.weight, std=0.01, generator=generator)
    nn.init.zeros_(classifier.bias)
    classifier.to(train.device)
    shared = config.model_dump(include={"lr", "momentum", "weight_decay", "lr_scaling"})
    rates = OptimizerConfig(name=config.optimizer, **shared)
    optimizer = build_optimizer(rates, classifier, config.batch_size)
    steps_per_epoch = -(-len(train) // config.batch_size)
    shape = ScheduleConfig(name=config.schedule, milestones=(0.6, 0.8))
    schedule = build_schedule(shape, optimizer, config.epochs * steps_per_epoch, steps_per_epoch)
    history = []
    for epoch in track(range(config.epochs), "Linear probe"):
        if augmented is not None:
            train = augmented(epoch)
        order = torch.randperm(len(train), generator=generator).to(train.device)
        for batch in order.split(config.batch_size):
            optimizer.zero_grad()
            F.cross_entropy(classifier(train[batch]), known[batch]).backward()
            optimizer.step()
            schedule.step()
        history.append(_test(classifier, test, asked, config.lr))
    best_epoch = max(range(len(history)), key=lambda epoch: history[epoch]["top1"])
    return LinearProbeResult(history[-1], history[best_epoch], best_epoch + 1)


@torch.no_grad()
def _test(classifier: nn.Module, test: Tensor, labels: Tensor, lr: float) -> dict[str, float]:
    logits: Tensor = classifier(test)
    if not logits.isfinite().all():
        raise UserError(f"The linear probe diverged at learning rate {lr:g}; lower its lr.")
    return top_accuracies(logits, labels)
