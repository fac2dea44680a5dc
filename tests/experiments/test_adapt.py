"""`macl adapt`: honest verdicts, exact round trips, and what is trained."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from typer.testing import CliRunner

import macl
import tiny
from macl.cli.application import app
from macl.core.errors import UserError
from macl.experiments.judgement import labels_by_name, read_labels
from macl.experiments.verdict import judge, knn_scores, labels_needed
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.sections import ImageEncoderConfig
from macl.modalities.tuning import merged, tune
from macl.optim import build_optimizer, layer_depths
from macl.recipes.optim import OptimizerConfig
from macl.recipes.tuning import LoraSection
from macl.runs.elsewhere import Elsewhere
from small_clip import tiny_clip
from small_pairs import color_pairs

FAST = {
    "epochs": 1, "batch_size": 32, "views.preset": "digits", "workers": 0,
    "schedule.warmup_epochs": 0,
}  # fmt: skip


@pytest.fixture(scope="module")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An exported encoder, pictures without labels, and labels by name."""
    folder = tmp_path_factory.mktemp("adapt")
    found = load_digits()
    pictures = np.repeat((found.images * 15).astype("uint8")[..., None], 3, 3)[:400]
    np.savez(folder / "pictures.npz", images=pictures)
    np.savez(folder / "classes.npz", images=pictures, labels=found.target[:400])
    rows = "".join(f"train/{i:06d},{found.target[i]}\n" for i in range(400))
    (folder / "labels.csv").write_text("name,digit\n" + rows)
    run = macl.train(
        "digits",
        out=folder / "run",
        overrides={"epochs": 1, "encoder.width": 8, "data.limit": 300, "monitor_every": 0},
    )
    run.export(folder / "encoder", onnx=False)
    return folder


# --- the verdict ----------------------------------------------------------------------------------


def test_shuffled_labels_are_never_better() -> None:
    """Vectors of two encoders, one of them truly better, with 20 shuffles of the labels."""
    found = load_digits()
    x = torch.tensor(found.data[:900], dtype=torch.float32)
    y = found.target[:900]
    generator = torch.Generator().manual_seed(0)
    worse = x + 12 * torch.randn(x.shape, generator=generator)
    seeds = [x + 4 * torch.randn(x.shape, generator=generator) for _ in range(3)]

    def verdict(labels: Any) -> str:
        names = [frozenset([str(c)]) for c in labels]
        one = knn_scores(worse[:600], names[:600], worse[600:], names[600:])
        two = [knn_scores(z[:600], names[:600], z[600:], names[600:]) for z in seeds]
        return judge(one[0], [s for s, _ in two], max(one[1], *(c for _, c in two))).result

    assert verdict(y) == "better"
    shuffled = [np.random.default_rng(i).permutation(y) for i in range(20)]
    assert "better" not in {verdict(each) for each in shuffled}


def test_no_difference_has_no_verdict() -> None:
    scores = (np.random.default_rng(0).random(200) < 0.7).astype(float)
    same = judge(scores, [scores, scores, scores], 0.1)
    assert (same.result, same.difference) == ("no difference shown", 0.0)
    flipped = scores.copy()
    flipped[np.flatnonzero(scores == 0)[0]] = 1  # every seed is right on one more item
    assert judge(scores, [flipped] * 3, 0.1).result == "no difference shown"
    assert judge(scores, [np.zeros(200)] * 3, 0.1).result == "worse"


def test_a_gain_that_only_reaches_chance_is_not_better() -> None:
    tenth = (np.arange(200) % 10 == 0).astype(float)
    found = judge(np.zeros(200), [tenth] * 3, 0.1)
    assert found.low > 0
    assert (found.result, "chance" in found.reason) == ("no difference shown", True)


def test_seeds_that_disagree_show_nothing() -> None:
    before = np.full(1000, 0.5)  # items do not vary: all the uncertainty is between the seeds
    assert judge(before, [before + 0.1] * 3).result == "better"
    found = judge(before, [before + 0.3, before + 0.3, before - 0.1])
    assert found.result == "no difference shown"
    assert found.low < 0 < found.high


def test_the_interval_covers_the_truth_at_its_level() -> None:
    generator = np.random.default_rng(0)
    missed = 0
    for _ in range(400):
        before = (generator.random(150) < 0.6).astype(float)
        after = [(generator.random(150) < 0.6).astype(float) for _ in range(3)]
        found = judge(before, after)
        missed += not found.low <= 0 <= found.high
    assert missed <= 12  # 1% of 400 is 4


