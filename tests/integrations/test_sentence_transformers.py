from __future__ import annotations

import gc
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

pytest.importorskip("sentence_transformers", reason="needs the extra 'text'")
pytest.importorskip("sentence_transformers.base.losses", reason="needs sentence-transformers 6")

from packaging.version import Version
from sentence_transformers import SentenceTransformer, __version__
from sentence_transformers.sentence_transformer import losses as theirs

from macl import MACL, InfoNCE, losses
from macl.integrations.sentence_transformers import (
    CachedContrastiveLoss,
    CachedMACLLoss,
    ContrastiveLoss,
    LogContrast,
    MACLLoss,
)
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
from macl.modalities.text.folders import save_text_encoder

SENTENCES = [
    "The cat sat on the mat.",
    "A dog barked at the cat in the night.",
    "Rain fell on the roof.",
    "The night was long.",
    "A cat is no dog.",
    "The roof is on the house.",
    "Dogs bark.",
    "It rained all night on the mat.",
]
Features = list[dict[str, Tensor]]
IN_SINGLE = Version(__version__) < Version("6.2")
"""Whether the library's caching replays gradients in single precision, also those in double."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    config = TextEncoderConfig(width=16, layers=2, heads=2, vocabulary=200, hidden_dropout=0.3)
    path = tmp_path_factory.mktemp("model")
    save_text_encoder(tiny_encoder(config, TextDataset([SENTENCES])), path)
    return path


@pytest.fixture
def model(folder: Path) -> SentenceTransformer:
    return SentenceTransformer(str(folder), device="cpu", local_files_only=True)


def batch(columns: int, rows: int = 7, ragged: bool = True) -> Features:
    """Token tensors as a collator makes them; fresh ones each time, as models write into them."""
    generator = torch.Generator().manual_seed(0)
    features = []
    for width in range(4, 4 + columns):
        ids = torch.randint(5, 60, (rows, width), generator=generator)
        lengths = torch.randint(2, width + 1, (rows, 1), generator=generator)
        mask = (torch.arange(width) < lengths).long() if ragged else torch.ones_like(ids)
        features.append({"input_ids": ids, "attention_mask": mask})
    return features


def gradients(model: SentenceTransformer, loss: Tensor) -> dict[str, Tensor]:
    model.zero_grad()
    loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_equal_gradients(one: dict[str, Tensor], two: dict[str, Tensor]) -> None:
    assert one.keys() == two.keys()
    assert one
    largest = max(float(grad.abs().max()) for grad in two.values())
    assert largest > 1e-6
    rtol, share = (1e-4, 1e-6) if IN_SINGLE else (1e-6, 1e-9)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=rtol, atol=share * largest, msg=name)


@pytest.mark.parametrize("columns", [2, 3, 4])
def test_info_nce_is_multiple_negatives_ranking(model: SentenceTransformer, columns: int) -> None:
    model.double().eval()
    ours = ContrastiveLoss(model, InfoNCE(0.05, symmetric=False))(batch(columns))
    peer = theirs.MultipleNegativesRankingLoss(model, scale=20.0)(batch(columns), None)
    torch.testing.assert_close(ours, peer)
    assert_equal_gradients(gradients(model, ours), gradients(model, peer))


def test_both_directions_are_its_symmetric_form(model: SentenceTransformer) -> None:
    model.double().eval()
    peer = theirs.MultipleNegativesRankingLoss(
        model,
        scale=20.0,
        directions=("query_to_doc", "doc_to_query"),
        partition_mode="per_direction",
    )
    ours = ContrastiveLoss(model, InfoNCE(0.05, symmetric=True))
    torch.testing.assert_close(ours(batch(2)), peer(batch(2), None))


@pytest.mark.parametrize("columns", [2, 3])
def test_macl_is_the_criterion_on_the_embeddings(model: SentenceTransformer, columns: int) -> None:
    model.double().eval()
    one, two, *more = (model(column)["sentence_embedding"] for column in batch(columns))
    criterion = MACL(0.05, 2.0, 0.8, reweight=False, negatives="cross", symmetric=False)
    told = criterion.contrast(one, two, hard=more[0] if more else None)
    loss = MACLLoss(model)
    torch.testing.assert_close(loss(batch(columns)), told.loss)
    assert loss.output is not None
    assert loss.output.alignment.item() == pytest.approx(told.alignment.item())
    tau = 0.05 * (1 + 2 * (told.alignment.item() - 0.8))
    assert loss.output.temperature.item() == pytest.approx(tau)
    torch.testing.assert_close(loss.output.margin, told.margin)


def test_what_is_kept_of_a_batch_does_not_hold_its_graph(model: SentenceTransformer) -> None:
    kept: list[StorageWeakRef] = []

    def keep(module: Any, given: Any, result: Tensor) -> None:
        kept.append(StorageWeakRef(result.untyped_storage()))

    hidden = next(m for m in model.modules() if isinstance(m, torch.nn.Linear))
    hidden.register_forward_hook(keep)
    for criterion in (InfoNCE(0.1), losses.SigLIP(), losses.DySTreSS(), losses.NTXent()):
        loss = ContrastiveLoss(model, criterion)
        value = loss(batch(2))
        assert not kept[-1].expired()
        del value
        gc.collect()
        assert kept[-1].expired(), criterion
        assert loss.output is not None
        assert not any(x.requires_grad for x in loss.output.metrics().values())
        assert loss.output.per_anchor.isfinite().all()


def metrics_of(loss: ContrastiveLoss) -> dict[str, Tensor]:
    assert loss.output is not None
    return loss.output.metrics()


@pytest.mark.parametrize("columns", [2, 3])
@pytest.mark.parametrize("size", [1, 3, 64])
def test_caching_changes_nothing(model: SentenceTransformer, columns: int, size: int) -> None:
    model.double().eval()
    plain, cached = MACLLoss(model), CachedMACLLoss(model, mini_batch_size=size)
    expected, value = plain(batch(columns)), cached(batch(columns))
    torch.testing.assert_close(value, expected.detach())
    # A of the batch, not of a part.
    torch.testing.assert_close(metrics_of(cached), metrics_of(plain))
    assert_equal_gradients(gradients(model, value), gradients(model, expected))


def test_caching_with_dropout_repeats_the_masks(model: SentenceTransformer) -> None:
    model.double().train()
    torch.manual_seed(1)
    cached = CachedMACLLoss(model, mini_batch_size=3)(batch(2, ragged=False))
    torch.rand(5)  # whatever happens between forward and backward
    got = gradients(model, cached)
    # The slow way: the same mini-batches in the same order, all kept for one backward pass.
    torch.manual_seed(1)
    embeddings = [
        torch.cat(
            [
                model({key: rows[start : start + 3] for key, rows in column.items()})[
                    "sentence_embedding"
                ]
                for start in range(0, 7, 3)
            ]
        )
        for column in batch(2, ragged=False)
    ]
    expected = MACLLoss(model).compute_loss_from_embeddings(embeddings)
    torch.testing.assert_close(cached.detach(), expected.detach())
    assert_equal_gradients(got, gradients(model, expected))
    # And one mini-batch for all is the loss without caching.
    losses_at_once = []
    for loss in (MACLLoss(model), CachedMACLLoss(model, mini_batch_size=7)):
        torch.manual_seed(2)
        losses_at_once.append(gradients(model, loss(batch(2))))
    assert_equal_gradients(*losses_at_once)


def test_the_scale_of_the_loss_reaches_cached_gradients(model: SentenceTransformer) -> None:
    model.double().eval()
    loss = CachedMACLLoss(model, mini_batch_size=3)
    whole, quarter = gradients(model, loss(batch(2))), gradients(model, loss(batch(2)) / 4)
    assert_equal_gradients(quarter, {name: grad / 4 for name, grad in whole.items()})


def test_evaluation_without_gradient(model: SentenceTransformer) -> None:
    model.eval()
    with torch.no_grad():
        plain = MACLLoss(model)(batch(2))
        cached = CachedMACLLoss(model, mini_batch_size=3)(batch(2))
    torch.testing.assert_close(cached, plain)


@pytest.mark.parametrize("make", [MACLLoss, CachedMACLLoss])
@pytest.mark.parametrize("reweight", [False, True])
def test_a_single_pair_does_not_stop_an_epoch(
    model: SentenceTransformer, make: Any, reweight: bool
) -> None:
    model.eval()
    loss = make(model, reweight=reweight)
    value = loss(batch(2, rows=1))
    assert value.item() == 0
    assert all(not grad.any() for grad in gradients(model, value).values())
    assert loss.output.alignment.isfinite()
    # With a negative column there is something to contrast.
    assert make(model, reweight=reweight)(batch(3, rows=1)).item() > 0


def test_other_losses_of_the_library_can_wrap_ours(model: SentenceTransformer) -> None:
    model.double().eval()
    plain = theirs.MatryoshkaLoss(model, MACLLoss(model), [16, 8])
    cached = theirs.MatryoshkaLoss(model, CachedMACLLoss(model, mini_batch_size=3), [16, 8])
    expected, value = plain(batch(2), None), cached(batch(2), None)
    torch.testing.assert_close(value.detach(), expected.detach())
    assert_equal_gradients(gradients(model, value), gradients(model, expected))


def test_what_cannot_work_is_refused(model: SentenceTransformer) -> None:
    with pytest.raises(ValueError, match="two columns"):
        MACLLoss(model)(batch(1))
    with pytest.raises(ValueError, match="reduction"):
        ContrastiveLoss(model, InfoNCE(reduction="none"))
    with pytest.raises(ValueError, match='negatives="cross"'):
        ContrastiveLoss(model, losses.NTXent())(batch(3))
    with pytest.raises(ValueError, match="mini_batch_size"):
        CachedMACLLoss(model, mini_batch_size=0)
    with pytest.raises(ValueError, match="learned temperature"):
        CachedContrastiveLoss(model, InfoNCE(losses.LearnedTemperature()))
    from sentence_transformers.sentence_transformer.modules import StaticEmbedding

    static = SentenceTransformer(
        modules=[StaticEmbedding(model.tokenizer.backend_tokenizer, embedding_dim=8)], device="cpu"
    )
    with pytest.raises(ValueError, match="StaticEmbedding"):
        CachedMACLLoss(static)


def test_the_model_card_is_told_everything(model: SentenceTransformer) -> None:
    assert CachedMACLLoss(model, alpha=1.0, mini_batch_size=4).get_config_dict() == {
        "criterion": "MACL",
        "temperature": 0.05,
        "alpha": 1.0,
        "threshold": 0.8,
        "floor": 0.005,
        "negatives": "cross",
        "symmetric": False,
        "reweight": False,
        "gather_across_devices": False,
        "positives": 1,
        "mask_duplicates": True,
        "mini_batch_size": 4,
    }
    general = ContrastiveLoss(model, losses.HCL(0.5, beta=1.0, negatives="cross", gather=True))
    config = general.get_config_dict()
    assert (config["criterion"], config["beta"], config["temperature"]) == ("HCL", 1.0, 0.5)
    assert config["gather_across_devices"] is True
    in_blocks = MACLLoss(model, gather_across_devices="ring")
    assert in_blocks.criterion.gather == "ring"
    assert in_blocks.get_config_dict()["gather_across_devices"] == "ring"
    model.model_card_data.set_losses([MACLLoss(model)])
    assert "loss:MACLLoss" in model.model_card_data.tags
    assert "Escaping the Dilemmas" in model.model_card_data.citations["MACLLoss"]
    assert "Gao" in CachedMACLLoss.citation


def test_figures_reach_the_logs_once(model: SentenceTransformer) -> None:
    used, idle, tracked = MACLLoss(model), MACLLoss(model), []
    wrapped = theirs.MatryoshkaLoss(model, used, [16])
    trainer = SimpleNamespace(
        loss={"one": wrapped, "two": idle}, track_loss_components=tracked.append
    )
    callback, event = LogContrast(trainer), (None, None, None)
    idle(batch(2))
    callback.on_evaluate(*event)  # what an evaluation left is no part of training
    wrapped(batch(2), None)
    output = used.output
    assert output is not None
    callback.on_substep_end(*event)
    callback.on_step_end(*event)
    (figures,) = tracked
    assert set(figures) == {
        "alignment", "temperature", "gradient_scale", "effective_anchors", "floored", "duplicates"
    }  # fmt: skip
    assert figures["alignment"] == output.alignment
    assert figures["duplicates"] == 0
    assert used.output is None


TRAINS = all(map(importlib.util.find_spec, ("accelerate", "datasets")))


@pytest.mark.skipif(not TRAINS, reason="needs sentence-transformers[train]")
@pytest.mark.parametrize("make", [MACLLoss, CachedMACLLoss])
def test_the_trainer_trains_logs_and_writes_the_card(
    model: SentenceTransformer, tmp_path: Path, make: Any
) -> None:
    from datasets import Dataset
    from sentence_transformers import (
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )

    data = Dataset.from_dict({"anchor": SENTENCES, "positive": SENTENCES})
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"),
        max_steps=2,
        per_device_train_batch_size=4,
        learning_rate=1e-2,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        use_cpu=True,
    )
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=make(model))
    trainer.add_callback(LogContrast(trainer))
    trainer.train()
    assert any(not torch.equal(before[name], p) for name, p in model.named_parameters())
    steps = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert [entry["step"] for entry in steps] == [1, 2]
    for entry in steps:
        expected = max(0.05 * (1 + 2 * (entry["alignment"] - 0.8)), 0.005)
        assert entry["temperature"] == pytest.approx(expected, abs=2e-4)  # four digits are logged
    model.save_pretrained(str(tmp_path / "saved"))
    card = (tmp_path / "saved" / "README.md").read_text(encoding="utf-8")
    assert f"macl.integrations.sentence_transformers.{make.__name__}" in card
    assert '"alpha": 2.0' in card
    assert "Model-Aware Contrastive Learning" in card
