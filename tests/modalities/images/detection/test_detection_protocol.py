"""The protocol from end to end at a small size: learns, resumes to the bit, tells its mistakes."""

from __future__ import annotations

import json
import os
import signal
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest
import torch
from safetensors.torch import load_file
from small_voc import make_voc, quick, quick_overrides
from torch import nn

from macl import cli
from macl.core.errors import UserError
from macl.core.signals import Interrupted
from macl.modalities.images.detection import training
from macl.modalities.images.detection.config import DetectionConfig
from macl.modalities.images.detection.data import Objects
from macl.modalities.images.detection.protocol import DetectionTask
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.modalities.images.modality import MODALITY
from macl.runs import Run
from tiny import assert_same, python, recipe

pytest.importorskip("torchmetrics", reason="needs the detection extra")
pytest.importorskip("faster_coco_eval", reason="needs the detection extra")

SHARED = Path(os.environ.get("MACL_SHARED_DATA", Path(__file__).parents[5] / "shared" / "data"))
SUBSET = SHARED / "images" / "voc2012_subset.tar"

METRICS = {"AP", "AP50", "AP75", "VOC07-AP", "VOC07-AP50", "VOC07-AP75"}

ENCODER = ("encoder.stem=imagenet", "encoder.width=8")


@pytest.fixture(scope="module")
def voc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_voc(tmp_path_factory.mktemp("voc"), {"2007/trainval": 6, "2007/test": 3})


@pytest.fixture
def encoder() -> nn.Module:
    torch.manual_seed(0)
    return build_image_encoder(ImageEncoderConfig(name="resnet8", stem="imagenet", width=8))


def read_losses(folder: Path) -> pd.DataFrame:
    return pd.read_csv(folder / training.LOSSES_FILE, index_col="iteration")


def files(task: DetectionTask) -> set[str]:
    return {path.name for path in task.folder(0).iterdir()}


def fall(number: signal.Signals | None) -> None:
    """In the midst of a step: by a signal, or by what nothing answers."""
    if number is None:
        raise KeyboardInterrupt
    os.kill(os.getpid(), number)


