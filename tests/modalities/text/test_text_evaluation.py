from __future__ import annotations

import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from pydantic import ValidationError
from scipy.stats import pearsonr
from torch import Tensor

pytest.importorskip("transformers", reason="needs the extra 'text'")

from small_senteval import WORDS, sentence, sentence_encoder, write, write_senteval

from macl.core.errors import UserError
from macl.modalities.probing import probe_scores
from macl.modalities.protocols import Dataset
from macl.modalities.splits import same_classes
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
from macl.modalities.text.evaluation import (
    TextEvaluationConfig,
    embed_once,
    senteval_scores,
    sts_score,
    transfer_score,
)
from macl.modalities.text.linear import DECAYS, fit_linear
from macl.modalities.text.sections import STS_TASKS, TRANSFER_TASKS
from macl.modalities.text.senteval import (
    STS_SETS,
    Texts,
    find_root,
    read_sts,
    read_transfer,
)


def bag_of_words(sentences: list[str]) -> Tensor:
    return torch.tensor([[float(s.split().count(w)) for w in WORDS] for s in sentences])


def wide_bag_of_words(sentences: list[str]) -> Tensor:
    """Wide features start from small weights, so SentEval's few small steps get somewhere."""
    return bag_of_words(sentences).repeat(1, 200)


@pytest.fixture(scope="module")
def senteval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"))


def test_every_task_runs_on_a_small_folder(senteval: Path) -> None:
    config = TextEvaluationConfig(protocols=("sts", "transfer"), senteval=senteval)
    scores = senteval_scores(config, bag_of_words)
    tasks = [score.task for score in scores]
    assert tasks == [*STS_TASKS, "average", *TRANSFER_TASKS, "average"]
    values = {score.task: score.value for score in scores[:7]}
    assert scores[7].value == pytest.approx(sum(values.values()) / 7)
    for score in scores[8:]:
        assert score.value > 75, score
    assert scores[14].details["f1"] > 75
    assert {s.protocol for s in scores} == {"sts", "transfer-logistic"}


def test_single_tasks_come_without_an_average(senteval: Path) -> None:
    config = TextEvaluationConfig(protocols=("SICK-R", "STS-B"), senteval=senteval, split="dev")
    scores = senteval_scores(config, bag_of_words)
    assert [(s.task, s.split, s.details["pairs"]) for s in scores] == [
        ("STS-B", "dev", 7),
        ("SICK-R", "dev", 7),
    ]


def test_pairs_without_gold_are_dropped(senteval: Path) -> None:
    subsets = read_sts(find_root(senteval), "STS12")
    assert {name: len(pairs.numbers) for name, pairs in subsets.items()} == dict.fromkeys(
        STS_SETS["STS12"], 5
    )


def test_pairs_of_all_subsets_are_ranked_together() -> None:
    def encode(texts: list[str]) -> Tensor:
        """Vectors whose cosine with that of "" is the number in the text."""
        cosines = torch.tensor([float(text or 1) for text in texts], dtype=torch.float64)
        return torch.stack([cosines, (1 - cosines**2).sqrt()], dim=1)

    subsets = {
        "a": Texts([""] * 3, ["0.1", "0.2", "0.3"], [1.0, 2.0, 3.0]),
        "b": Texts([""] * 2, ["0.9", "0.8"], [1.0, 2.0]),
    }
    # Together: cosines rank 1 2 3 5 4, gold ranks 1.5 3.5 5 1.5 3.5.
    together = pearsonr([1, 2, 3, 5, 4], [1.5, 3.5, 5, 1.5, 3.5]).statistic
    assert sts_score("STS12", subsets, encode).value == pytest.approx(100 * together)


def test_an_encoder_that_has_collapsed_scores_zero(senteval: Path) -> None:
    subsets = read_sts(find_root(senteval), "STS-B")
    assert sts_score("STS-B", subsets, lambda texts: torch.ones(len(texts), 4)).value == 0.0


def test_sentences_are_encoded_once_in_a_fixed_order() -> None:
    seen: list[list[str]] = []

    def encode(sentences: list[str]) -> Tensor:
        seen.append(sentences)
        return bag_of_words(sentences)

    texts = ["the film", "a", "the plot is bad", "a"]
    for column in (texts, texts[::-1]):
        (vectors,) = embed_once(encode, column)
        assert torch.equal(vectors, bag_of_words(column))
    assert seen == [["a", "the film", "the plot is bad"]] * 2


def test_bad_encoders_are_told() -> None:
    with pytest.raises(UserError, match="diverged"):
        embed_once(lambda texts: torch.full((len(texts), 3), torch.nan), ["a", "b"])


