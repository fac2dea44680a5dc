"""`macl evaluate --encoder`: a file or a name, by every protocol, as a run is evaluated."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from macl.core.errors import UserError
from macl.core.weights import save_weights
from macl.evaluation.score import score_encoder, score_run
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.modality import MODALITY
from macl.runs import Run
from macl.runs.export import export_run
from tiny import recipe

DATA = {"data.limit": 120, "evaluation.k": 5, "evaluation.linear.epochs": 2}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run that was never trained, with an encoder all the same."""
    made = Run.create(
        tmp_path_factory.mktemp("external") / "run",
        recipe("encoder.stem=imagenet", "views.size=32", "data.limit=120"),
    )
    torch.manual_seed(0)
    MODALITY.save_encoder(build_image_encoder(made.recipe.encoder), made.folder, {})
    return made


def test_an_export_is_scored_as_its_run_is(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    expected = score_run(run, {"evaluation.k": 5, "evaluation.linear.epochs": 2})
    export_run(run, tmp_path / "out", onnx=False, layouts=["huggingface"])
    got = score_encoder(str(tmp_path / "out" / "encoder.safetensors"), DATA)
    assert [(s.protocol, s.metric) for s in got] == [(s.protocol, s.metric) for s in expected]
    for one, two in zip(got, expected, strict=True):
        assert one.value == pytest.approx(two.value, abs=1e-3), one.metric
    folder = score_encoder(str(tmp_path / "out" / "huggingface"), DATA, protocols=["geometry"])
    assert [s.value for s in folder] == pytest.approx([s.value for s in expected[-3:]], abs=1e-3)


def test_a_torch_file_is_scored(run: Run, tmp_path: Path) -> None:
    state = {f"module.encoder_q.{n}": v for n, v in run.encoder.state_dict().items()}
    torch.save({"state_dict": state}, tmp_path / "x.pth.tar")
    views = {"views.preset": "digits", "views.size": 32}
    scores = score_encoder(str(tmp_path / "x.pth.tar"), DATA | views, protocols=["knn"])
    (expected,) = (
        s for s in score_run(run, {"evaluation.k": 5}, protocols=["knn"]) if s.metric == "top1"
    )
    (got,) = (s for s in scores if s.metric == "top1")
    assert got.value == pytest.approx(expected.value)


def test_a_name_is_an_untrained_encoder() -> None:
    scores = score_encoder("resnet8", DATA, protocols=["knn", "geometry"])
    assert {s.protocol for s in scores} == {"knn", "geometry"}
    again = score_encoder("resnet8", DATA, protocols=["knn", "geometry"])
    assert [s.value for s in again] == [s.value for s in scores]
    with pytest.raises(UserError, match="no image encoder is called 'resnet9x'"):
        score_encoder("resnet9x", modality="images")
    with pytest.raises(UserError, match=r"(?s)no modality.*Did you mean.*images: .*text:"):
        score_encoder("resnet9x")


def test_weights_of_other_networks_need_a_name(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    config = recipe().encoder.model_copy(
        update={"name": "timm:mobilenetv3_small_050", "width": None}
    )
    torch.save(build_image_encoder(config).state_dict(), tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"holds no ResNet: name its network with encoder\.name="):
        score_encoder(str(tmp_path / "x.pth"), DATA)
    scores = score_encoder(
        str(tmp_path / "x.pth"),
        DATA | {"encoder.name": config.name, "views.size": 32},
        protocols=["geometry"],
    )
    assert scores[0].details["dimensions"] == 1024


def test_strange_shapes_are_reported(run: Run, tmp_path: Path) -> None:
    for strange in (torch.zeros(()), torch.zeros(0), torch.zeros(0, 0, 3, 3)):
        state = {**run.encoder.state_dict(), "layer1.0.conv1.weight": strange}
        torch.save(state, tmp_path / "x.pth")
        with pytest.raises(UserError, match="but not its shapes"):
            score_encoder(str(tmp_path / "x.pth"), DATA)


def test_strange_headers_are_reported(run: Run, tmp_path: Path) -> None:
    for views, message in (("[1", "header is damaged"), ('{"size": -1}', r"views\.size")):
        save_weights(run.encoder, tmp_path / "x.safetensors", {"views": views})
        with pytest.raises(UserError, match=message):
            score_encoder(str(tmp_path / "x.safetensors"), DATA)
