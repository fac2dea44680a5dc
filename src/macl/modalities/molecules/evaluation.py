"""Evaluation of molecule encoders: fine-tuned on MoleculeNet, or frozen on one labeled set."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch import nn

from macl.core.errors import UserError
from macl.modalities.graphs.evaluation import evaluate_graphs
from macl.modalities.molecules.data import load_molecules
from macl.modalities.molecules.finetune import finetune, scaffold_split
from macl.modalities.molecules.moleculenet import SETS, load_set
from macl.modalities.molecules.sections import (
    FineTuneConfig,
    MoleculeDataConfig,
    MoleculeEvaluationConfig,
)
from macl.modalities.protocols import Embed
from macl.probes.score import Score


def evaluate_molecules(
    config: MoleculeEvaluationConfig,
    data: MoleculeDataConfig,
    embed: Embed,
    encoder: nn.Module,
    seed: int,
) -> list[Score]:
    """Evaluate an encoder, which stays as it is.

    finetune             for each MoleculeNet set, in percent: roc-auc at the last epoch and
                         roc-auc-best-validation at the epoch that validation chose, means over
                         seeds; `details` names the epoch and holds every seed's value and the
                         standard deviation ("std")
    svm, logistic, knn   accuracy on frozen embeddings of `data`: see `evaluate_graphs`
    """
    frozen = tuple(protocol for protocol in config.protocols if protocol != "finetune")
    scores: list[Score] = []
    if frozen:
        settings = config.model_copy(update={"protocols": frozen})
        scores += evaluate_graphs(settings, load_molecules(data), embed, seed, encoder)
    if "finetune" in config.protocols:
        scores += _transfer(config.finetune, data.cache, encoder, seed)
    return scores


def _transfer(
    config: FineTuneConfig, cache: Path | None, encoder: nn.Module, seed: int
) -> list[Score]:
    if config.path is None:
        raise UserError(
            "the protocol finetune needs the files of MoleculeNet: set evaluation.finetune.path to "
            f"a folder with {', '.join(SETS[name].file for name in config.sets)}."
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
        kinds = {
            "roc-auc": ([t.last for t in tuned], "last", config.epochs),
            "roc-auc-best-validation": (
                [t.best for t in tuned],
                "best validation",
                [t.best_epoch for t in tuned],
            ),
        }
        for metric, (values, which, epoch) in kinds.items():
            own = {"values": values, "std": float(np.std(values)), "which": which, "epoch": epoch}
            value = float(np.mean(values))
            scores.append(Score("finetune", metric, value, task=name, details=details | own))
    return scores
