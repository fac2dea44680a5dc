"""Equal texts, several positives, guides and widths: beside loops and the library's own losses."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

pytest.importorskip("sentence_transformers.base.losses", reason="needs sentence-transformers 6")

from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer import losses as theirs
from test_sentence_transformers import (
    SENTENCES,
    TRAINS,
    assert_equal_gradients,
    batch,
    folder,
    gradients,
    model,
)

import macl
from macl import InfoNCE, losses
from macl.integrations.duplicates import connected, find_duplicates, fingerprints
from macl.integrations.sentence_transformers import (
    CachedContrastiveLoss,
    ContrastiveLoss,
    LogContrast,
    MACLLoss,
)
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
from macl.modalities.text.folders import save_text_encoder

__all__ = ["folder", "model"]  # fixtures
Features = list[dict[str, Tensor]]
TAU = 0.05


def repeated(columns: int) -> Features:
    """Row 3 has row 0's anchor, row 5 row 3's positive, and row 6's positive is anchor 1."""
    features = batch(columns)
    width = max(column["input_ids"].shape[1] for column in features)
    for column in features:
        for key, value in column.items():
            column[key] = torch.nn.functional.pad(value, (0, width - value.shape[1]))

    def copy(to: tuple[int, int], source: tuple[int, int]) -> None:
        for key in features[0]:
            features[to[0]][key][to[1]] = features[source[0]][key][source[1]]

    copy((0, 3), (0, 0))
    copy((1, 5), (1, 3))
    copy((1, 6), (0, 1))
    if columns > 2:
        copy((2, 2), (1, 4))  # row 2's negative is row 4's positive, and row 4's is anchor 4
        copy((2, 4), (0, 4))
    return features


GROUPS = [0, 1, 2, 0, 4, 0, 1]


def embedded(model: SentenceTransformer, features: Features) -> list[Tensor]:
    return [
        torch.nn.functional.normalize(model(dict(column))["sentence_embedding"], dim=1)
        for column in features
    ]


def loop(columns: list[Tensor], groups: list[int], hard_groups: list[int] | None, p: int) -> Tensor:
    """One anchor, positive and negative at a time."""
    terms = []
    hard = torch.cat(columns[1 + p :]) if len(columns) > 1 + p else []
    for i, anchor in enumerate(columns[0]):
        negatives = [
            anchor @ columns[c][j] / TAU
            for c in range(1, 1 + p)
            for j in range(len(groups))
            if groups[j] != groups[i]
        ]
        for j, row in enumerate(hard):
            if hard_groups is None or hard_groups[j] != groups[i]:
                negatives.append(anchor @ row / TAU)
        mean = []
        for c in range(1, 1 + p):
            positive = anchor @ columns[c][i] / TAU
            mean.append(torch.logsumexp(torch.stack([positive, *negatives]), 0) - positive)
        terms.append(torch.stack(mean).mean())
    return torch.stack(terms).mean()


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize("columns", [2, 3])
def test_equal_texts_are_no_negatives(model: SentenceTransformer, make: Any, columns: int) -> None:
    model.double().eval()
    loss = make(model, InfoNCE(TAU, symmetric=False))
    value = loss(repeated(columns))
    hard = None if columns == 2 else [-1, -1, 4, -1, 4, -1, -1]
    expected = loop(embedded(model, repeated(columns)), GROUPS, hard, 1)
    torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-6, atol=0)
    assert_equal_gradients(gradients(model, value), gradients(model, expected))
    assert loss.output.metrics()["duplicates"] == (3 if columns == 2 else 5)
    # And on request the library's own value, which repels them.
    off = make(model, InfoNCE(TAU, symmetric=False), mask_duplicates=False)
    peer = theirs.MultipleNegativesRankingLoss(model, scale=1 / TAU)(repeated(columns), None)
    torch.testing.assert_close(off(repeated(columns)).detach(), peer.detach())
    assert abs(peer.item() - value.item()) > 1e-3
    assert "duplicates" not in off.output.metrics()


@pytest.mark.parametrize("make", [ContrastiveLoss, CachedContrastiveLoss])
@pytest.mark.parametrize("mask", [True, False])
def test_several_positives_and_negatives(model: SentenceTransformer, make: Any, mask: bool) -> None:
    model.double().eval()
    loss = make(model, InfoNCE(TAU, symmetric=False), positives=2, mask_duplicates=mask)
    value = loss(batch(5))
    expected = loop(embedded(model, batch(5)), list(range(7)), None, 2)
    torch.testing.assert_close(value.detach(), expected.detach(), rtol=1e-6, atol=0)
    assert_equal_gradients(gradients(model, value), gradients(model, expected))
    assert loss.get_config_dict()["positives"] == 2
    with pytest.raises(ValueError, match="symmetric=False"):
        make(model, InfoNCE(), positives=2)
    with pytest.raises(ValueError, match="positives=2"):
        loss(batch(2))