def test_order_batching_and_padding_do_not_change_a_score(senteval: Path) -> None:
    torch.manual_seed(0)
    encoder = tiny_encoder(
        TextEncoderConfig(width=16, heads=2, vocabulary=200), TextDataset([WORDS])
    ).train()
    subsets = read_sts(find_root(senteval), "STS-B")
    shuffled = {
        name: Texts(pairs.first[::-1], pairs.second[::-1], pairs.numbers[::-1])
        for name, pairs in subsets.items()
    }
    values = [
        sts_score("STS-B", data, sentence_encoder(encoder, batch_size)).value
        for data in (subsets, shuffled)
        for batch_size in (1, 4, 64)
    ]
    assert values == pytest.approx([values[0]] * 6, abs=1e-6)
    assert encoder.training


@pytest.mark.parametrize("protocol", ["logistic", "senteval"])
def test_order_does_not_change_a_transfer_score(senteval: Path, protocol: str) -> None:
    texts = read_transfer(find_root(senteval), "CR")["train"]
    back = Texts(texts.first[::-1], [], texts.numbers[::-1])
    there, again = (
        transfer_score("CR", {"train": part}, wide_bag_of_words, protocol, folds=3)
        for part in (texts, back)
    )
    assert there == again
    assert there.value > 75  # 56 by chance
    assert len(there.details["chosen"]) == 3
    assert there.details["items"] == 54


@pytest.mark.parametrize("task", ["SST2", "MRPC"])
def test_senteval_protocol_with_fixed_splits(senteval: Path, task: str) -> None:
    parts = read_transfer(find_root(senteval), task)
    score = transfer_score(task, parts, wide_bag_of_words, "senteval", folds=3)
    assert score.details["items"] == 20
    assert score.value > 70
    assert score.details["chosen"][0] in DECAYS


def test_the_batched_classifier_equals_one_trained_alone() -> None:
    """SentEval's loop with torch's own layer, optimizer and weight decay, as the reference."""
    torch.manual_seed(0)
    x, y = torch.randn(150, 5), torch.randint(3, (150,))
    train, held_out = torch.arange(100), torch.arange(100, 150)
    decay = 0.01
    fit = fit_linear(x, y, [(train, held_out)], torch.tensor([[decay]]), seed=3)

    generator = torch.Generator().manual_seed(3)
    layer = torch.nn.Linear(5, 3)
    with torch.no_grad():
        layer.weight.uniform_(-(5**-0.5), 5**-0.5, generator=generator)
        layer.bias.uniform_(-(5**-0.5), 5**-0.5, generator=generator)
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, weight_decay=decay)
    best, passes, failures = (-1.0, layer.weight), 0, 0
    while passes <= 200 and failures <= 5:
        for _ in range(4):
            order = torch.randperm(100, generator=generator)
            for batch in train[order].split(64):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(layer(x[batch]), y[batch]).backward()
                optimizer.step()
        passes += 4
        accuracy = (layer(x[held_out]).argmax(1) == y[held_out]).float().mean().item()
        if accuracy > best[0]:
            best = (accuracy, layer.weight.detach().clone())
        else:
            failures += 1
    assert fit.accuracy.item() == pytest.approx(best[0])
    torch.testing.assert_close(fit.weights[0, 0], best[1], atol=1e-4, rtol=1e-4)


def test_folds_are_trained_apart() -> None:
    torch.manual_seed(0)
    x = torch.randn(60, 4).repeat(1, 200)
    y = (x[:, 0] > 0).long()
    y[30:] = 1 - y[30:]  # the second half says the opposite of the first
    halves = [
        (torch.arange(20), torch.arange(20, 30)),
        (torch.arange(30, 50), torch.arange(50, 60)),
    ]
    fit = fit_linear(x, y, halves, torch.tensor([DECAYS, DECAYS]), seed=0)
    assert fit.accuracy.shape == (2, 4)
    assert (fit.accuracy > 0.5).all()
    slopes = (fit.weights[:, 0, 1, ::4] - fit.weights[:, 0, 0, ::4]).sum(dim=-1)
    assert slopes[0] > 0 > slopes[1]