def test_items_may_have_several_labels(tmp_path: Path) -> None:
    (tmp_path / "l.csv").write_text("name,a,b\nx.png,cat;dog,1\ny.png,cat,\n")
    one, two = read_labels(tmp_path / "l.csv")
    assert one["x.png"] == {"cat", "dog"}
    assert set(two) == {"x.png"}
    bank = torch.eye(3).repeat(8, 1)
    known = [frozenset(s) for s in ({"a", "b"}, {"b"}, {"c"})] * 8
    scores, _ = knn_scores(bank, known, torch.eye(3), known[:3])
    assert scores.tolist() == [1, 1, 1]
    needed = labels_needed(0.2)
    assert needed["1"] > needed["2"] > needed["5"] > 50


def test_labels_are_found_by_as_much_of_a_path_as_both_have() -> None:
    cat, dog, none = frozenset({"cat"}), frozenset({"dog"}), frozenset[str]()
    items = ["a/0.png", "b/0.png", "b/1.png"]
    assert labels_by_name({"a/0.png": cat}, items) == [cat, none, none]
    longer = {"/photos/b/0.png": dog, "/photos/a/0.png": cat}
    assert labels_by_name(longer, items) == [cat, dog, none]
    assert labels_by_name({"1.png": dog}, items) == [none, none, dog]
    assert labels_by_name({"0.png": cat}, ["0.png", "b/0.png"]) == [cat, none]
    with pytest.raises(UserError, match=r"0\.png names a/0\.png and b/0\.png"):
        labels_by_name({"0.png": cat}, items)
    with pytest.raises(UserError, match=r"both name a/0\.png"):
        labels_by_name({"x/a/0.png": cat, "y/a/0.png": dog}, items)


def test_data_of_another_modality_name_the_modality(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match=r"taken for an encoder of text; `modality=` says"):
        macl.adapt("package:nothing", tmp_path, out=tmp_path / "out")


# --- the command ----------------------------------------------------------------------------------


def test_a_rate_of_zero_changes_nothing_and_is_never_better(digits: Path, tmp_path: Path) -> None:
    zero = FAST | {"optimizer.lr": 0.0, "optimizer.head_lr": 0.0}
    found = macl.adapt(
        digits / "encoder", digits / "classes.npz", out=tmp_path / "out", seeds=2, overrides=zero
    )
    assert found.before == pytest.approx(found.after, abs=1e-4)
    assert (found.verdict.result, found.kept) == ("no difference shown", "original")
    document = json.loads((tmp_path / "out" / "adapt.json").read_text())
    assert {"before", "after", "verdict", "kept"} <= document.keys()
    page = (tmp_path / "out" / "report.html").read_text()
    assert "0% of the held-out items have another nearest neighbor.</p>" in page
    assert "+0.000" not in page
    assert "<p>No difference shown: the interval of the difference contains zero.</p>" in page
    card = (tmp_path / "out" / "encoder" / "README.md").read_text()
    assert "not trained by macl" in card
    assert "**no difference shown**. Difference +0.00 points, 99% interval " in card
    assert "This folder holds the original encoder." in card
    assert f"| knn (k=20) | {found.before['knn (k=20)']:.2f} | " in card
    one = macl.embed(digits / "encoder", digits / "pictures.npz").values
    two = macl.embed(found.encoder, digits / "pictures.npz").values
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)