def guide_model(tmp_path: Path, width: int = 8, more: str = "") -> SentenceTransformer:
    """A model with other weights, and with other tokens if its texts are more."""
    torch.manual_seed(5)
    config = TextEncoderConfig(width=width, layers=1, heads=2, vocabulary=200)
    texts = [*SENTENCES, *more.split(".")]
    save_text_encoder(tiny_encoder(config, TextDataset([texts])), tmp_path / "guide")
    return SentenceTransformer(str(tmp_path / "guide"), device="cpu").double()


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize(("relative", "margin"), [(False, 0.0), (False, 0.2), (True, 0.1)])
def test_the_guide_excludes_what_gist_excludes(
    model: SentenceTransformer, tmp_path: Path, columns: int, relative: bool, margin: float
) -> None:
    model.double().eval()
    guide = guide_model(tmp_path)
    options = {"margin": margin, "margin_strategy": "relative" if relative else "absolute"}
    options |= {"contrast_anchors": False, "contrast_positives": False}
    criterion = InfoNCE(TAU, symmetric=False, guide_margin=margin, guide_relative=relative)
    ours = ContrastiveLoss(model, criterion, guide=guide)
    cached = CachedContrastiveLoss(model, criterion, 3, guide=guide)
    peers = (
        theirs.GISTEmbedLoss(model, guide, TAU, **options),
        theirs.CachedGISTEmbedLoss(model, guide, TAU, mini_batch_size=3, **options),
    )
    values = [loss(batch(columns), None) for loss in (ours, cached, *peers)]
    for value in values[1:]:
        torch.testing.assert_close(value.detach(), values[0].detach(), rtol=1e-6, atol=0)
    found = [gradients(model, value) for value in values]
    for each in found[1:]:
        assert_equal_gradients(found[0], each)
    plain = ContrastiveLoss(model, criterion)(batch(columns))
    assert abs(plain.item() - values[0].item()) > 1e-4  # something was excluded
    assert all(p.grad is None for p in guide.parameters())
    assert not any(p.requires_grad for p in ours.guide.parameters())


def test_a_guide_with_other_tokens_reads_the_texts(
    model: SentenceTransformer, tmp_path: Path
) -> None:
    guide = guide_model(tmp_path, more="Quite another text about ships and storms. Sailors sing.")
    model.double().eval()
    features = [dict(model.preprocess(SENTENCES[:4])), dict(model.preprocess(SENTENCES[4:]))]
    criterion = InfoNCE(TAU, symmetric=False)
    ours = ContrastiveLoss(model, criterion, guide=guide)
    peer = theirs.GISTEmbedLoss(model, guide, TAU, contrast_anchors=False, contrast_positives=False)
    assert peer.must_retokenize
    torch.testing.assert_close(
        ours(list(map(dict, features))), peer(list(map(dict, features)), None), rtol=1e-6, atol=0
    )


def test_widths_together_with_caching_are_the_librarys(model: SentenceTransformer) -> None:
    model.double().eval()
    criterion = InfoNCE(TAU, symmetric=False, dims=(None, 8), dim_weights=(1.0, 0.5))
    cached = theirs.CachedMultipleNegativesRankingLoss(model, scale=1 / TAU, mini_batch_size=3)
    values = [
        ContrastiveLoss(model, criterion)(batch(3)),
        CachedContrastiveLoss(model, criterion, 3)(batch(3)),
        theirs.MatryoshkaLoss(model, cached, [16, 8], [1.0, 0.5])(batch(3), None),
    ]
    found = [gradients(model, value) for value in values]
    for value, each in zip(values[:2], found[:2], strict=True):
        torch.testing.assert_close(value.detach(), values[2].detach(), rtol=1e-6, atol=0)
        assert_equal_gradients(each, found[2])


def test_the_cached_loss_is_the_librarys(model: SentenceTransformer) -> None:
    model.double().eval()
    ours = CachedContrastiveLoss(model, InfoNCE(TAU, symmetric=False), 3)(batch(4))
    peer = theirs.CachedMultipleNegativesRankingLoss(model, scale=1 / TAU, mini_batch_size=3)
    value = peer(batch(4), None)
    torch.testing.assert_close(ours.detach(), value.detach(), rtol=1e-6, atol=0)
    assert_equal_gradients(gradients(model, ours), gradients(model, value))


def test_chunks_of_an_own_loop_are_the_librarys_caching(model: SentenceTransformer) -> None:
    model.double().eval()

    def call(encoder: Any, column: dict[str, Tensor]) -> Tensor:
        embedding: Tensor = encoder(column)["sentence_embedding"]
        return embedding

    ours = macl.cached(model, InfoNCE(TAU, symmetric=False), chunk=3, call=call)(*batch(2))
    peer = theirs.CachedMultipleNegativesRankingLoss(model, scale=1 / TAU, mini_batch_size=3)
    value = peer(batch(2), None)
    torch.testing.assert_close(ours.detach(), value.detach(), rtol=1e-6, atol=0)
    assert_equal_gradients(gradients(model, ours), gradients(model, value))


