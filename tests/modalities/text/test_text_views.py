from __future__ import annotations

import pytest
import torch

pytest.importorskip("transformers", reason="needs the extra 'text'")

from macl.core import batching
from macl.modalities.text.data import TextBatch, TextDataset
from macl.modalities.text.encoders import (
    TextEncoder,
    TextEncoderConfig,
    TextViews,
    TextViewsConfig,
    tiny_encoder,
)

FIRST = ["the cat sat on the mat", "rain fell"]
SECOND = ["a cat", "it rained the whole night long"]
NEGATIVE = ["a dog barked", "the sun shone"]


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    torch.manual_seed(0)
    config = TextEncoderConfig(width=16, heads=2, vocabulary=200, hidden_dropout=0.2)
    return tiny_encoder(config, TextDataset([FIRST, SECOND, NEGATIVE]))


def encode_both(encoder: TextEncoder, seed: int) -> tuple[torch.Tensor, ...]:
    views = TextViews(TextViewsConfig(), encoder)(TextBatch(FIRST))
    torch.manual_seed(seed)
    return encoder(batching.concat(*views)).split(2)


def test_dropout_makes_the_views_differ_and_the_seed_repeats_them(encoder: TextEncoder) -> None:
    encoder.train()
    z1, z2 = encode_both(encoder, 0)
    assert ((z1 - z2).abs().amax(dim=1) > 1e-3).all()
    again = encode_both(encoder, 0)
    assert torch.equal(z1, again[0])
    assert torch.equal(z2, again[1])
    assert not torch.equal(z1, encode_both(encoder, 1)[0])
    encoder.eval()
    z1, z2 = encode_both(encoder, 0)
    torch.testing.assert_close(z1, z2)


def test_pairs_and_hard_negatives_are_views_of_one_length(encoder: TextEncoder) -> None:
    views = TextViews(TextViewsConfig(), encoder)(TextBatch(FIRST, SECOND, NEGATIVE))
    assert len(views) == 3
    assert len({view["input_ids"].shape for view in views}) == 1
    for view, texts in zip(views, (FIRST, SECOND, NEGATIVE), strict=True):
        decoded = encoder.tokenizer.batch_decode(view["input_ids"], skip_special_tokens=True)
        assert decoded == texts


def test_training_cuts_sentences_and_evaluation_does_not(encoder: TextEncoder) -> None:
    long = TextBatch(["cat " * 100])
    views = TextViews(TextViewsConfig(max_length=10), encoder)
    assert views(long)[0]["input_ids"].shape[1] == 10
    assert views.plain(long)["input_ids"].shape[1] == 102
    views = TextViews(TextViewsConfig(plain_max_length=20), encoder)
    assert views(long)[0]["input_ids"].shape[1] == 32
    assert views.plain(long)["input_ids"].shape[1] == 20
