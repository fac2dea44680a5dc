"""Exports load elsewhere with the same output."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
import yaml
from safetensors.torch import load_file
from torch import nn

import recipe_texts
from macl import recipes
from macl.core.errors import UserError
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.protocols import Graph
from macl.probes.score import Score
from macl.runs import Run
from macl.runs.export import _metadata, export_onnx, export_run
from macl.runs.model_card import model_card
from macl.training.fit import Compute, train

onnxruntime = pytest.importorskip("onnxruntime", reason="needs the onnx extra")


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    tiny = ["epochs=1", "data.limit=64", "batch_size=32", "encoder.width=8", "monitor_every=0"]
    tiny.append("schedule.warmup_epochs=0")
    folder = tmp_path_factory.mktemp("export") / "run"
    return train(recipe_texts.load("digits", tiny), folder, compute=Compute(progress=False))


def test_an_exported_run_gives_the_same_features_in_onnx_runtime(run, tmp_path):
    lines = export_run(Run.open(run.folder), tmp_path / "out")
    names = [line.partition(":")[0] for line in lines]
    assert names == ["encoder.safetensors", "encoder.onnx", "README.md"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(names)
    session = onnxruntime.InferenceSession(tmp_path / "out" / "encoder.onnx")
    images = np.random.default_rng(0).normal(size=(5, 3, 32, 32)).astype(np.float32)
    (features,) = session.run(None, {"input": images})
    with torch.inference_mode():
        expected = run.encoder(torch.from_numpy(images)).numpy()
    np.testing.assert_allclose(features, expected, rtol=1e-5, atol=1e-5)
    stored = load_file(tmp_path / "out" / "encoder.safetensors")
    assert all(torch.equal(v, stored[k]) for k, v in run.encoder.state_dict().items())


def test_torchvision_and_timm_open_an_exported_file(tmp_path):
    """Torchvision misses its classifier only, and timm, asked for none, nothing."""
    timm = pytest.importorskip("timm")
    settings = ["encoder.name=resnet18", "encoder.stem=imagenet", "encoder.width=64"]
    run = Run.create(tmp_path / "run", recipe_texts.load("digits", settings))
    encoder = build_image_encoder(run.recipe.encoder).eval()
    run.modality.save_encoder(encoder, run.folder, {})
    export_run(run, tmp_path / "out", onnx=False)
    stored = load_file(tmp_path / "out" / "encoder.safetensors")

    model = torchvision.models.resnet18()
    missing = model.load_state_dict(stored, strict=False)
    assert set(missing.missing_keys) == {"fc.weight", "fc.bias"}
    assert not missing.unexpected_keys
    model.fc = nn.Identity()
    other = timm.create_model("resnet18", num_classes=0)
    other.load_state_dict(stored)
    images = torch.randn(2, 3, 64, 64)
    for opened in (model, other):
        torch.testing.assert_close(opened.eval()(images), encoder(images), rtol=1e-5, atol=1e-5)


def test_a_graph_that_differs_is_removed(tmp_path):
    class Fickle(nn.Module):
        """Traced with one answer, asked for another."""

        calls = 0

        def forward(self, x):
            if not torch.compiler.is_compiling():
                self.calls += 1
            return x.mean((2, 3)) + (0.0 if torch.compiler.is_compiling() else 1.0)

    graph = Graph("fickle.onnx", Fickle(), {"input": torch.zeros(2, 3, 8, 8)})
    with pytest.raises(UserError, match="differs from the encoder"):
        export_onnx(graph, tmp_path)
    assert not (tmp_path / "fickle.onnx").exists()


def test_a_used_folder_is_left_alone(run, tmp_path):
    (tmp_path / "mine.txt").write_text("precious")
    with pytest.raises(UserError, match="not empty"):
        export_run(run, Path(tmp_path))
    assert [p.name for p in tmp_path.iterdir()] == ["mine.txt"]


def test_layouts_that_do_not_fit_leave_nothing_behind(run, tmp_path):
    with pytest.raises(UserError, match="Did you mean 'detectron2'"):
        export_run(run, tmp_path / "out", layouts=["detectron"])
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match="7×7 stem"):  # after the weights were written
        export_run(run, tmp_path / "out", layouts=["huggingface"])
    assert not list(tmp_path.iterdir())


def test_the_card_has_recipe_data_results_and_licence(run, tmp_path):
    run.record([Score("knn", "top1", 87.654, details={"k": 20, "n_train": 1437, "n_test": 360})])
    export_run(run, tmp_path / "out", onnx=False, layouts=["detectron2"], licence="mit")
    card = (tmp_path / "out" / "README.md").read_text()
    _, header, body = card.split("---\n", 2)
    assert yaml.safe_load(header)["license"] == "mit"
    recipe = yaml.safe_load(body.split("```yaml\n")[1].split("```")[0])
    assert recipe["loss"]["name"] == "macl"
    assert recipe["data"]["source"] == "digits"
    assert "| knn |  | test | top1 | 87.65 | k=20, 1,437 train, 360 test |" in body
    assert "detectron2.pth" in body
    assert "License: mit" in body


def test_the_hub_s_library_reads_the_card(run, tmp_path):
    hub = pytest.importorskip("huggingface_hub")
    export_run(Run.open(run.folder), tmp_path / "out", onnx=False, licence="mit")
    data = hub.ModelCard.load(tmp_path / "out" / "README.md").data
    assert (data.license, data.library_name) == ("mit", "pytorch")
    assert "contrastive-learning" in data.tags


def test_a_card_keeps_folders_to_itself(tmp_path):
    values = recipes.read("imagenette-small")
    recipe = recipe_texts.resolve(values, [f"data.path={tmp_path}/private/pictures"])
    run = Run.create(tmp_path / "run", recipe)
    run.modality.save_encoder(build_image_encoder(recipe.encoder), run.folder, {})
    card = model_card(run, [], "unknown")
    assert "path: pictures" in card
    assert "shrink until the shorter side is at most 96; resize the shorter side to 73" in card
    assert str(tmp_path) not in card
    assert "Not evaluated yet" in card


def test_the_header_of_the_weights_keeps_folders_to_itself(tmp_path):
    recipe = recipe_texts.load("digits", [f"encoder.weights={tmp_path}/private.safetensors"])
    assert recipe.encoder.weights is not None
    header = _metadata(Run.create(tmp_path / "run", recipe))
    assert json.loads(header["encoder"])["name"] == recipe.encoder.name
    assert str(tmp_path) not in str(header)
