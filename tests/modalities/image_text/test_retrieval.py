"""Ranks and recalls against loops; ties and NaN count against the query."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from macl.modalities.image_text.evaluation import (
    modality_gap,
    recall_metrics,
    retrieval_ranks,
    zero_shot_ranks,
)


def slow_ranks(queries: Tensor, keys: Tensor, matches: Tensor) -> list[int]:
    q, k = F.normalize(queries, dim=1), F.normalize(keys, dim=1)
    own: dict[int, set[int]] = {}
    for i, j in matches.tolist():
        own.setdefault(i, set()).add(j)
    ranks = []
    for i in range(len(q)):
        mine = own.get(i, set())
        if not mine:
            ranks.append(len(k) + 1)
            continue
        best = max(float(q[i] @ k[j]) for j in mine)
        rank = 1
        for j in range(len(k)):
            if j not in mine and float(q[i] @ k[j]) >= best:
                rank += 1
        ranks.append(rank)
    return ranks


@pytest.mark.parametrize("seed", range(5))
def test_ranks_equal_those_of_a_loop(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(seed)
    queries, keys = torch.randn(37, 5).double(), torch.randn(23, 5).double()
    matches = torch.stack([torch.randint(37, (60,)), torch.randint(23, (60,))], dim=1).unique(dim=0)
    matches = matches[torch.randperm(len(matches))]
    assert retrieval_ranks(queries, keys, matches).tolist() == slow_ranks(queries, keys, matches)
    # The same in blocks of two queries.
    monkeypatch.setattr("macl.core.similarity.product_blocks.__defaults__", (46,))
    assert retrieval_ranks(queries, keys, matches).tolist() == slow_ranks(queries, keys, matches)


def test_ties_and_nan_count_against_the_query() -> None:
    same = torch.ones(4, 3)
    own = torch.arange(4)
    matches = torch.stack([own, own], dim=1)
    assert retrieval_ranks(same, same, matches).tolist() == [4, 4, 4, 4]
    broken = torch.full((4, 3), torch.nan)
    assert retrieval_ranks(broken, same, matches).tolist() == [4, 4, 4, 4]
    assert retrieval_ranks(torch.zeros(4, 3), same, matches).tolist() == [4, 4, 4, 4]


def test_a_caption_that_fits_several_pictures_is_right_for_each() -> None:
    keys = torch.eye(4)
    queries = torch.eye(4)[[0, 0, 1]]
    matches = torch.tensor([[0, 0], [1, 0], [2, 1], [2, 3]])
    assert retrieval_ranks(queries, keys, matches).tolist() == [1, 1, 1]
    # Key 0 finds either of its two pictures first.
    assert retrieval_ranks(keys[:2], queries, matches[:3].flip(1)).tolist() == [1, 1]


def test_recalls_are_percentages_and_the_median_is_a_rank() -> None:
    metrics = recall_metrics(torch.tensor([1, 1, 3, 7, 12]), "image-to-text")
    assert metrics == {
        "image-to-text R@1": 40.0,
        "image-to-text R@5": 60.0,
        "image-to-text R@10": 80.0,
        "image-to-text median rank": 3.0,
    }


def test_zero_shot_equals_a_loop_over_prompts() -> None:
    torch.manual_seed(0)
    prompts, images = torch.randn(6, 3, 8).double(), torch.randn(20, 8).double()
    labels = torch.randint(6, (20,))
    means = torch.zeros(6, 8).double()
    for c in range(6):
        for t in range(3):
            means[c] += prompts[c, t] / math.sqrt(float((prompts[c, t] ** 2).sum()))
    vectors = means / means.norm(dim=1, keepdim=True)
    ranks = zero_shot_ranks(images, prompts, labels)
    for i, label in enumerate(labels.tolist()):
        scores = [float(images[i] @ vectors[c]) for c in range(6)]
        assert int(ranks[i]) == 1 + sum(scores[c] >= scores[label] for c in range(6) if c != label)


def test_the_modality_gap_is_the_distance_of_the_means() -> None:
    images, texts = torch.tensor([[2.0, 0.0], [0.0, 3.0]]), torch.tensor([[-1.0, 0.0]])
    assert float(modality_gap(images, texts)) == pytest.approx(math.hypot(1.5, 0.5))
