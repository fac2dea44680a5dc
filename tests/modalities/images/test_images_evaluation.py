from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch import Tensor

from macl import geometry
from macl.core.errors import UserError
from macl.modalities.images.sections import ImageEvaluationConfig
from macl.modalities.probing import probe_scores
from macl.probes.knn import knn_accuracy
from macl.probes.linear import LinearProbeConfig, linear_probe


class Points:
    """A data set whose items are already features."""

    def __init__(self, seed: int, n: int, classes: int = 7, labeled: bool = True) -> None:
        generator = torch.Generator().manual_seed(seed)
        classes_of = torch.arange(n) % classes
        noise = torch.randn(n, classes, generator=generator)
        self.features = torch.eye(classes)[classes_of] + 0.5 * noise
        self.labels: Tensor | None = classes_of if labeled else None
        self.names: Sequence[str] = [str(i) for i in range(n)]

    def __len__(self) -> int:
        return len(self.features)

    def __getitem__(self, index: int) -> Tensor:
        return self.features[index]

    def collate(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples)


def embed(dataset: Any) -> Tensor:
    return dataset.collate([dataset[i] for i in range(len(dataset))])


CONFIG = ImageEvaluationConfig(
    k=10, temperature=0.2, linear=LinearProbeConfig(epochs=6, lr=0.1, batch_size=16)
)


def test_every_score_is_the_probe_s_own_with_its_settings() -> None:
    train, test = Points(0, 84), Points(1, 42)
    scores = probe_scores(CONFIG, train, test, embed, seed=5)
    by_name = {(s.protocol, s.metric): s for s in scores}
    assert len(by_name) == len(scores) == 9

    arrays = (train.features, train.labels, test.features, test.labels)
    neighbors = knn_accuracy(*arrays, k=10, temperature=0.2)
    linear = linear_probe(CONFIG.linear, *arrays, seed=5)
    for metric in ("top1", "top5"):
        knn = by_name["knn", metric]
        assert knn.value == neighbors[metric]
        assert knn.details == {"k": 10, "temperature": 0.2, "n_train": 84, "n_test": 42}
        last, best = by_name["linear", metric], by_name["linear", f"{metric}-best"]
        assert (last.value, best.value) == (linear.last[metric], linear.best[metric])
        assert (last.details["which"], best.details["which"]) == ("last", "best")
        assert (last.details["epoch"], best.details["epoch"]) == (6, linear.best_epoch)
        assert last.details["epochs"] == best.details["epochs"] == 6
        assert (last.details["n_train"], last.details["n_test"]) == (84, 42)

    assert test.labels is not None
    expected = {
        "uniformity": geometry.uniformity(test.features),
        "effective-rank": geometry.effective_rank(test.features),
        "tolerance": geometry.tolerance(test.features, test.labels),
    }
    for metric, value in expected.items():
        assert by_name["geometry", metric].value == value.item()
        assert by_name["geometry", metric].task == "backbone"
        assert by_name["geometry", metric].details["of"] == "backbone"


def test_an_augmented_probe_has_new_features_in_every_epoch() -> None:
    train, test, drawn = Points(0, 84), Points(1, 42), list[Tensor]()

    def noisy(dataset: Any, *, augmented: bool = False) -> Tensor:
        if not augmented:
            return embed(dataset)
        drawn.append(embed(dataset) + 3 * torch.randn(len(dataset), 7))
        return drawn[-1]

    linear = CONFIG.linear.model_copy(update={"augment": True})
    config = CONFIG.model_copy(update={"linear": linear, "protocols": ("linear",)})
    state = torch.get_rng_state()
    scores = probe_scores(config, train, test, noisy, seed=5)
    assert torch.equal(torch.get_rng_state(), state)
    first, epochs = list(drawn), config.linear.epochs
    assert len(first) == epochs
    assert not any(torch.equal(one, two) for one, two in itertools.pairwise(first))
    arrays = (train.features, train.labels, test.features, test.labels)
    expected = linear_probe(config.linear, *arrays, 5, first.__getitem__)
    assert scores[0].value == expected.last["top1"]
    drawn.clear()
    probe_scores(config, train, test, noisy, seed=5)
    assert all(torch.equal(one, two) for one, two in zip(first, drawn, strict=True))


def test_only_the_protocols_asked_for_run() -> None:
    embedded = []

    def counting(dataset: Any) -> Tensor:
        embedded.append(len(dataset))
        return embed(dataset)

    config = ImageEvaluationConfig(protocols=("geometry",))
    scores = probe_scores(config, Points(0, 84), Points(1, 42), counting, seed=0)
    assert {s.protocol for s in scores} == {"geometry"}
    assert embedded == [42]
    config = ImageEvaluationConfig(protocols=("knn",))
    scores = probe_scores(config, Points(0, 84), Points(1, 42), counting, seed=0)
    assert {s.protocol for s in scores} == {"knn"}
    assert scores[0].details["k"] == 84


def test_labels_are_asked_for_before_encoding_and_geometry_needs_none() -> None:
    def forbidden(dataset: Any) -> Tensor:
        raise AssertionError("encoding is expensive and must not start")

    train, unlabeled = Points(0, 84), Points(1, 42, labeled=False)
    with pytest.raises(UserError, match="test data have no labels"):
        probe_scores(CONFIG, train, unlabeled, forbidden, seed=0)
    config = ImageEvaluationConfig(protocols=("geometry",))
    scores = probe_scores(config, train, unlabeled, embed, seed=0)
    assert {s.metric for s in scores} == {"uniformity", "effective-rank"}


def test_unknown_protocols_are_rejected() -> None:
    with pytest.raises(ValidationError):
        ImageEvaluationConfig.model_validate({"protocols": ["svm"]})