def by_union(texts: Tensor) -> list[int]:
    """Joined one pair of rows at a time, until nothing changes."""
    labels = list(range(len(texts)))
    changed = True
    while changed:
        changed = False
        for i in range(len(texts)):
            for j in range(i):
                if set(texts[i].tolist()) & set(texts[j].tolist()) and labels[i] != labels[j]:
                    labels[i] = labels[j] = min(labels[i], labels[j])
                    changed = True
    return labels


@pytest.mark.parametrize("texts", [5, 20, 40, 100])
def test_rows_are_joined_through_others(texts: int) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        rows = torch.randint(texts, (24, 2), generator=generator)
        assert connected(rows).tolist() == by_union(rows)
    chain = torch.stack([torch.arange(1000), torch.arange(1, 1001)], 1)
    shuffled = chain[torch.randperm(1000, generator=torch.Generator().manual_seed(0))]
    assert not connected(shuffled).any()


def test_padding_and_packing_do_not_change_a_text() -> None:
    texts = [[7, 8, 9], [8, 7, 9], [7], [7, 0], [7, 8, 9]]
    right = torch.tensor([t + [0] * (4 - len(t)) for t in texts])
    left = torch.tensor([[0] * (4 - len(t)) + t for t in texts])
    lengths = torch.tensor(list(map(len, texts)))
    mask = (torch.arange(4) < lengths[:, None]).long()
    flat = torch.tensor([token for text in texts for token in text])
    ends = torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])
    found = [
        fingerprints({"input_ids": right, "attention_mask": mask}),
        fingerprints({"input_ids": left.int(), "attention_mask": mask.flip(1)}),
        fingerprints({"input_ids": flat[None], "cu_seq_lens_q": ends.int()}),
        fingerprints({"input_ids": flat, "offsets": ends[:-1]}),
    ]
    assert found[0] is not None
    for other in found[1:]:
        assert other is not None
        assert torch.equal(found[0], other)
    same = found[0][:, None] == found[0]
    assert same.nonzero().tolist() == [[0, 0], [0, 4], [1, 1], [2, 2], [3, 3], [4, 0], [4, 4]]
    # Pictures have equal placeholders: nothing is known of them.
    assert fingerprints({"input_ids": right, "pixel_values": torch.zeros(5, 3)}) is None
    assert find_duplicates([{"input_ids": right}, {"pixel_values": torch.zeros(5, 3)}]) is None


RANKS = Path(__file__).with_name("duplicate_ranks.py")


@pytest.mark.parametrize("gather", ["true", "ring"])
def test_equal_texts_of_other_ranks_are_no_negatives(tmp_path: Path, gather: str) -> None:
    from tiny import run_ranks

    done = run_ranks(RANKS, tmp_path, gather)
    assert [d.returncode for d in done] == [0, 0], done[0].stderr + done[1].stderr
    by_rank = [torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)]
    sys.path.insert(0, str(RANKS.parent))
    from duplicate_ranks import step

    value, gradient, count = step(slice(None), False)
    assert value == pytest.approx(sum(v for v, _, _ in by_rank) / 2)
    torch.testing.assert_close(torch.stack([g for _, g, _ in by_rank]).mean(0), gradient)
    assert count == sum(c for _, _, c in by_rank) == 3


@pytest.mark.skipif(not TRAINS, reason="needs sentence-transformers[train]")
def test_prompts_and_streamed_data_train(model: SentenceTransformer, tmp_path: Path) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    rows = {"anchor": [SENTENCES[0], *SENTENCES[:3]], "positive": SENTENCES[4:]}
    streamed = Dataset.from_dict(rows).to_iterable_dataset()
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=4,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
        prompts={"anchor": "A query: ", "positive": "A passage: "},
    )
    loss = MACLLoss(model)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=streamed, loss=loss)
    trainer.add_callback(LogContrast(trainer))
    trainer.train()
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["duplicates"] for entry in steps] == [1.0, 1.0]


def test_without_the_librarys_internals_the_plain_losses_work(
    model: SentenceTransformer, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "macl.integrations.sentence_transformers"
    for hidden in (
        "sentence_transformers.base.losses",
        "sentence_transformers.base.losses.merged_forward",
    ):
        monkeypatch.setitem(sys.modules, hidden, None)
    monkeypatch.delitem(sys.modules, name)
    older = importlib.import_module(name)
    model.double().eval()
    criterion = losses.InfoNCE(TAU, symmetric=False)
    torch.testing.assert_close(
        older.ContrastiveLoss(model, criterion)(batch(3)),
        ContrastiveLoss(model, criterion)(batch(3)),
    )
    with pytest.raises(ImportError, match="sentence-transformers 6 or newer"):
        older.CachedContrastiveLoss(model, criterion)
