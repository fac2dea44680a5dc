"""Semantic textual similarity: does the cosine of two sentences rank as people do?"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch.nn.functional as F
from scipy.stats import spearmanr
from torch import Tensor

from macl.modalities.text.embedding import Encode, embed_once
from macl.modalities.text.sections import Aggregation
from macl.modalities.text.senteval import ScoredPairs
from macl.probes.score import Score


def sts_score(
    task: str,
    subsets: Mapping[str, ScoredPairs],
    encode: Encode,
    aggregation: Aggregation = "all",
    split: str = "test",
) -> Score:
    """Spearman's correlation, in percent, between cosines and gold scores of one task."""
    columns = [side for pairs in subsets.values() for side in (pairs.first, pairs.second)]
    vectors = embed_once(encode, *columns)
    cosines = {
        name: F.cosine_similarity(first.double(), second.double())
        for name, first, second in zip(subsets, vectors[::2], vectors[1::2], strict=True)
    }
    golds = {name: pairs.gold for name, pairs in subsets.items()}
    details = {"aggregation": aggregation, "pairs": sum(map(len, golds.values()))}
    value = 100 * aggregate_spearman(cosines, golds, aggregation)
    return Score("sts", "spearman", value, split=split, task=task, details=details)


def aggregate_spearman(
    scores: Mapping[str, Tensor], golds: Mapping[str, list[float]], aggregation: Aggregation
) -> float:
    """One correlation for several subsets, whose names are the keys of both mappings.

    all    one correlation over the pairs of all subsets together (the paper's)
    mean   the mean of the subsets' correlations
    wmean  the same, weighted by the number of pairs
    """
    subsets = [(scores[name].numpy(), np.array(gold)) for name, gold in golds.items()]
    if aggregation == "all":
        return _spearman(*map(np.concatenate, zip(*subsets, strict=True)))
    weights = [len(gold) for _, gold in subsets] if aggregation == "wmean" else None
    return float(np.average([_spearman(*subset) for subset in subsets], weights=weights))


def _spearman(scores: np.ndarray, gold: np.ndarray) -> float:
    # Undefined when all cosines are equal: an encoder that has collapsed ranks nothing.
    if np.ptp(scores) == 0 or np.ptp(gold) == 0:
        return 0.0
    return float(spearmanr(scores, gold).statistic)
