"""Cross-validated scores: shape, settings, chance level, and the modality end to end."""

from __future__ import annotations

import statistics

import pytest
import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.graphs.data import GraphDataConfig, load_graphs
from macl.modalities.graphs.encoders import GIN
from macl.modalities.graphs.evaluation import GraphEvaluationConfig, evaluate_graphs
from macl.modalities.graphs.modality import MODALITY
from macl.modalities.protocols import Dataset


class Items:
    """Labels without graphs: the features below stand for the encoder."""

    def __init__(self, labels: Tensor | None) -> None:
        self.labels = labels
        self.names = [str(i) for i in range(60)]

    def __len__(self) -> int:
        return 60

    def __getitem__(self, index: int) -> int:
        return index

    def collate(self, samples: list[int]) -> list[int]:
        return samples


LABELS = torch.arange(60) % 2
ENCODER = GIN(1, hidden=2, layers=1)
ALL = GraphEvaluationConfig(protocols=("svm", "logistic", "knn"), folds=3, inner_folds=2, k=5)


def separable(dataset: Dataset) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(60, 4) * 0.3 + LABELS[:, None] * 2 - 1


def noise(dataset: Dataset) -> Tensor:
    torch.manual_seed(0)
    return torch.randn(60, 4)


def test_each_protocol_gives_a_mean_with_its_folds() -> None:
    scores = evaluate_graphs(ALL, Items(LABELS), separable, seed=3, encoder=ENCODER)
    assert [score.protocol for score in scores] == ["svm", "logistic", "knn"]
    for score in scores:
        assert score.metric == "accuracy"
        folds = score.details["folds"]
        assert len(folds) == 3
        assert score.value == pytest.approx(statistics.mean(folds)) == pytest.approx(100, abs=3)
        assert score.details["std"] == pytest.approx(statistics.pstdev(folds))
        assert score.details["seed"] == 3
        assert score.details["n"] == 60
    assert len(scores[0].details["chosen_c"]) == len(scores[1].details["chosen_c"]) == 3
    assert scores[2].details["k"] == 5


def test_noise_scores_like_noise() -> None:
    for score in evaluate_graphs(ALL, Items(LABELS), noise, seed=0, encoder=ENCODER):
        assert 25 < score.value < 75


def test_labels_are_required() -> None:
    with pytest.raises(UserError, match="no labels"):
        evaluate_graphs(ALL, Items(None), separable, seed=0, encoder=ENCODER)


@pytest.mark.parametrize("protocol", ["svm", "knn"])
def test_too_many_folds_are_explained(protocol: str) -> None:
    config = GraphEvaluationConfig.model_validate({"protocols": [protocol], "folds": 40})
    with pytest.raises(UserError):
        evaluate_graphs(config, Items(LABELS), separable, seed=0, encoder=ENCODER)


def test_an_untrained_encoder_beats_chance_on_the_atlas() -> None:
    torch.manual_seed(0)
    encoder = GIN(1).eval()

    def embed(dataset: Dataset) -> Tensor:
        with torch.inference_mode():
            return encoder(dataset.collate(list(range(len(dataset)))))

    data = GraphDataConfig()
    config = GraphEvaluationConfig(protocols=("knn",))
    (score,) = MODALITY.evaluate(config, data, embed, encoder, seed=0)
    labels = load_graphs(data).labels
    assert labels is not None
    majority = 100 * labels.bincount().max().item() / len(labels)
    assert score.value > majority + 20
