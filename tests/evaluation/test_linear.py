from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

import recipe_texts
from macl.core.errors import UserError
from macl.probes.linear import LinearProbeConfig, linear_probe


def clusters(seed: int, n: int, classes: int = 3, noise: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    features = torch.eye(classes)[labels] + noise * torch.randn(n, classes, generator=generator)
    return features, labels


def test_separable_classes_are_learnt_and_chance_is_not() -> None:
    config = LinearProbeConfig(epochs=20, lr=0.5, batch_size=16)
    train, labels = clusters(0, 120, noise=0.1)
    test, test_labels = clusters(1, 60, noise=0.1)
    assert linear_probe(config, train, labels, test, test_labels, seed=0).last["top1"] == 100
    shuffled = test_labels.roll(1)
    assert linear_probe(config, train, labels, test, shuffled, seed=0).last["top1"] == 0


def test_equals_a_hand_written_loop_of_momentum_sgd() -> None:
    train, labels = clusters(0, 50)
    test, test_labels = clusters(1, 40)
    config = LinearProbeConfig(epochs=3, lr=0.1, batch_size=16)
    result = linear_probe(config, train, labels, test, test_labels, seed=7)

    generator = torch.Generator().manual_seed(7)
    weight = torch.empty(3, 3).normal_(0, 0.01, generator=generator).double()
    bias = torch.zeros(3, dtype=torch.float64)
    velocity_w, velocity_b = torch.zeros_like(weight), torch.zeros_like(bias)
    accuracies = []
    for _ in range(3):
        for batch in torch.randperm(50, generator=generator).split(16):
            x = train[batch].double()
            error = torch.softmax(x @ weight.T + bias, 1) - F.one_hot(labels[batch], 3)
            velocity_w = 0.9 * velocity_w + error.T @ x / len(batch)
            velocity_b = 0.9 * velocity_b + error.mean(0)
            weight = weight - 0.1 * velocity_w
            bias = bias - 0.1 * velocity_b
        right = (test.double() @ weight.T + bias).argmax(1) == test_labels
        accuracies.append(100 * right.double().mean().item())
    assert result.last["top1"] == pytest.approx(accuracies[-1])
    assert result.best["top1"] == pytest.approx(max(accuracies))
    assert result.best_epoch == accuracies.index(max(accuracies)) + 1


def test_last_and_best_differ_when_training_goes_wrong() -> None:
    train, labels = clusters(0, 60, noise=1.0)
    test, test_labels = clusters(1, 60, noise=1.0)
    config = LinearProbeConfig(epochs=30, lr=5.0, batch_size=4)
    result = linear_probe(config, train, labels, test, test_labels, seed=0)
    assert result.best["top1"] > result.last["top1"]
    assert 1 <= result.best_epoch < 30


@pytest.mark.parametrize("schedule", ["constant", "cosine", "steps"])
@pytest.mark.parametrize("optimizer", ["sgd", "lars", "adam"])
def test_seeded_without_touching_the_global_generator(schedule: str, optimizer: str) -> None:
    config = LinearProbeConfig.model_validate(
        {"epochs": 5, "lr": 0.1, "batch_size": 8, "schedule": schedule, "optimizer": optimizer}
    )
    data = (*clusters(0, 60, 7, noise=0.8), *clusters(1, 60, 7, noise=0.8))
    torch.manual_seed(3)
    state = torch.get_rng_state()
    first = linear_probe(config, *data, seed=1)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(4)
    assert linear_probe(config, *data, seed=1) == first
    assert set(first.last) == set(first.best) == {"top1", "top5"}
    assert first.last["top5"] >= first.last["top1"]


def test_works_where_gradients_are_switched_off() -> None:
    config = LinearProbeConfig(epochs=2, lr=0.1, batch_size=16)
    data = (*clusters(0, 50), *clusters(1, 40))
    expected = linear_probe(config, *data, seed=0)
    with torch.no_grad():
        assert linear_probe(config, *data, seed=0) == expected
    with torch.inference_mode():
        embedded = tuple(x.clone() for x in data)
        assert linear_probe(config, *embedded, seed=0) == expected


@pytest.mark.parametrize(
    ("recipe", "values"),
    [
        ("simclr-cifar10", ("sgd", 0.02, 128, 100, "constant")),
        ("moco-imagenet100", ("sgd", 10, 256, 100, "steps")),
        ("simclr-imagenet1k", ("lars", 0.1, 4096, 90, "cosine")),
    ],
)
def test_recipes_have_the_paper_s_probe(recipe: str, values: tuple[object, ...]) -> None:
    """Or, where the paper points to its baselines, theirs."""
    probe = recipe_texts.load(recipe, ["data.path=."]).evaluation.linear
    assert (probe.optimizer, probe.lr, probe.batch_size, probe.epochs, probe.schedule) == values
    assert (probe.momentum, probe.weight_decay) == (0.9, 0)


def test_mistakes_are_named() -> None:
    x, y = clusters(0, 12)
    config = LinearProbeConfig(epochs=1)
    with pytest.raises(UserError, match="train data have no labels"):
        linear_probe(config, x, None, x, y, seed=0)
    with pytest.raises(UserError, match="at least two classes"):
        linear_probe(config, x, torch.zeros(12, dtype=torch.long), x, y, seed=0)
    with pytest.raises(UserError, match="test features hold NaN"):
        linear_probe(config, x, y, x * torch.nan, y, seed=0)
    with pytest.raises(UserError, match="diverged at learning rate 1e"):
        linear_probe(LinearProbeConfig(epochs=3, lr=1e38), 1e3 * x, y, x, y, seed=0)