def test_labels_may_come_later(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    options: dict[str, Any] = {"out": out, "seeds": 1, "overrides": FAST | {"optimizer.lr": 1e-3}}
    found = macl.adapt(digits / "encoder", digits / "pictures.npz", **options)
    assert (found.verdict.result, found.kept) == ("not judged", "original")
    with pytest.raises(UserError, match="give `labels=TABLE`"):
        macl.adapt(out)
    rows = (digits / "labels.csv").read_text().splitlines()
    (tmp_path / "two.csv").write_text("\n".join(f"{r},{'even' if r[-1] in '02468' else 'odd;1'}"
                                                for r in rows))  # fmt: skip
    again = macl.adapt(out, labels=tmp_path / "two.csv")
    assert again.verdict.items == 80
    again = macl.adapt(out, labels=digits / "labels.csv")
    assert {"knn (k=20)", "linear probe"} == again.before.keys() - found.before.keys()
    stored = json.loads((out / "adapt.json").read_text())
    assert stored["verdict"]["items"] == sum(c["items"] for c in stored["classes"].values()) == 80
    page = (out / "report.html").read_text()
    assert page.count('role="img" aria-label="Map of items"') == 2
    assert "have another nearest neighbor" in page
    assert f"3 ({stored['classes']['3']['items']})" in page
    (tmp_path / "few.csv").write_text("name,digit\ntrain/000001,3\n")
    with pytest.raises(UserError, match="Label more of the items"):
        macl.adapt(out, labels=tmp_path / "few.csv")
    (tmp_path / "other.csv").write_text("name,digit\ncat.png,3\n")
    with pytest.raises(
        UserError, match=r"items have names such as 'train/0.*, the table 'cat.png'"
    ):
        macl.adapt(out, labels=tmp_path / "other.csv")
    with pytest.raises(UserError, match=f"it holds one: {out / 'encoder'}"):
        macl.embed(out, digits / "pictures.npz")


def test_an_adaptation_continues_with_the_same_items_alone(
    digits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of the items are stored once, so another share held out would not fit them."""
    options: dict[str, Any] = {"out": tmp_path / "out", "seeds": 1, "overrides": FAST}

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("macl.experiments.adapt.train", stop)
        with pytest.raises(KeyboardInterrupt):
            macl.adapt(digits / "encoder", digits / "classes.npz", **options)
    with pytest.raises(UserError, match="other items or with another `holdout=`"):
        macl.adapt(digits / "encoder", digits / "classes.npz", holdout=0.4, **options)
    texts = [f"{key}={value}" for key, value in FAST.items()]
    arguments = ["adapt", digits / "encoder", "--data", digits / "classes.npz", "--seeds", 1]
    again = CliRunner().invoke(app, [*map(str, arguments), "--out", str(tmp_path / "out"), *texts])
    assert again.exit_code == 0, again.output
    assert "training 1 of 1\nepoch 1 of 1, step 1, loss " in again.output
    assert "80 items, 1 seed; the smallest" in " ".join(again.output.split())


@pytest.mark.slow
def test_the_command_says_what_it_cannot_know(digits: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    texts = [f"{key}={value}" for key, value in FAST.items()]
    options = ("--data", digits / "pictures.npz", "--out", out, "--seeds", "1", "--lora", "2")
    shown = tiny.forked_macl("adapt", digits / "encoder", *options, *texts)
    assert shown.returncode == 0, shown.stderr
    words = " ".join((shown.stdout + shown.stderr).split())
    assert "training 1 of 1 epoch 1 of 1, step 1, loss" in words
    assert "verdict: not judged (there are no labels)" in words
    assert "but not whether the encoder is better" in words
    assert "kept: the original encoder" in words
    again = tiny.forked_macl("adapt", out, "--labels", digits / "labels.csv")
    words = " ".join((again.stdout + again.stderr).split())
    assert "99% interval" in words
    assert "the smallest detectable difference is" in words


def test_tasks_to_evaluate_on_are_no_data_to_adapt_to(digits: Path, tmp_path: Path) -> None:
    """Without a path of theirs, the data of the recipe would be trained on."""
    (tmp_path / "VOC2007" / "Annotations").mkdir(parents=True)
    with pytest.raises(UserError, match="holds tasks to evaluate on"):
        macl.adapt(digits / "encoder", tmp_path, out=tmp_path / "out", overrides=FAST)
    (tmp_path / "senteval" / "STS").mkdir(parents=True)
    with pytest.raises(UserError, match="holds tasks to evaluate on"):
        macl.adapt("tiny", tmp_path / "senteval", out=tmp_path / "out2", modality="text")


def test_too_few_items_are_reported_before_training(digits: Path, tmp_path: Path) -> None:
    np.savez(tmp_path / "few.npz", images=np.zeros((30, 8, 8, 3), "uint8"))
    with pytest.raises(UserError, match="too few to hold out"):
        macl.adapt(digits / "encoder", tmp_path / "few.npz", out=tmp_path / "out", overrides=FAST)


@pytest.mark.slow
def test_twenty_tries_are_never_better_without_a_reason(digits: Path, tmp_path: Path) -> None:
    """Shuffled labels on a changed encoder, and the true labels on one that is not changed."""
    options: dict[str, Any] = {"seeds": 2, "overrides": FAST | {"optimizer.lr": 1e-2}}
    out = tmp_path / "changed"
    macl.adapt(digits / "encoder", digits / "pictures.npz", out=out, **options)
    head, *rows = (digits / "labels.csv").read_text().splitlines()
    names, labels = zip(*(row.split(",") for row in rows), strict=True)
    found = set()
    for attempt in range(20):
        mixed = np.random.default_rng(attempt).permutation(labels)
        table = "\n".join(f"{n},{c}" for n, c in zip(names, mixed, strict=True))
        (tmp_path / "mixed.csv").write_text(f"{head}\n{table}\n")
        found.add(macl.adapt(out, labels=tmp_path / "mixed.csv").verdict.result)
    for attempt in range(20):
        options["overrides"] = FAST | {
            "optimizer.lr": 0.0, "optimizer.head_lr": 0.0, "data.limit": 300, "data.seed": attempt,
        }  # fmt: skip
        out = tmp_path / f"zero-{attempt}"
        found.add(
            macl.adapt(
                digits / "encoder", digits / "classes.npz", out=out, **options
            ).verdict.result
        )
    assert "better" not in found


# --- round trips: one step at rate 0, then features as in the original library --------------------


ZERO = {
    "epochs": 1, "batch_size": 16, "optimizer.lr": 0.0, "optimizer.head_lr": 0.0, "workers": 0,
    "schedule.warmup_epochs": 0,
}  # fmt: skip


@pytest.mark.slow
def test_round_trip_of_timm(digits: Path, tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model = timm.create_model("vit_tiny_patch16_224", num_classes=0, img_size=32).eval()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    run = macl.train(
        "adapt-images",
        data=digits / "pictures.npz",
        out=tmp_path / "run",
        overrides=ZERO
        | {"encoder.name": "timm:vit_tiny_patch16_224", "encoder.weights": tmp_path / "w.pth"}
        | {"views.size": 32, "data.limit": 32, "encoder.lora": {"rank": 2}},
    )
    run.export(tmp_path / "out", onnx=False)
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("recipe", ["digits", "graphcl-mutag"])
def test_round_trip_of_an_earlier_run(recipe: str, digits: Path, tmp_path: Path) -> None:
    folder, data = digits / "run", digits / "pictures.npz"
    if recipe != "digits":
        networkx = pytest.importorskip("networkx")
        pytest.importorskip("torch_geometric")
        folder, data = tmp_path / "run", tmp_path / "graphs.json"
        graphs = [networkx.gnp_random_graph(8, 0.4, seed=i) for i in range(120)]
        documents = [networkx.node_link_data(graph, edges="edges") for graph in graphs]
        data.write_text(json.dumps(documents))
        options = {"epochs": 1, "batch_size": 32, "monitor_every": 0}
        macl.train(recipe, data=data, out=folder, overrides=options)
    found = macl.adapt(
        folder,
        data,
        out=tmp_path / "out",
        seeds=1,
        overrides=ZERO | {"monitor_every": 0},
    )
    assert found.kept == "original"
    one, two = (macl.embed(each, data).values for each in (folder, found.encoder))
    torch.testing.assert_close(one, two, atol=1e-5, rtol=1e-5)
    if recipe == "digits":  # of graphs the statistics of batch normalization follow the data
        last = macl.embed(tmp_path / "out" / "runs" / "seed-0", data).values
        torch.testing.assert_close(one, last, atol=1e-5, rtol=1e-5)


def test_round_trip_of_sentence_transformers(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    texts = [f"the {a} {b} sings" for a in ("old", "red", "small", "tall") for b in
             ("dog", "cat", "owl", "man", "tree", "sea", "hat", "car")]  # fmt: skip
    (tmp_path / "lines.txt").write_text("".join(f"{t}\n" for t in texts))
    small = {"encoder.width": 16, "encoder.vocabulary": 120, "epochs": 0, "batch_size": 16}
    first = macl.train(
        "topics", data=tmp_path / "lines.txt", out=tmp_path / "first", overrides=small
    )
    first.export(tmp_path / "in", onnx=False)
    run = macl.train(
        "adapt-text",
        data=tmp_path / "lines.txt",
        out=tmp_path / "run",
        overrides=ZERO | {"encoder.name": str(tmp_path / "in"), "encoder.lora": {"rank": 2}},
    )
    run.export(tmp_path / "out", onnx=False)
    one, two = (library.SentenceTransformer(str(tmp_path / n)).encode(texts) for n in ("in", "out"))
    np.testing.assert_allclose(one, two, atol=1e-5)


def test_round_trip_of_clip(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    folder = tiny_clip(tmp_path / "in")
    found = macl.adapt(
        folder,
        color_pairs(tmp_path),
        out=tmp_path / "out",
        seeds=1,
        holdout=0.7,
        overrides=ZERO | {"batch_size": 4, "data.holdout": 0.0},
    )
    assert found.verdict.result == "no difference shown"
    one = transformers.AutoModel.from_pretrained(folder).eval()
    two = transformers.AutoModel.from_pretrained(found.encoder / "huggingface").eval()
    x = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        a, b = (m.vision_model(x).pooler_output for m in (one, two))
    torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


# --- what is trained ------------------------------------------------------------------------------


def resnet() -> nn.Module:
    torch.manual_seed(0)
    return build_image_encoder(ImageEncoderConfig(name="resnet8", width=16))


def test_layers_are_counted_from_the_input() -> None:
    depths = layer_depths(resnet())
    assert depths["conv1.weight"] == depths["bn1.bias"] == 0
    assert depths["layer1.0.conv1.weight"] == 1
    assert depths["layer3.0.conv1.weight"] == 3


def test_freezing_by_share_name_and_kind() -> None:
    for freeze, kept in ((0.5, "conv1.weight"), (("layer1",), "layer1.0.conv1.weight"),
                         ("norms", "bn1.weight"), (1.0, "layer3.0.conv1.weight")):  # fmt: skip
        encoder = resnet()
        tune(encoder, ImageEncoderConfig(freeze=freeze))
        trained = {n for n, p in encoder.named_parameters() if p.requires_grad}
        assert kept not in trained
        assert bool(trained) == (freeze != 1.0)
    with pytest.raises(UserError, match="no module is 'layer9'"):
        tune(resnet(), ImageEncoderConfig(freeze=("layer9",)))


def test_lora_trains_little_and_merges_exactly() -> None:
    pytest.importorskip("peft")
    encoder, x = resnet().eval(), torch.randn(2, 3, 16, 16)
    names, expected = set(encoder.state_dict()), encoder(x)
    tune(encoder, ImageEncoderConfig(lora=LoraSection(rank=2)))
    torch.testing.assert_close(encoder(x), expected)
    trained = [p for p in encoder.parameters() if p.requires_grad]
    assert 0 < sum(p.numel() for p in trained) < 0.5 * sum(p.numel() for p in encoder.parameters())
    for p in trained:
        nn.init.normal_(p, std=0.1)
    whole = merged(encoder)
    assert set(whole.state_dict()) == names
    assert not torch.allclose(encoder(x), expected)
    torch.testing.assert_close(whole(x), encoder(x), atol=1e-4, rtol=1e-4)


def test_rates_fall_from_the_heads_to_the_input() -> None:
    method = nn.Module()
    method.encoder, method.projector = resnet(), nn.Linear(64, 8)
    config = OptimizerConfig(name="adamw", lr=1e-2, head_lr=1e-1, layer_decay=0.5)
    groups = build_optimizer(config, method, 64).param_groups
    rate = {id(p): g["lr"] for g in groups for p in g["params"]}
    assert rate[id(method.projector.weight)] == pytest.approx(1e-1)
    assert rate[id(method.encoder.layer3[0].conv1.weight)] == pytest.approx(1e-2)
    assert rate[id(method.encoder.conv1.weight)] == pytest.approx(1e-2 * 0.5**3)


def test_the_statistics_of_batch_norm_are_kept(digits: Path, tmp_path: Path) -> None:
    run = macl.train(
        "adapt-images",
        data=digits / "pictures.npz",
        out=tmp_path / "run",
        overrides=FAST | {"encoder.name": str(digits / "encoder"), "data.limit": 64},
    )
    before = Elsewhere.open(str(digits / "encoder")).encoder.state_dict()
    after = run.encoder.state_dict()
    assert torch.equal(before["bn1.running_mean"], after["bn1.running_mean"])
    assert not torch.equal(before["conv1.weight"], after["conv1.weight"])