@pytest.mark.parametrize(
    ("damage", "task", "message"),
    [
        (
            lambda d: (d / "STS/STSBenchmark/sts-test.csv").unlink(),
            "STS-B",
            "sts-test.csv is missing",
        ),
        (lambda d: (d / "MR/rt-polarity.pos").unlink(), "MR", "rt-polarity.pos is missing"),
        (
            lambda d: write(d / "STS/STS12-en-test/STS.gs.MSRpar.txt", ["1"]),
            "STS12",
            "but 1 scores",
        ),
        (
            lambda d: write(d / "SICK/SICK_test_annotated.txt", ["h", "a"]),
            "SICK-R",
            "line 2 is not a pair with its score",
        ),
        (
            lambda d: write(d / "STS/STSBenchmark/sts-test.csv", ["a\tb\tc\td\tx\tA\tB"]),
            "STS-B",
            "line 1 is not a pair.*to float: 'x'",
        ),
        (lambda d: write(d / "TREC/TREC_10.label", ["ODD:x what"]), "TREC", "line 1 is not"),
        (lambda d: write(d / "SST/binary/sentiment-dev", ["fine"]), "SST2", "line 1 is not"),
        (lambda d: write(d / "SST/binary/sentiment-dev", ["ok\t1", "no\t-1"]), "SST2", "line 2 is"),
        (lambda d: write(d / "SST/binary/sentiment-train", ["ok\t1"]), "SST2", "1 items of 1 cla"),
        (lambda d: (d / "MR/rt-polarity.neg").write_text(""), "MR", "rt-polarity.neg is empty"),
        (
            lambda d: [write(d / f"MR/rt-polarity.{e}", ["a"] * 3) for e in ("pos", "neg")],
            "MR",
            "MR has too few items",
        ),
        (
            lambda d: write(d / "SICK/SICK_test_annotated.txt", ["h\ta\tb\tc"]),
            "SICK-R",
            "SICK_test_annotated.txt holds no pair",
        ),
        (
            lambda d: write(d / "STS/STSBenchmark/sts-test.csv", ["a\tb\tc\td\tnan\tA\tB"]),
            "STS-B",
            "line 1 is not a pair.*nan",
        ),
        (
            lambda d: write(d / "MRPC/msr_paraphrase_train.txt", ["h" + "\t" * 4, "2\t\t\ta\tb"]),
            "MRPC",
            "line 2 is not a text",
        ),
    ],
)
def test_damaged_folders_say_what_is_wrong(
    tmp_path: Path, damage: Callable[[Path], object], task: str, message: str
) -> None:
    damage(write_senteval(tmp_path) / "downstream")
    with pytest.raises(UserError, match=message):
        senteval_scores(TextEvaluationConfig(protocols=(task,), senteval=tmp_path), bag_of_words)


def test_missing_data_say_what_to_set(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"evaluation\.senteval"):
        senteval_scores(TextEvaluationConfig(protocols=("sts",)), bag_of_words)
    with pytest.raises(UserError, match="not SentEval's data folder"):
        senteval_scores(TextEvaluationConfig(protocols=("sts",), senteval=tmp_path), bag_of_words)
    plain = TextDataset([["a", "b"]])
    with pytest.raises(UserError, match="have no labels"):
        same_classes(plain, plain)
    with pytest.raises(UserError, match="test split only"):
        read_sts(tmp_path, "STS12", "dev")
    with pytest.raises(ValidationError, match="Did you mean 'STS12'"):
        TextEvaluationConfig(protocols=("STS-12",))


def test_probes_match_classes_by_name() -> None:
    rng = random.Random(1)
    labels = [i % 2 for i in range(40)]
    train = TextDataset(
        [[sentence(rng, label) for label in labels]], [["bad", "good"][i] for i in labels]
    )
    test = TextDataset([[sentence(rng, 1) for _ in range(10)]], ["good"] * 10)
    config = TextEvaluationConfig(k=5)

    def embed(dataset: Dataset, /, *, augmented: bool = False) -> torch.Tensor:
        return bag_of_words(list(dataset.names))

    knn, logistic = probe_scores(config, *same_classes(train, test), embed, seed=0)
    assert (knn.protocol, knn.metric, logistic.protocol) == ("knn", "top1", "logistic")
    assert logistic.value == 100
    assert knn.value > 60


def shared_senteval() -> Path | None:
    named = os.environ.get("MACL_SHARED_DATA")
    roots = [Path(named)] if named else []
    roots.append(Path(__file__).parents[4] / "shared" / "data")
    archives = [root / "text" / "senteval_downstream.tar.gz" for root in roots]
    return next((archive for archive in archives if archive.is_file()), None)


def test_sizes_of_the_real_tasks(tmp_path: Path) -> None:
    archive = shared_senteval()
    if archive is None:
        pytest.skip("SentEval's data are not here: set MACL_SHARED_DATA")
    with tarfile.open(archive) as tar:
        tar.extractall(tmp_path, filter="data")
    root = find_root(tmp_path)
    sizes = [sum(len(p.numbers) for p in read_sts(root, task).values()) for task in STS_TASKS]
    assert sizes == [3108, 1500, 3750, 3000, 1186, 1379, 4927]
    assert len(read_sts(root, "STS-B", "dev")["STS-B"].numbers) == 1500
    parts = {task: read_transfer(root, task) for task in TRANSFER_TASKS}
    counts = {task: [len(p.numbers) for p in found.values()] for task, found in parts.items()}
    assert counts == {
        "MR": [10662],
        "CR": [3775],
        "SUBJ": [10000],
        "MPQA": [10606],
        "SST2": [67349, 872, 1821],
        "TREC": [5452, 500],
        "MRPC": [4076, 1725],
    }