@pytest.mark.parametrize("how", [None, signal.SIGINT, signal.SIGTERM])
def test_a_stopped_training_ends_as_if_it_had_not_been(
    how: signal.Signals | None,
    voc: Path,
    encoder: nn.Module,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole = DetectionTask(quick(voc, tmp_path / "whole"), encoder)
    expected = whole.scores(seed=0)
    assert {score.metric for score in expected} == METRICS
    assert {(s.protocol, s.split) for s in expected} == {("voc-detection", "2007/test")}
    assert expected[0].details["iterations"] == 4
    assert files(whole) == {"detector.safetensors", "losses.csv"}
    assert len(read_losses(whole.folder(0))) == 4

    stopped = DetectionTask(quick(voc, tmp_path / "stopped"), encoder)
    factor = training.learning_rate_factor

    def interrupted(config: object, step: int, *rest: int) -> float:
        if step == 2:  # the step after the checkpoint
            fall(how)
        return factor(config, step, *rest)  # type: ignore[arg-type]

    with monkeypatch.context() as patch:
        patch.setattr(training, "learning_rate_factor", interrupted)
        with pytest.raises((KeyboardInterrupt, Interrupted)):
            stopped.scores(seed=0)
    assert files(stopped) == {"last.ckpt", "losses.csv"}
    assert len(read_losses(stopped.folder(0))) == (2 if how is None else 3)
    got = stopped.scores(seed=0)
    one, two = (load_file(t.folder(0) / training.DETECTOR_FILE) for t in (stopped, whole))
    assert_same(one, two)
    kept = (read_losses(task.folder(0)) for task in (stopped, whole))
    pd.testing.assert_frame_equal(*kept, check_exact=True)
    assert [s.value for s in got] == [s.value for s in expected]

    with monkeypatch.context() as patch:  # what is kept is not trained again
        patch.setattr(training, "learning_rate_factor", lambda *_: pytest.fail("trained again"))
        assert [s.value for s in stopped.scores(seed=0)] == [s.value for s in expected]


def test_other_settings_are_kept_apart(voc: Path, encoder: nn.Module, tmp_path: Path) -> None:
    def folder(seed: int = 0, changed: nn.Module = encoder, **more: object) -> Path:
        return DetectionTask(quick(voc, tmp_path, **more), changed).folder(seed)

    one = folder()
    assert one == folder(workers=1, test=["2007/trainval"], pictures=3)
    other = build_image_encoder(ImageEncoderConfig(name="resnet8", stem="imagenet", width=8))
    different = {one, folder(seed=1), folder(lr=0.01), folder(changed=other), folder(rois=8)}
    assert len(different) == 5


def test_it_learns(voc: Path, encoder: nn.Module, tmp_path: Path) -> None:
    settings = {"lr": 0.05, "test": ["2007/trainval"], "rois": 32, "batch_size": 3}
    untrained = quick(voc, tmp_path, **settings, iterations=0)
    trained = quick(voc, tmp_path, **settings, iterations=100, warmup=10, save_every=100)
    before, after = (
        {s.metric: s.value for s in DetectionTask(c, encoder).scores(seed=0)}
        for c in (untrained, trained)
    )
    losses = read_losses(DetectionTask(trained, encoder).folder(0))
    totals = losses[list(training.LOSSES)].sum(axis=1)
    assert totals[-10:].sum() < 0.6 * totals[:10].sum()
    assert after["AP50"] > before["AP50"] + 10
    assert after["VOC07-AP50"] > before["VOC07-AP50"] + 10


def test_mirrored_images_and_boxes_agree() -> None:
    pixels = torch.zeros(3, 20, 30, dtype=torch.uint8)
    pixels[:, 4:9, 2:12] = 255
    objects = Objects(
        torch.tensor([[2.0, 4.0, 12.0, 9.0]]), torch.tensor([7]), torch.tensor([False])
    )
    seen = set()
    for seed in range(8):
        torch.manual_seed(seed)
        (image,), (target,) = training._training_views([(pixels, objects)], torch.device("cpu"))
        left, top, right, bottom = target["boxes"][0].int().tolist()
        assert image[:, top:bottom, left:right].min() == 1
        assert image.sum() == 3 * 5 * 10
        seen.add(left)
    assert seen == {2, 18}


def test_mistakes_are_told_before_anything_is_trained(
    voc: Path, encoder: nn.Module, tmp_path: Path
) -> None:
    def fails(message: str, config: DetectionConfig) -> None:
        with pytest.raises(UserError, match=message):
            DetectionTask(config, encoder)

    fails("give `data=` the folder VOCdevkit", DetectionConfig())
    fails("holds no VOC", quick(tmp_path / "x", tmp_path))
    fails("batch_size=7 is more than the 6 training", quick(voc, tmp_path, batch_size=7))
    fails("dealt out evenly to 2", quick(voc, tmp_path, batch_size=3, devices=2))
    with pytest.raises(ValueError, match="leaves nothing of 50"):
        DetectionConfig(iterations=50)
    task = DetectionTask(quick(voc, tmp_path, lr=1e12, iterations=4), encoder)
    with pytest.raises(UserError, match=r"the loss is (nan|inf).*lower detection\.lr"):
        task.scores(seed=0)


# From the command line


@pytest.fixture
def run_macl(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str]]:
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: str | Path) -> tuple[int, str]:
        monkeypatch.setattr(sys, "argv", ["macl", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        told = capsys.readouterr()
        return int(ended.value.code or 0), told.out + told.err

    return run


def test_a_run_is_judged_and_drawn(
    voc: Path, tmp_path: Path, run_macl: Callable[..., tuple[int, str]]
) -> None:
    run = Run.create(tmp_path / "run", recipe("encoder.stem=imagenet"))
    MODALITY.save_encoder(build_image_encoder(run.recipe.encoder), run.folder, {})
    code, told = run_macl(
        "evaluate", run.folder, "--data", voc.parent, "--figures", tmp_path / "figures",
        *quick_overrides(pictures=2),
    )  # fmt: skip
    assert code == 0, told
    scores = Run.open(run.folder).results()["scores"]
    assert {s["metric"] for s in scores} == METRICS
    assert all(s["protocol"] == "voc-detection" for s in scores)
    assert scores[0]["details"]["mean"] == [0.3053] * 3  # the run's own
    assert "VOC07-AP50" in told
    drawn = {path.name for path in (tmp_path / "figures").iterdir()}
    assert drawn == {"2007_000007.png", "2007_000008.png"}
    (kept,) = (run.folder / "detection").iterdir()
    assert (kept / "detector.safetensors").is_file()


def test_any_encoder_is_evaluated(
    voc: Path, tmp_path: Path, run_macl: Callable[..., tuple[int, str]]
) -> None:
    scores = tmp_path / "scores.json"
    code, told = run_macl(
        "evaluate", "--encoder", "resnet8", *ENCODER, f"detection.folder={tmp_path}",
        *quick_overrides(), "--protocol", "voc-detection", "--data", voc, "-o", scores,
    )  # fmt: skip
    assert code == 0, told
    stored = json.loads(scores.read_text())
    assert stored["encoder"] == "resnet8"
    assert {s["metric"] for s in stored["scores"]} == METRICS
    code, told = run_macl("evaluate", "--encoder", "resnet8", "--protocol", "voc-detection")
    assert (code, "give --data the folder" in told) == (2, True), told
    code, told = run_macl(
        "evaluate", "--encoder", "resnet8", "--protocol", "voc-detection", "--data", tmp_path
    )
    assert (code, "holds no VOC: give the folder VOCdevkit" in told) == (2, True), told
    code, told = run_macl("evaluate", "--encoder", "resnet8", "--data", tmp_path / "nowhere")
    assert (code, "there is no such file or folder" in told) == (2, True), told
    code, told = run_macl("evaluate", "--encoder", "resnet8", "--protocol=knn", "--figures", "x")
    assert (code, "--figures draws detections" in told) == (2, True), told
    code, told = run_macl("evaluate", "--encoder", "nowhere/x")
    assert (code, "no modality recognizes it as an encoder" in told) == (2, True), told


@pytest.mark.slow
def test_two_processes_share_the_work(voc: Path, tmp_path: Path) -> None:
    done = python(
        "macl_script.py", "evaluate", "--encoder", "resnet8", *ENCODER, "--data", voc,
        f"detection.folder={tmp_path}", "-o", tmp_path / "scores.json", *quick_overrides(devices=2),
        environment={"COLUMNS": "200"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("VOC07-AP50") == 1
    (kept,) = (path for path in tmp_path.iterdir() if path.is_dir())
    assert len(read_losses(kept)) == 4
    assert len(json.loads((tmp_path / "scores.json").read_text())["scores"]) == len(METRICS)


@pytest.mark.slow
@pytest.mark.skipif(not SUBSET.is_file(), reason="the shared VOC subset is not here")
def test_on_the_shared_subset(encoder: nn.Module, tmp_path: Path) -> None:
    with tarfile.open(SUBSET) as archive:
        archive.extractall(tmp_path, filter="data")
    sets = {"train": ["2012/train"], "test": ["2012/val"]}
    task = DetectionTask(quick(tmp_path, tmp_path / "kept", **sets), encoder)
    assert (len(task.train), len(task.test)) == (110, 50)
    objects = [*task.train.objects, *task.test.objects]
    assert sum(len(each.boxes) for each in objects) == 414
    assert torch.cat([each.labels for each in objects]).unique().tolist() == list(range(1, 21))
    assert {score.metric for score in task.scores(seed=0)} == METRICS
