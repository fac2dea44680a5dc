"""Fine-tuning on the sets of MoleculeNet under a scaffold split, evaluated by ROC-AUC."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from rdkit import rdBase
from rdkit.Chem.Scaffolds.MurckoScaffold import MurckoScaffoldSmiles
from sklearn.metrics import roc_auc_score
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.progress import track
from macl.modalities.molecules.data import MoleculeDataset
from macl.modalities.molecules.moleculenet import FILES, load_set
from macl.modalities.molecules.sections import FineTuneConfig
from macl.probes.score import Score

_EVALUATION_BATCH = 256


def evaluate_transfer(
    config: FineTuneConfig, cache: Path | None, encoder: nn.Module, seed: int
) -> list[Score]:
    """Fine-tune a copy of an encoder on each set, with `seed` and the seeds after it.

    In percent: roc-auc at the last epoch and roc-auc-best-validation at the epoch that validation
    chose, means over seeds; `details` names the epoch and holds every seed's value and the standard
    deviation ("std").
    """
    if config.path is None:
        raise UserError(
            "the protocol finetune needs the files of MoleculeNet: set evaluation.finetune.path to "
            f"a folder with {', '.join(FILES[name] for name in config.sets)}."
        )
    # All are read before any is trained on: a missing file is reported now, not hours later.
    sets = {name: load_set(name, config.path, cache) for name in config.sets}
    scores: list[Score] = []
    for name, dataset in sets.items():
        split = scaffold_split(dataset.names)
        seeds = range(seed, seed + config.seeds)
        try:
            tuned = [finetune(encoder, dataset, split, config, each) for each in seeds]
        except UserError as error:
            raise UserError(f"{name}: {error}") from error
        sizes = {f"n_{part}": len(members) for part, members in split._asdict().items()}
        details = config.model_dump(exclude={"path", "sets"}) | sizes | {"seeds": list(seeds)}
        epochs = [t.best_epoch for t in tuned]
        for metric, values, which, epoch in (
            ("roc-auc", [t.last for t in tuned], "last", config.epochs),
            ("roc-auc-best-validation", [t.best for t in tuned], "best validation", epochs),
        ):
            own = {"values": values, "std": float(np.std(values)), "which": which, "epoch": epoch}
            value = float(np.mean(values))
            scores.append(Score("finetune", metric, value, task=name, details=details | own))
    return scores


class Split(NamedTuple):
    """The molecules to train on, to choose the epoch by, and to test on, whose cores are new."""

    train: list[int]
    validation: list[int]
    test: list[int]


def scaffold(smiles: str) -> str:
    """The Bemis-Murcko scaffold, chirality and all; empty for a molecule without rings."""
    return str(MurckoScaffoldSmiles(smiles=smiles, includeChirality=True))


def scaffold_split(smiles: Sequence[str]) -> Split:
    """Deal whole scaffold sets out 8:1:1, without chance, as Hu et al. (2020) do.

    The largest sets come first, of equal ones that whose first molecule comes last. Each goes to
    training where it still fits into 80 %, else to validation where both together stay within 90 %,
    else to test.
    """
    sets: dict[str, list[int]] = {}
    with rdBase.BlockLogs():
        for index, text in enumerate(track(smiles, "Finding scaffolds", len(smiles))):
            sets.setdefault(scaffold(text), []).append(index)
    split = Split([], [], [])
    for members in sorted(sets.values(), key=lambda s: (len(s), s[0]), reverse=True):
        trained = len(split.train) + len(members)
        if 10 * trained <= 8 * len(smiles):
            split.train.extend(members)
        elif 10 * (trained + len(split.validation)) <= 9 * len(smiles):
            split.validation.extend(members)
        else:
            split.test.extend(members)
    return split


class Tuned(NamedTuple):
    """Test ROC-AUC in percent at two epochs."""

    last: float
    """After the last epoch."""
    best: float
    """At the epoch with the highest validation ROC-AUC; the test set plays no part in it."""
    best_epoch: int
    """Counted from 1; the first of several equal ones."""


def masked_bce(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean binary cross-entropy over the known of (B, T) targets in {0, 1, NaN}; 0 if none is."""
    known = ~targets.isnan()
    total = F.binary_cross_entropy_with_logits(
        logits, targets.nan_to_num(), weight=known.to(logits.dtype), reduction="sum"
    )
    return total / known.sum().clamp(min=1)


