"""Evaluation of two towers: retrieval, zero-shot classification, probes, geometry."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from macl import geometry
from macl.core.errors import UserError
from macl.core.similarity import product_blocks
from macl.modalities.image_text.data import has_table, image_config, load_pairs
from macl.modalities.image_text.pairs import PairDataset
from macl.modalities.image_text.sections import PairDataConfig, PairEvaluationConfig
from macl.modalities.images.data import load_for_evaluation
from macl.modalities.probing import probe_scores, scores_of
from macl.modalities.protocols import Dataset, Embed
from macl.modalities.splits import random_subset, same_classes
from macl.modalities.text.data import TextDataset
from macl.probes.common import require_labels
from macl.probes.score import Score

PAIRED = ("retrieval", "geometry")
"""Protocols that need captions."""

RECALLS = (1, 5, 10)

MONITORED = 1000
"""Pictures whose captions are retrieved during training."""


def evaluate_pairs(
    config: PairEvaluationConfig, data: PairDataConfig, embed: Embed, encoder: nn.Module, seed: int
) -> list[Score]:
    """Evaluate frozen towers by the protocols of `config`, which docs/howto/image-text.md lists."""
    asked = set(config.protocols)
    scores: list[Score] = []
    has_captions = data.path is None or has_table(data.path)
    if asked & set(PAIRED):
        if not has_captions:
            raise UserError(
                f"{data.path} has no table of captions: of its images there are zero-shot, knn "
                "and linear, as in `protocols=zero-shot`."
            )
        scores += _paired(config, load_pairs(data, config.split), embed)
    if asked - set(PAIRED):
        if has_captions:
            train, test = same_classes(load_pairs(data, "train"), load_pairs(data, config.split))
            split: str = config.split
        else:
            images = image_config(data).model_copy(update={"path": data.path})
            train, test, split = load_for_evaluation(images, config.split)
        if "zero-shot" in asked:
            scores += _zero_shot(config, test, embed, split)
        probes = tuple(name for name in ("knn", "linear") if name in asked)
        if probes:
            settings = config.model_copy(update={"protocols": probes})
            scores += probe_scores(settings, train, test, embed, seed, split)
    return scores


def retrieval_scores(pairs: PairDataset, images: Tensor, texts: Tensor, split: str) -> list[Score]:
    """Retrieval in both directions among the images, (N, D), and `pairs.texts()`, (M, D)."""
    matches = pairs.matches()
    metrics = {
        **recall_metrics(retrieval_ranks(images, texts, matches), "image-to-text"),
        **recall_metrics(retrieval_ranks(texts, images, matches.flip(1)), "text-to-image"),
    }
    return scores_of("retrieval", metrics, split, n_images=len(images), n_texts=len(texts))


def retrieval_monitor(train: PairDataset, embed: Embed) -> Score:
    """R@1 of a fixed sample of the training images among the captions of that sample."""
    pairs = train.select(random_subset(len(train), MONITORED))
    return retrieval_scores(pairs, embed(pairs.images), embed(pairs.texts()), "train")[0]


def _paired(config: PairEvaluationConfig, pairs: PairDataset, embed: Embed) -> list[Score]:
    captions = pairs.texts()
    images, texts = embed(pairs.images), embed(captions)
    scores: list[Score] = []
    if "retrieval" in config.protocols:
        scores += retrieval_scores(pairs, images, texts, config.split)
    if "geometry" in config.protocols:
        place = {text: j for j, text in enumerate(captions.names)}
        firsts = torch.tensor([place[own[0]] for own in pairs.captions])
        values = {
            "modality-gap": modality_gap(images, texts),
            "alignment": geometry.alignment(images, texts[firsts]),
            "image uniformity": geometry.uniformity(images),
            "text uniformity": geometry.uniformity(texts),
        }
        scores += scores_of(
            "geometry", values, config.split, n_images=len(images), n_texts=len(texts),
            dimensions=images.shape[1],
        )  # fmt: skip
    return scores


def _zero_shot(
    config: PairEvaluationConfig, test: Dataset, embed: Embed, split: str
) -> list[Score]:
    labels = require_labels(test.labels, split)
    names = [config.classes.get(name, name) for name in test.classes]
    prompts = [template.replace("{}", name) for name in names for template in config.templates]
    vectors = embed(TextDataset([prompts])).reshape(len(names), len(config.templates), -1)
    ranks = zero_shot_ranks(embed(test), vectors, labels)
    tops = (1, 5) if len(names) > 5 else (1,)
    shares = {f"top{k}": 100 * float((ranks <= k).double().mean()) for k in tops}
    used: dict[str, Any] = {"classes": len(names), "templates": list(config.templates)}
    return scores_of("zero-shot", shares, split, **used, n_test=len(test))


def retrieval_ranks(queries: Tensor, keys: Tensor, matches: Tensor) -> Tensor:
    """The rank of the best matching key for every query, by cosine similarity.

        rank_i = 1 + |{ j ∉ P_i : s_ij ≥ max_{p ∈ P_i} s_ip }|

    P_i are the keys that match query i; `matches` has (P, 2) int64 pairs of query and key. A key
    that ties with the best match counts as better, and so does one whose similarity is not a
    number. Returns (M,) int64 from 1; N + 1 for a query that none of the N keys matches.
    """
    matches = matches[matches[:, 0].argsort(stable=True)]
    rows = matches[:, 0].contiguous()
    ranks = []
    units = F.normalize(keys, dim=1)
    for start, similarities in product_blocks(F.normalize(queries, dim=1), units):
        first, last = torch.searchsorted(rows, torch.tensor([start, start + len(similarities)]))
        own = matches[int(first) : int(last)]
        is_match = torch.zeros_like(similarities, dtype=torch.bool)
        is_match[own[:, 0] - start, own[:, 1]] = True
        best = similarities.masked_fill(~is_match, -torch.inf).amax(dim=1, keepdim=True)
        # Written as "not below", so that NaN counts against the query.
        ahead = ~(similarities < best) & ~is_match
        rank = 1 + ahead.sum(dim=1)
        ranks.append(rank.where(is_match.any(dim=1), len(keys) + 1))
    return torch.cat(ranks)


def recall_metrics(ranks: Tensor, prefix: str) -> dict[str, float]:
    """Share of (M,) ranks up to K in percent for each K, and the median rank (the lower of two)."""
    shares = {f"{prefix} R@{k}": 100 * float((ranks <= k).double().mean()) for k in RECALLS}
    return {**shares, f"{prefix} median rank": float(ranks.double().median())}


def zero_shot_ranks(images: Tensor, prompts: Tensor, labels: Tensor) -> Tensor:
    """The rank of the true class of (N, D) images by (C, T, D) vectors of T prompts for each."""
    matches = torch.stack([torch.arange(len(labels)), labels], dim=1)
    return retrieval_ranks(images, F.normalize(prompts, dim=2).mean(dim=1), matches)


def modality_gap(images: Tensor, texts: Tensor) -> Tensor:
    """‖mean of the unit image vectors − mean of the unit text vectors‖, a scalar."""
    return (F.normalize(images, dim=1).mean(0) - F.normalize(texts, dim=1).mean(0)).norm()
