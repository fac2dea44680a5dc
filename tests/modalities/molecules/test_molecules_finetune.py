"""Fine-tuning: the masked loss, ROC-AUC with missing labels, epochs, and what it leaves alone."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import roc_auc_score
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.molecules import finetune as finetune_module
from macl.modalities.molecules.data import MoleculeDataset
from macl.modalities.molecules.encoders import MoleculeGIN
from macl.modalities.molecules.features import parse_smiles
from macl.modalities.molecules.finetune import (
    FineTuneConfig,
    Split,
    Tuned,
    finetune,
    masked_bce,
    roc_auc,
)

SEEDS = st.integers(0, 2**31)


def labeled(seed: int, rows: int = 30, tasks: int = 4) -> tuple[Tensor, Tensor]:
    """Scores with ties, and targets of which a third are missing."""
    generator = torch.Generator().manual_seed(seed)
    scores = torch.randint(-5, 6, (rows, tasks), generator=generator).double() / 2
    targets = torch.randint(0, 3, (rows, tasks), generator=generator).double()
    targets[targets == 2] = math.nan
    return scores, targets


@given(SEEDS)
def test_masked_bce_equals_a_loop(seed: int) -> None:
    logits, targets = labeled(seed)
    losses = []
    for logit, target in zip(logits.view(-1).tolist(), targets.view(-1).tolist(), strict=True):
        if not math.isnan(target):
            probability = 1 / (1 + math.exp(-logit))
            losses.append(-math.log(probability if target else 1 - probability))
    assert masked_bce(logits, targets).item() == pytest.approx(sum(losses) / len(losses))


def test_missing_targets_have_no_gradient() -> None:
    logits = torch.zeros(2, 2, requires_grad=True)
    masked_bce(logits, torch.tensor([[1, math.nan], [math.nan, 0]])).backward()
    assert torch.equal(logits.grad, torch.tensor([[-0.25, 0], [0, 0.25]]))  # type: ignore[arg-type]
    none = torch.full((2, 2), math.nan)
    logits.grad = None
    loss = masked_bce(logits, none)
    loss.backward()
    assert loss.item() == 0
    assert torch.equal(logits.grad, torch.zeros(2, 2))  # type: ignore[arg-type]


@settings(max_examples=15)
@given(SEEDS)
def test_roc_auc_equals_sklearn_task_by_task_and_counting_pairs(seed: int) -> None:
    scores, targets = labeled(seed)
    by_sklearn, by_pairs = [], []
    for task in range(targets.size(1)):
        known = [i for i in range(len(targets)) if not math.isnan(targets[i, task])]
        truth, score = targets[known, task].tolist(), scores[known, task].tolist()
        by_sklearn.append(roc_auc_score(truth, score))
        wins = [
            (p > n) + (p == n) / 2
            for p, yes in zip(score, truth, strict=True)
            for n, other in zip(score, truth, strict=True)
            if yes == 1 and other == 0
        ]
        by_pairs.append(sum(wins) / len(wins))
    assert roc_auc(scores, targets) == pytest.approx(sum(by_sklearn) / len(by_sklearn))
    assert roc_auc(scores, targets) == pytest.approx(sum(by_pairs) / len(by_pairs))


def test_tasks_of_one_class_are_left_out() -> None:
    nan = math.nan
    targets = torch.tensor([[0, 1, nan], [1, 1, nan], [nan, nan, nan], [0, 1, 1]])
    scores = torch.tensor([[1.0, 0, 0], [2, 0, 0], [9, 0, 0], [3, 0, 0]])
    assert roc_auc(scores, targets) == 0.5  # the first task alone: above one of its two zeros
    assert roc_auc(scores[:, 1:], targets[:, 1:]) is None


AMINES = ["CCN", "CCCN", "NC1CC1", "CC(C)N", "NCCN", "CCCCN", "CNC", "NC1CCC1"]
ALCOHOLS = ["CCO", "CCCO", "OC1CC1", "CC(C)O", "OCCO", "CCCCO", "COC", "OC1CCC1"]
SPLIT = Split([0, 1, 2, 3, 8, 9, 10, 11], [4, 5, 12, 13], [6, 7, 14, 15])


def amines() -> MoleculeDataset:
    """Task 0: is it an amine; task 1: the opposite, known for every other molecule."""
    smiles = [*AMINES, *ALCOHOLS]
    is_amine = torch.tensor([1.0] * 8 + [0.0] * 8)
    other = 1 - is_amine
    other[::2] = math.nan
    dataset = MoleculeDataset(smiles, parse_smiles(smiles))
    dataset.targets = torch.stack([is_amine, other], dim=1)
    return dataset


def small_encoder() -> MoleculeGIN:
    torch.manual_seed(0)
    return MoleculeGIN(layers=2, hidden=16)


def test_it_learns_what_can_be_learnt() -> None:
    config = FineTuneConfig(epochs=30, batch_size=4, lr=1e-2, dropout=0.1)
    tuned = finetune(small_encoder(), amines(), SPLIT, config, seed=0)
    assert tuned.last == pytest.approx(100)
    assert tuned.best == pytest.approx(100)
    assert 1 <= tuned.best_epoch <= 30


def test_the_encoder_and_the_random_state_are_left_alone() -> None:
    encoder = small_encoder().eval().requires_grad_(False)
    before, state = copy.deepcopy(encoder.state_dict()), torch.get_rng_state()
    with torch.inference_mode():
        finetune(encoder, amines(), SPLIT, FineTuneConfig(epochs=2, batch_size=4), seed=5)
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())
    assert torch.equal(torch.get_rng_state(), state)
    assert encoder.dropout.p == 0
    assert not encoder.training
    assert not any(parameter.requires_grad for parameter in encoder.parameters())


def test_seeds_decide_everything(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Tensor] = []
    monkeypatch.setattr(
        finetune_module,
        "masked_bce",
        lambda logits, targets: seen.append(logits.detach()) or masked_bce(logits, targets),
    )
    config, encoder = FineTuneConfig(epochs=2, batch_size=4), small_encoder()
    for seed in (0, 0, 1):
        finetune(encoder, amines(), SPLIT, config, seed)
    one, same, other = (torch.cat(seen[i : i + 4]) for i in (0, 4, 8))
    assert torch.equal(one, same)
    assert not torch.allclose(one, other)


def test_dropout_is_switched_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ratios = []

    def spy(model: torch.nn.Module, *rest: object) -> None:
        ratios.extend(m.p for m in model.modules() if isinstance(m, torch.nn.Dropout))

    monkeypatch.setattr(finetune_module, "_train_epoch", spy)
    finetune(small_encoder(), amines(), SPLIT, FineTuneConfig(epochs=1), seed=0)
    assert ratios == [0.5]


def test_last_and_best_validation_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    validation, test = iter([0.6, 0.9, 0.9, 0.7]), {1: 0.5, 2: 0.55, 4: 0.8}
    epochs = []
    monkeypatch.setattr(finetune_module, "_train_epoch", lambda *_: epochs.append(1))
    monkeypatch.setattr(
        finetune_module,
        "_test",
        lambda _, __, part: next(validation) if part == SPLIT.validation else test[len(epochs)],
    )
    tuned = finetune(small_encoder(), amines(), SPLIT, FineTuneConfig(epochs=4), seed=0)
    assert tuned == Tuned(last=80.0, best=pytest.approx(55.0), best_epoch=2)


def test_a_tail_of_one_atom_does_no_harm() -> None:
    smiles = ["C"] * 9
    dataset = MoleculeDataset(smiles, parse_smiles(smiles))
    dataset.targets = torch.tensor([0.0, 1] * 4 + [0])[:, None]
    split = Split([0, 1, 2, 3, 8], [4, 5], [6, 7])
    tuned = finetune(
        small_encoder(), dataset, split, FineTuneConfig(epochs=1, batch_size=2), seed=0
    )
    assert tuned.last == 50


def test_parts_without_both_classes_are_explained() -> None:
    split = SPLIT._replace(validation=[4, 5])
    with pytest.raises(UserError, match="validation part"):
        finetune(small_encoder(), amines(), split, FineTuneConfig(epochs=1), seed=0)
    with pytest.raises(UserError, match="test part"):
        finetune(
            small_encoder(), amines(), SPLIT._replace(test=[]), FineTuneConfig(epochs=1), seed=0
        )
