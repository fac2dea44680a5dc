"""Two towers through training, resuming, evaluation and embedding, as other modalities."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import macl
import recipe_texts
from macl import modalities, recipes
from macl.core import batching
from macl.core.errors import UserError
from macl.evaluation.score import score_run
from macl.modalities.image_text.sections import PairDataConfig
from macl.runs import Run
from macl.training.fit import train
from small_pairs import color_pairs
from tiny import HERE, assert_same, forked_macl, state_of

pytest.importorskip("transformers")

SMALL = (
    "epochs=2",
    "batch_size=10",
    "views.image.size=8",
    "encoder.image.name=resnet8",
    "encoder.image.width=8",
    "encoder.text.width=16",
    "encoder.text.layers=1",
    "encoder.text.heads=2",
    "encoder.text.vocabulary=100",
    "encoder.dim=16",
    "monitor_every=1",
    "save_every=2",
)


def small(path: Path, *overrides: str) -> recipes.Recipe:
    return recipe_texts.load("clip-small", [f"data.path={path}", *SMALL, *overrides])


@pytest.fixture(scope="module")
def colors(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return color_pairs(tmp_path_factory.mktemp("colors"))


@pytest.fixture(scope="module")
def run(colors: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("runs") / "pairs"
    return train(small(colors, "epochs=30"), folder, compute=HERE)


def test_colors_are_retrieved_and_recorded(run: Run) -> None:
    protocols = ["retrieval", "zero-shot", "knn", "linear", "geometry"]
    found = {
        (s.protocol, s.metric): s.value
        for s in score_run(run, {"evaluation.linear.epochs": 5}, protocols=protocols)
    }
    assert found["retrieval", "image-to-text R@1"] >= 60
    assert found["retrieval", "text-to-image R@1"] >= 60
    assert found["retrieval", "image-to-text median rank"] == 1
    assert found["zero-shot", "top1"] >= 20
    assert {"top5"} <= {metric for protocol, metric in found if protocol == "zero-shot"}
    assert found["knn", "top1"] >= 60
    assert found["geometry", "alignment"] > 0.3
    assert 0 <= found["geometry", "modality-gap"] <= 2
    assert {s["protocol"] for s in run.results()["scores"]} == set(protocols)


def test_pictures_and_texts_share_a_space(run: Run, colors: Path) -> None:
    pictures = macl.embed(run.folder, colors.parent / "images")
    texts = macl.embed(run.folder, ["a red square", "a blue square"])
    assert pictures.values.shape == (40, 16)
    cosine = torch.nn.functional.cosine_similarity
    red = pictures.values[list(pictures.names).index("red3.png")]
    assert cosine(red, texts.values[0], dim=0) > cosine(red, texts.values[1], dim=0)
    captions = macl.embed(run.folder, colors, overrides={"data.side": "text"})
    assert captions.names[0] == "a red square"
    torch.testing.assert_close(captions.values[0], texts.values[0], atol=1e-5, rtol=1e-4)


def test_a_resumed_run_is_the_same_to_the_bit(colors: Path, tmp_path: Path) -> None:
    constant = ("schedule.name=constant", "schedule.warmup_epochs=0")
    whole = train(small(colors, *constant), tmp_path / "whole", compute=HERE)
    train(small(colors, *constant, "epochs=1"), tmp_path / "parts", compute=HERE)
    parts = train(small(colors, *constant), tmp_path / "parts", resume=True, compute=HERE)
    assert_same(state_of(whole)["state_dict"], state_of(parts)["state_dict"])


LEARNED = "loss.temperature={name: learned, temperature: 0.07}"
COSINE = "loss.temperature={name: cosine, period: 4}"


@pytest.mark.parametrize(
    "loss",
    [
        ("macl",), ("isogclr",), ("supcon",), ("info-nce", LEARNED), ("info-nce", COSINE),
        ("siglip", "loss.bias=-3"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_kinds_of_losses_and_temperatures_work(
    loss: tuple[str, ...], colors: Path, tmp_path: Path
) -> None:
    """One of each kind; every loss is trained in tests/training/test_losses_by_name.py."""
    name, *more = loss
    made = small(colors, f"loss={{name: {name}}}", *more, "epochs=1", "monitor_every=0")
    run = train(made, tmp_path, compute=HERE)
    assert math.isfinite(run.metrics()[-1]["loss"])
    assert torch.isfinite(macl.embed(run.folder, ["a red square"]).values).all()


@pytest.mark.slow
def test_two_processes_in_chunks_are_one(colors: Path, tmp_path: Path) -> None:
    """`--devices 2` with chunks trains what one process does at once."""
    kept = [each for each in SMALL if not each.startswith("encoder.image")]
    made = (
        f"data.path={colors}", *kept, "monitor_every=0", "precision=64", "encoder.hidden=[]",
        "encoder.image={name: fragile:plain, allow_import: true, width: null}", "loss={name: macl}",
        "encoder.text.hidden_dropout=0", "encoder.text.attention_dropout=0",
        "views.image.crop_scale=[1,1]", "views.image.crop_ratio=[1,1]",
    )  # fmt: skip
    both = forked_macl(
        "train", "clip-small", *made, "chunk_size=2", "--devices", "2", "--out", tmp_path / "two",
        variables={"GLOO_SOCKET_IFNAME": "lo"},
    )  # fmt: skip
    assert both.returncode == 0, both.stderr
    train(recipe_texts.load("clip-small", made), tmp_path / "one", compute=HERE)
    one, two = (load_file(tmp_path / name / "encoder.safetensors") for name in ("one", "two"))
    for name, value in one.items():
        torch.testing.assert_close(value, two[name], atol=1e-8, rtol=1e-6, msg=name)


def test_compare_diagnose_and_report(colors: Path, tmp_path: Path, run: Run) -> None:
    overrides = recipes.parse(
        [*SMALL, "epochs=1", "loss.temperature=0.1"], recipes.read("clip-small")
    )
    table = macl.compare(
        "clip-small",
        {"loss": ["info-nce", "macl"]},
        seeds=1,
        data=colors,
        out=tmp_path / "compared",
        overrides=overrides,
    )
    assert {"info-nce", "macl"} == set(table["loss"])
    assert any("image-to-text R@1" in metric for metric in table["metric"])
    found = macl.diagnose(run.folder)
    assert found["collapse"].evidence
    (page,) = macl.report(run.folder, tmp_path / "page.html")
    assert "image-to-text R@1" in page.read_text()


def test_moco_has_a_queue_of_texts(colors: Path, tmp_path: Path) -> None:
    overrides = ("method=moco", "method.queue_size=20", "loss.symmetric=false", "epochs=1")
    assert train(small(colors, *overrides), tmp_path, compute=HERE).is_finished


def test_chunks_do_not_change_the_loss(colors: Path, tmp_path: Path) -> None:
    # A frozen tower's batch normalization does not depend on the batch; a projection's would.
    dropout = ("encoder.text.hidden_dropout=0", "encoder.text.attention_dropout=0")
    fixed = ("encoder.frozen=[image]", "encoder.hidden=[]")
    common = ("epochs=1", "monitor_every=0", *fixed, *dropout)
    for name, chunk in (("whole", "chunk_size=10"), ("chunks", "chunk_size=5")):
        train(small(colors, *common, chunk), tmp_path / name, compute=HERE)
    whole, chunks = (Run.open(tmp_path / name).metrics() for name in ("whole", "chunks"))
    assert whole[-1]["loss"] == pytest.approx(chunks[-1]["loss"], rel=1e-4)


def test_frozen_towers_keep_their_weights(colors: Path, tmp_path: Path, run: Run) -> None:
    made = small(colors, "encoder.frozen=[image,text]", "epochs=1")
    data = modalities.get("image-text").load(PairDataConfig(path=colors), "train")
    torch.manual_seed(0)
    towers = modalities.get("image-text").build_encoder(made.encoder, data)
    before = {name: value.clone() for name, value in towers.state_dict().items()}
    after = train(made, tmp_path, compute=HERE, encoder=towers).encoder.state_dict()
    changed = {name.split(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert changed == {"image_projection", "text_projection"}


def test_towers_start_from_other_runs(colors: Path, tmp_path: Path) -> None:
    images = train(
        recipe_texts.load("digits", ["epochs=0", "encoder.width=8"]), tmp_path / "i", compute=HERE
    )
    texts = train(
        recipe_texts.load("topics", ["epochs=0", "data.limit=100", "encoder.width=16"]),
        tmp_path / "t",
        compute=HERE,
    )
    made = small(
        colors,
        f"encoder.image_run={images.folder}",
        f"encoder.text_run={texts.folder}",
        "epochs=0",
    )
    towers = train(made, tmp_path / "both", compute=HERE).encoder
    for name, value in images.encoder.state_dict().items():
        assert torch.equal(value, towers.get_submodule("image").state_dict()[name])
    for name, value in texts.encoder.state_dict().items():
        assert torch.equal(value, towers.get_submodule("text").state_dict()[name])
    # The run is complete by itself.
    for run in (images, texts):
        (run.folder / "recipe.yaml").unlink()
    assert Run.open(tmp_path / "both").encoder.out_dim == 16
    with pytest.raises(UserError, match="not a finished run"):
        train(small(colors, f"encoder.image_run={tmp_path}"), tmp_path / "x", compute=HERE)


def test_a_run_starts_from_a_run_of_pairs(colors: Path, tmp_path: Path, run: Run) -> None:
    start = (f"encoder.pretrained={run.folder}", "encoder.hidden=[512]")
    made = train(small(colors, *start, "epochs=0"), tmp_path / "same", compute=HERE)
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, made.encoder.state_dict()[name])
    frozen = (*start, "encoder.frozen=[text]", "epochs=1")
    tuned = train(small(colors, *frozen), tmp_path / "tuned", compute=HERE).encoder.state_dict()
    changed = {
        name.split(".")[0]
        for name, value in run.encoder.state_dict().items()
        if not torch.equal(value, tuned[name])
    }
    assert changed == {"image", "image_projection", "text_projection"}
    with pytest.raises(UserError, match=r"encoder.dim=16: set the same"):
        train(small(colors, *start, "encoder.dim=8"), tmp_path / "other", compute=HERE)


def test_views_of_different_kinds_are_not_joined() -> None:
    picture, tokens = torch.zeros(2, 3), {"input_ids": torch.zeros(2, 3)}
    assert batching.concat(picture, tokens) is None
    assert batching.concat(tokens, picture) is None


def test_a_file_cannot_allow_a_tower_to_import(colors: Path, tmp_path: Path) -> None:
    made = small(colors, "encoder.image.name=a_trap:plain", "encoder.image.allow_import=true")
    file = tmp_path / "hostile.yaml"
    file.write_text(recipes.dump(made))
    with pytest.raises(UserError, match=r"hostile.yaml would import.*encoder.image.name=a_trap"):
        recipes.load(str(file))
    assert recipes.load(str(file), {"encoder.image.allow_import": True}) == made


@pytest.mark.parametrize("name", ["digits-captions", "clip-small", "clip-resnet50", "clip-vit-b32"])
def test_recipes_resolve(name: str) -> None:
    made = recipes.load(name)
    assert made.modality == "image-text"
    assert made.method.projector.widths == ()
    assert (made.loss.negatives, made.loss.symmetric) == ("cross", True)