def roc_auc(scores: Tensor, targets: Tensor) -> float | None:
    """ROC-AUC averaged over the tasks whose known targets have both classes; None if none has.

    (M, T) scores are larger for class 1; (M, T) targets are in {0, 1, NaN}.
    """
    areas = []
    for score, target in zip(scores.T, targets.T, strict=True):
        known = ~target.isnan()
        if len(target[known].unique()) == 2:
            areas.append(float(roc_auc_score(target[known].numpy(), score[known].numpy())))
    return sum(areas) / len(areas) if areas else None


# Evaluation may be asked for where gradients are off, as in a validation loop.
@torch.inference_mode(mode=False)
@torch.enable_grad()
def finetune(
    encoder: nn.Module, dataset: MoleculeDataset, split: Split, config: FineTuneConfig, seed: int
) -> Tuned:
    """Train a copy of `encoder` with a linear head on the training part; `encoder` stays as it is.

    `seed` decides the head's weights, the order and the dropout; the global random state is put
    back. Raises `UserError` where the validation or test part has no task with both classes.
    """
    for part in ("validation", "test"):
        targets = dataset.targets[getattr(split, part)]
        if roc_auc(torch.zeros_like(targets), targets) is None:
            raise UserError(
                f"no task has both classes in the {part} part of the scaffold split, so there is "
                "no ROC-AUC. The set is too small."
            )
    device = next(encoder.parameters()).device
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        tuned = copy.deepcopy(encoder).requires_grad_(True)
        for module in tuned.modules():
            if isinstance(module, nn.Dropout):
                module.p = config.dropout
        width: int = tuned.out_dim  # type: ignore[assignment]
        model = nn.Sequential(tuned, nn.Linear(width, dataset.targets.size(1))).to(device)
        optimizer = torch.optim.Adam(model.parameters(), lr=config.lr)
        highest = last = best = -1.0
        best_epoch = 0
        for epoch in track(range(1, config.epochs + 1), f"Fine-tuning, seed {seed}"):
            _train_epoch(model, optimizer, dataset, split.train, config.batch_size)
            validation = _test(model, dataset, split.validation)
            if validation > highest or epoch == config.epochs:
                last = 100 * _test(model, dataset, split.test)
            if validation > highest:
                highest, best_epoch, best = validation, epoch, last
    return Tuned(last, best, best_epoch)


def _train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    dataset: MoleculeDataset,
    part: list[int],
    batch_size: int,
) -> None:
    model.train()
    for chosen in torch.tensor(part)[torch.randperm(len(part))].split(batch_size):
        if len(chosen) == 1:
            continue  # a tail of one molecule may be a single atom, which has no batch statistics
        logits, targets = _forward(model, dataset, chosen)
        loss = masked_bce(logits, targets.to(logits.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


@torch.no_grad()
def _test(model: nn.Module, dataset: MoleculeDataset, part: list[int]) -> float:
    model.eval()
    batches = torch.tensor(part).split(_EVALUATION_BATCH)
    logits, targets = zip(*(_forward(model, dataset, each) for each in batches), strict=True)
    area = roc_auc(torch.cat(logits).cpu(), torch.cat(targets))
    assert area is not None  # checked before training
    return area


def _forward(model: nn.Module, dataset: MoleculeDataset, chosen: Tensor) -> tuple[Tensor, Tensor]:
    """(B, T) logits on the model's device, and targets on the CPU."""
    device = next(model.parameters()).device
    return model(dataset.collate(chosen.tolist()).to(device)), dataset.targets[chosen]
