from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import nn

import recipe_texts

pytest.importorskip("transformers", reason="needs the extra 'text'")

from macl import MACL
from macl.core.errors import UserError
from macl.methods import SimCLR
from macl.modalities.embedding import embedder
from macl.modalities.protocols import Dataset, Views
from macl.modalities.text.data import TextBatch, batch_groups
from macl.modalities.text.folders import save_text_encoder
from macl.modalities.text.modality import MODALITY
from macl.modalities.text.sections import (
    TextDataConfig,
    TextEncoderConfig,
    TextEvaluationConfig,
    TextViewsConfig,
)
from macl.training.fit import train
from tiny import HERE

SMALL = TextEncoderConfig(width=32, heads=2, vocabulary=1000)


def test_topics_train_evaluate_and_reopen(tmp_path: Path) -> None:
    dataset = MODALITY.load(TextDataConfig(), "train")
    assert isinstance(dataset, Dataset)
    torch.manual_seed(0)
    encoder = MODALITY.build_encoder(SMALL, dataset)
    views = MODALITY.build_views(TextViewsConfig(), encoder)
    assert isinstance(views, Views)

    method = SimCLR(encoder, nn.Identity(), MACL(temperature=0.1, alpha=0.5))
    optimizer = torch.optim.AdamW(method.parameters(), lr=1e-3)
    losses = []
    for step in range(12):
        batch = dataset.collate([dataset[i] for i in range(step * 32, step * 32 + 32)])
        contrast = method(*views(batch), groups=batch_groups(batch))
        optimizer.zero_grad()
        contrast.loss.backward()
        optimizer.step()
        losses.append(contrast.metrics["info_nce"].item())
    assert sum(losses[-3:]) < sum(losses[:3])

    embed = embedder(encoder, views, quiet=True)
    config = TextEvaluationConfig(protocols=("knn",))
    scores = MODALITY.evaluate(config, TextDataConfig(), embed, encoder, seed=0)
    top1 = {score.metric: score.value for score in scores}["top1"]
    assert top1 > 3 * 100 / len(dataset.classes)  # far above chance

    MODALITY.save_encoder(encoder, tmp_path, {"recipe": "topics"})
    again = MODALITY.load_encoder(SMALL, tmp_path)
    assert again.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()
    (tmp_path / "mine.txt").write_text("A name is bound.\nThe loop ends.\n")
    mine = MODALITY.open(TextDataConfig(), tmp_path / "mine.txt")
    reopened = embedder(again, MODALITY.build_views(TextViewsConfig(), again), quiet=True)
    torch.testing.assert_close(reopened(mine), embed(mine), atol=0, rtol=0)


def test_an_encoder_read_from_a_folder_trains_with_its_dropout(tmp_path: Path) -> None:
    """Such an encoder comes in eval mode; trained in it, both views of a sentence are the same."""
    corpus = tmp_path / "corpus.txt"
    corpus.write_text("\n".join(f"Sentence {i} speaks of thing {i * i}." for i in range(64)))
    dataset = MODALITY.load(TextDataConfig(path=str(corpus)), "train")
    save_text_encoder(MODALITY.build_encoder(SMALL, dataset), tmp_path / "encoder")
    recipe = recipe_texts.load(
        "topics", [f"data.path={corpus}", f"encoder.name={tmp_path / 'encoder'}", "epochs=1",
                   "batch_size=16", "monitor_every=0"],
    )  # fmt: skip
    run = train(recipe, tmp_path / "run", compute=HERE)
    alignment = pd.read_csv(run.metrics_file)["alignment"]
    assert len(alignment)
    assert (alignment < 0.999).all()


def test_hard_negatives_reach_the_loss() -> None:
    dataset = MODALITY.load(TextDataConfig(), "test")
    encoder = MODALITY.build_encoder(SMALL, dataset).eval()
    method = SimCLR(encoder, nn.Identity(), MACL(negatives="cross"))
    views = MODALITY.build_views(TextViewsConfig(), encoder)
    first, second, far = ([dataset[i + j][0] for i in range(4)] for j in (0, 4, 8))
    without = method(*views(TextBatch(first, second))).loss
    with_hard = method(*views(TextBatch(first, second, far))).loss
    assert with_hard > without


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (
            ["method=moco", "method.queue_size=8"],
            "MoCo cannot use hard negatives.*method=simclr",
        ),
        (["method=nnclr", "method.queue_size=8"], "NNCLR cannot use hard negatives"),
        (["loss=nt-xent", "loss.negatives=both"], "set loss.negatives=cross"),
    ],
)
def test_hard_negatives_without_a_place_are_told_before_training(
    overrides: list[str], words: str, tmp_path: Path
) -> None:
    table = pd.DataFrame({name: [f"{name} {i}" for i in range(8)] for name in ("text", "p", "n")})
    table.to_csv(tmp_path / "a.csv")
    tiny = ["encoder.width=16", "encoder.vocabulary=100", "batch_size=4", "data.positive=p"]
    data = [f"data.path={tmp_path}/a.csv", "data.negative=n"]
    made = recipe_texts.load("topics", [*overrides, *tiny, *data])
    with pytest.raises(UserError, match=words):
        train(made, tmp_path / "run", compute=HERE)
    assert not (tmp_path / "run").exists()


def test_duplicates_may_be_contrasted_after_all() -> None:
    encoder = MODALITY.build_encoder(SMALL, MODALITY.load(TextDataConfig(), "test"))
    masked, free = (
        MODALITY.build_views(TextViewsConfig(mask_duplicates=on), encoder) for on in (True, False)
    )
    assert masked.groups is batch_groups
    assert free.groups is None


def test_other_encoders_are_refused() -> None:
    with pytest.raises(UserError, match="no tokenizer"):
        MODALITY.build_views(TextViewsConfig(), nn.Linear(2, 2))
