"""Labeled batches: against a loop in float64, the library's own NTXentLoss, and our own forms."""

from __future__ import annotations

import builtins
import importlib
import math
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from macl import DCL, DCLW, HCL, MACL, DualTemperature, FlatNCE, InfoNCE, LearnedTemperature, NTXent
from macl import losses as family

pml = pytest.importorskip("pytorch_metric_learning", reason="needs pytorch-metric-learning")

from pytorch_metric_learning import losses, miners, reducers  # noqa: E402
from pytorch_metric_learning.distances import LpDistance  # noqa: E402
from pytorch_metric_learning.regularizers import LpRegularizer  # noqa: E402
from pytorch_metric_learning.utils.distributed import DistributedLossWrapper  # noqa: E402

from macl.integrations.pytorch_metric_learning import (  # noqa: E402
    BlockMiner,
    ContrastiveLoss,
    Labeled,
    equal_labels,
)

FAMILY = [InfoNCE, NTXent, DCL, DCLW, FlatNCE, DualTemperature, HCL, MACL]


def embeddings(n: int, seed: int = 0, d: int = 6) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, d, generator=generator, dtype=torch.float64).requires_grad_()


def loop(z: Tensor, y: Tensor, ref: Tensor, ref_y: Tensor, tau: float, alpha: float) -> Tensor:
    """MACL over labels, term by term: the paper's Algorithm 1 for each positive pair."""
    z, ref = torch.nn.functional.normalize(z, dim=1), torch.nn.functional.normalize(ref, dim=1)
    same_set = z.shape == ref.shape and bool((z == ref).all())
    terms = []
    for a in range(len(z)):
        negatives = [z[a] @ ref[n] for n in range(len(ref)) if ref_y[n] != y[a]]
        for p in range(len(ref)):
            if ref_y[p] == y[a] and not (same_set and a == p):
                terms.append((z[a] @ ref[p], negatives))
    t = tau * (1 + alpha * sum(pos.item() for pos, _ in terms) / len(terms))
    total = z.new_zeros(())
    for pos, negatives in terms:
        if negatives:
            above = sum(torch.exp(s / t) for s in negatives)
            prob = torch.exp(pos / t) / (torch.exp(pos / t) + above)
            total = total - (1 / (1 - prob)).detach() * torch.log(prob)
    return total / len(terms)


@settings(max_examples=60, deadline=None)
@given(
    labels=st.lists(st.integers(0, 3), min_size=2, max_size=9),
    seed=st.integers(0, 1000),
)
def test_equals_the_loop_for_any_labels(labels: list[int], seed: int) -> None:
    y, z = torch.tensor(labels), embeddings(len(labels), seed)
    loss = ContrastiveLoss(MACL(temperature=0.5, alpha=0.5))(z, y)
    (grad,) = torch.autograd.grad(loss, z)
    if len(set(labels)) == len(labels):  # no positive pair at all
        assert loss == 0
        assert not grad.any()
        return
    expected = loop(z, y, z, y, 0.5, 0.5)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    if len(set(labels)) > 1:
        (expected_grad,) = torch.autograd.grad(expected, z)
        torch.testing.assert_close(grad, expected_grad, rtol=1e-9, atol=1e-11)
    else:  # nothing to contrast with
        assert loss == 0
        assert not grad.any()


def test_equals_the_loop_with_references() -> None:
    z, ref = embeddings(5, 1), embeddings(8, 2)
    y, ref_y = torch.tensor([0, 1, 1, 2, 7]), torch.tensor([2, 0, 1, 0, 1, 5, 2, 0])
    loss = ContrastiveLoss(MACL(0.3, alpha=0.7))(z, y, ref_emb=ref, ref_labels=ref_y)
    expected = loop(z, y, ref, ref_y, 0.3, 0.7)
    torch.testing.assert_close(loss, expected, rtol=1e-10, atol=1e-12)
    for ours, theirs in zip(
        torch.autograd.grad(loss, (z, ref)), torch.autograd.grad(expected, (z, ref)), strict=True
    ):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@given(
    rows=st.lists(st.integers(-2, 3), max_size=8),
    columns=st.lists(st.integers(-2, 3), max_size=8),
)
def test_equal_labels_finds_what_a_matrix_finds(rows: list[int], columns: list[int]) -> None:
    y, ref_y = torch.tensor(rows, dtype=torch.int64), torch.tensor(columns, dtype=torch.int64)
    matrix = y[:, None] == ref_y[None, :]
    found_rows, found_columns, same = equal_labels(y, ref_y)
    expected_rows, expected_columns = torch.where(matrix)
    assert found_rows.tolist() == expected_rows.tolist()
    assert found_columns.tolist() == expected_columns.tolist()
    assert same.tolist() == matrix.sum(1).tolist()


def test_counts_the_negatives_of_each_pair() -> None:
    z = torch.nn.functional.normalize(embeddings(5), dim=1)
    y = torch.tensor([0, 0, 0, 1, 1])
    pairs = Labeled(z, z, y, y)
    assert pairs.count.tolist() == [2.0] * 6 + [3.0] * 2


@pytest.mark.parametrize("loss", FAMILY)
def test_two_views_are_the_criterions_own_form(loss: type[family.ContrastiveLoss]) -> None:
    z1, z2 = embeddings(6, 1), embeddings(6, 2)
    wrapped = losses.SelfSupervisedLoss(ContrastiveLoss(loss()))
    for ours, own in (
        (wrapped, loss(negatives="both")),
        (
            losses.SelfSupervisedLoss(ContrastiveLoss(loss()), symmetric=False),
            loss(negatives="cross", symmetric=False),
        ),
    ):
        labeled, direct = ours(z1, z2), own(z1, z2)
        torch.testing.assert_close(labeled, direct, rtol=1e-10, atol=1e-12)
        for a, b in zip(
            torch.autograd.grad(labeled, (z1, z2)),
            torch.autograd.grad(direct, (z1, z2)),
            strict=True,
        ):
            torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-11)


MINERS = [
    None,
    miners.BatchHardMiner(),
    miners.MultiSimilarityMiner(epsilon=0.5),
    miners.TripletMarginMiner(margin=0.3),
    miners.PairMarginMiner(pos_margin=0.1, neg_margin=1.2),
]


@pytest.mark.parametrize("miner", MINERS, ids=lambda m: type(m).__name__)
def test_equals_the_librarys_ntxent_with_its_miners(miner: Any) -> None:
    z, y = embeddings(14, 3), torch.arange(14) % 4
    mined = None if miner is None else miner(z, y)
    ours = ContrastiveLoss(NTXent(temperature=0.2))(z, y, mined)
    theirs = losses.NTXentLoss(temperature=0.2)(z, y, mined)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)
    (grad,), (expected,) = torch.autograd.grad(ours, z), torch.autograd.grad(theirs, z)
    torch.testing.assert_close(grad, expected, rtol=1e-9, atol=1e-11)


def test_mined_anchors_without_negatives_are_harmless() -> None:
    z = embeddings(4)
    indices = tuple(torch.tensor(i) for i in ([0, 1], [1, 0], [0, 0], [2, 2]))
    (grad,) = torch.autograd.grad(ContrastiveLoss(MACL())(z, indices_tuple=indices), z)
    assert grad.isfinite().all()
    # anchor 1 has no negative: its term is 0, so only half of anchor 0's term remains
    similarity = torch.nn.functional.normalize(z, dim=1) @ torch.nn.functional.normalize(z, dim=1).T
    expected = DCL().from_similarities(similarity[0, 1:2], similarity[0, 2].expand(1, 2))
    torch.testing.assert_close(
        ContrastiveLoss(DCL())(z, indices_tuple=indices), expected / 2, rtol=1e-10, atol=1e-12
    )


REDUCERS = [
    reducers.MeanReducer(),
    reducers.PerAnchorReducer(),
    reducers.AvgNonZeroReducer(),
    reducers.ThresholdReducer(low=0.5, high=6.0),
    reducers.ClassWeightedReducer(torch.tensor([1.0, 2.0, 0.5], dtype=torch.float64)),
]


@pytest.mark.parametrize("reducer", REDUCERS, ids=lambda r: type(r).__name__)
def test_reducers_see_the_same_terms(reducer: Any) -> None:
    z, y = embeddings(9, 5), torch.arange(9) % 3
    ours = ContrastiveLoss(NTXent(temperature=0.2), reducer=reducer)(z, y)
    theirs = losses.NTXentLoss(temperature=0.2, reducer=reducer)(z, y)
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_no_reduction_and_regularizer() -> None:
    z, y = embeddings(6), torch.arange(6) % 2
    terms = ContrastiveLoss(MACL(), reducer=reducers.DoNothingReducer())(z, y)["loss"]
    assert terms["losses"].shape == (12,)
    assert [index.shape for index in terms["indices"]] == [(12,), (12,)]
    plain = ContrastiveLoss(MACL())(z, y)
    torch.testing.assert_close(plain, terms["losses"].mean())
    regularized = ContrastiveLoss(
        MACL(), embedding_regularizer=LpRegularizer(), embedding_reg_weight=0.5
    )(z, y)
    expected = plain + 0.5 * z.norm(dim=1).mean()
    torch.testing.assert_close(regularized, expected)


def test_cross_batch_memory() -> None:
    ours = losses.CrossBatchMemory(ContrastiveLoss(NTXent(0.2)), embedding_size=6, memory_size=10)
    theirs = losses.CrossBatchMemory(losses.NTXentLoss(0.2), embedding_size=6, memory_size=10)
    for seed in range(4):  # the memory of ten is full after three batches of four
        z, y = embeddings(4, seed), torch.tensor([0, 1, 0, 1])
        torch.testing.assert_close(ours(z, y), theirs(z, y), rtol=1e-10, atol=1e-12)


def test_stats_are_recorded_when_asked_for() -> None:
    z1, z2 = embeddings(6, 1), embeddings(6, 2)
    z, y = torch.cat([z1, z2]), torch.arange(6).repeat(2)
    loss = ContrastiveLoss(MACL(temperature=0.2, alpha=0.5), collect_stats=True)
    loss(z, y)
    story = MACL(temperature=0.2, alpha=0.5).contrast(z1, z2)
    assert loss.alignment == pytest.approx(story.alignment.item())
    assert loss.temperature == pytest.approx(story.temperature.item())
    assert loss.gradient_scale == pytest.approx(story.gradient_scale.mean().item())
    assert set(loss._record_these_stats) == {"alignment", "temperature", "gradient_scale"}
    loss(z1, torch.arange(6))  # no pairs: the library resets what it records
    assert loss.alignment == 0
    silent = ContrastiveLoss(MACL())
    silent(z, y)
    assert not hasattr(silent, "alignment")


def test_half_precision_is_computed_in_single() -> None:
    z, y = embeddings(8).detach(), torch.arange(8) % 3
    loss = ContrastiveLoss(MACL(temperature=0.05))
    exact = loss(z, y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        under_autocast = loss(z.float(), y)
    assert under_autocast.dtype == torch.float32
    torch.testing.assert_close(under_autocast.double(), exact, rtol=1e-5, atol=1e-6)


def test_learned_temperature_is_a_parameter_and_trains() -> None:
    loss = ContrastiveLoss(NTXent(LearnedTemperature(0.2)))
    (theta,) = loss.parameters()
    loss(embeddings(8), torch.arange(8) % 3).backward()
    assert theta.grad is not None
    assert theta.grad.abs() > 0


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ContrastiveLoss(MACL(reduction="none")), "DoNothingReducer"),
        (lambda: ContrastiveLoss(MACL(gather=True)), "DistributedLossWrapper"),
        (lambda: ContrastiveLoss(MACL(gather="ring")), "DistributedLossWrapper"),
        (lambda: ContrastiveLoss(MACL())(embeddings(4)), "labels and indices_tuple"),
        (
            lambda: ContrastiveLoss(MACL())(
                embeddings(2), torch.arange(2), None, embeddings(2, d=5), torch.arange(2)
            ),
            r"\(2, 6\) and \(2, 5\)",
        ),
        (
            lambda: ContrastiveLoss(MACL())(embeddings(2), torch.arange(2), ref_emb=embeddings(3)),
            "ref_labels",
        ),
        (
            lambda: ContrastiveLoss(MACL())(embeddings(2) * math.nan, torch.zeros(2)),
            "embeddings has NaN",
        ),
    ],
)
def test_mistakes_are_named(make: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make()


def test_only_cosine_similarity() -> None:
    with pytest.raises(ValueError, match=r"LpDistance.*cosine similarity.*T/2 here"):
        ContrastiveLoss(MACL(), distance=LpDistance())


def test_squared_euclidean_distance_is_half_the_temperature() -> None:
    """What the message for other distances says."""
    z, y = embeddings(12), torch.arange(12) % 4
    peer = losses.NTXentLoss(0.4, distance=LpDistance(normalize_embeddings=True, p=2, power=2))
    torch.testing.assert_close(ContrastiveLoss(NTXent(0.2))(z, y), peer(z, y))


def test_import_without_the_library_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == "pytorch_metric_learning":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.delitem(sys.modules, "macl.integrations.pytorch_metric_learning")
    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(ImportError, match=r"macl\[integrations\]"):
        importlib.import_module("macl.integrations.pytorch_metric_learning")
    tomllib = pytest.importorskip("tomllib", reason="reads pyproject.toml, Python 3.11 on")
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert any(
        "pytorch-metric-learning" in p for p in project["optional-dependencies"]["integrations"]
    )


def _rank(rank: int, store: str, out: str) -> None:
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2
    )
    z, y = embeddings(8, 4), torch.arange(8) % 4
    mine = z.detach()[rank * 4 : rank * 4 + 4].clone().requires_grad_()
    loss = DistributedLossWrapper(ContrastiveLoss(MACL()))(mine, y[rank * 4 : rank * 4 + 4])
    loss.backward()
    torch.save(mine.grad, f"{out}.{rank}")
    torch.distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.skipif(os.name == "nt", reason="gloo with a file store")
def test_two_processes_give_the_gradient_of_one(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(
        _rank, (str(tmp_path / "store"), str(tmp_path / "grad")), nprocs=2, join=True
    )
    z, y = embeddings(8, 4), torch.arange(8) % 4
    ContrastiveLoss(MACL())(z, y).backward()
    parts = [torch.load(tmp_path / f"grad.{rank}", weights_only=True) for rank in range(2)]
    # data parallelism averages what the ranks' parameters receive
    torch.testing.assert_close(torch.cat(parts) / 2, z.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("references", [False, True])
def test_several_labels_per_sample_equal_the_loop(references: bool) -> None:
    """Rows that share a label are positives; the others negatives."""

    class Shared(set[int]):
        def __eq__(self, other: object) -> bool:
            return bool(self & other)  # type: ignore[operator]

        def __ne__(self, other: object) -> bool:
            return not self == other

        __hash__ = None  # type: ignore[assignment]

    generator = torch.Generator().manual_seed(4)
    hot = torch.rand(9, 5, generator=generator) < 0.3
    z = embeddings(9)
    ref, ref_hot = (embeddings(7, 1), hot[:7].roll(1, 1)) if references else (z, hot)
    sets, ref_sets = (
        [Shared(row.nonzero().flatten().tolist()) for row in h] for h in (hot, ref_hot)
    )
    expected = loop(z, sets, ref, ref_sets, 0.2, 0.5)
    more = {"ref_emb": ref, "ref_labels": ref_hot.long()} if references else {}
    loss = ContrastiveLoss(MACL(0.2, 0.5, 0.0))(z, hot.long(), **more)
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(*(torch.autograd.grad(x, z)[0] for x in (loss, expected)))


def test_one_hot_labels_are_labels() -> None:
    labels = torch.randint(5, (40,), generator=torch.Generator().manual_seed(0))
    hot = torch.nn.functional.one_hot(labels, 5)
    for one, two in zip(
        equal_labels(labels, labels), equal_labels(hot, hot, most=100), strict=True
    ):
        assert torch.equal(one, two)
    with pytest.raises(ValueError, match="multi-hot"):
        ContrastiveLoss(MACL())(embeddings(8), torch.ones(7, 2))


@pytest.mark.parametrize(
    "miner",
    [
        miners.BatchHardMiner(),
        miners.MultiSimilarityMiner(epsilon=0.3),
        miners.PairMarginMiner(pos_margin=0.8, neg_margin=1.2),
        miners.TripletMarginMiner(margin=0.5),
    ],
    ids=lambda m: type(m).__name__,
)
def test_a_miner_in_blocks_gives_its_loss(miner: Any) -> None:
    z, labels = embeddings(23), torch.arange(23) % 5
    loss = ContrastiveLoss(NTXent(0.2))
    whole = loss(z, labels, miner(z, labels))
    widths: list[int] = []
    miner.distance.register_forward_hook(lambda module, given, matrix: widths.append(len(matrix)))
    blocks = loss(z, labels, BlockMiner(miner, rows=4)(z, labels))
    assert whole > 0
    torch.testing.assert_close(blocks, whole)
    assert max(widths) <= 4
    with pytest.raises(ValueError, match="1 or more"):
        BlockMiner(miner, rows=0)
