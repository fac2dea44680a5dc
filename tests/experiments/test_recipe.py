"""Recipes: every shipped one, overrides, and messages for mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

import recipe_texts
from macl import recipes
from macl.core.errors import UserError
from macl.training.fit import train
from tiny import HERE

SHIPPED = list(recipes.available())


def complete(name: str) -> list[str]:
    """What a shipped recipe leaves to its user: where a folder of images is."""
    source = recipes.read(name).get("data", {}).get("source")
    return ["data.path=somewhere"] if source == "folder" else []


def test_the_paper_and_the_laptop_are_served() -> None:
    assert {
        "simclr-imagenet1k", "simclr-imagenet100", "moco-imagenet100", "nnclr-imagenet100",
        "simclr-cifar10", "digits", "cifar10-small", "imagenette-small",
    } <= set(SHIPPED)  # fmt: skip


@pytest.mark.parametrize("name", SHIPPED)
def test_every_recipe_resolves_and_survives_its_dump(name: str) -> None:
    made = recipe_texts.load(name, complete(name))
    assert made.name == name
    assert made.description
    assert recipes.resolve(yaml.safe_load(recipes.dump(made))) == made


@pytest.mark.parametrize("name", [n for n in SHIPPED if recipes.read(n)["modality"] == "images"])
def test_every_image_recipe_takes_a_step(name: str, tmp_path: Path) -> None:
    """Its own method, heads, loss, optimizer, schedule, views and precision, on small images."""
    pixels = torch.randint(0, 256, (8, 40, 44, 3), dtype=torch.uint8).numpy()
    given = recipes.read(name)
    source = given.get("data", {}).get("source", "folder")
    if source == "folder":
        path = tmp_path / "images"
        path.mkdir()
        for number, image in enumerate(pixels):
            Image.fromarray(image).save(path / f"{number}.png")
    else:
        path = tmp_path / "images.npz"
        np.savez(path, images=pixels)
    overrides = [] if source == "digits" else [f"data.path={path}", "views.size=32"]
    overrides += ["batch_size=4", "data.limit=4", "epochs=1", "workers=0"]
    overrides += [] if ":" in given["encoder"].get("name", "") else ["encoder.width=8"]
    overrides += ["schedule.warmup_epochs=0", "monitor_every=0"]
    made = recipe_texts.load(name, overrides)
    if hasattr(made.method, "queue_size"):
        made = recipe_texts.load(name, [*overrides, "method.queue_size=16"])
    run = train(made, tmp_path / "run", compute=HERE)
    (row,) = run.metrics()
    assert row["step"] == 1
    assert np.isfinite(row["loss"])


def test_nested_overrides() -> None:
    made = recipe_texts.load(
        "digits",
        [
            "epochs=3",
            "loss.alpha=1",
            "loss.temperature=5e-2",
            "method.projector.widths=[same, 32]",
            "evaluation.linear.epochs=7",
            "optimizer={name: lars, lr: 0.3}",
            "views.jitter_p=0.0",
            "name=my digits",
        ],
    )
    assert (made.epochs, made.loss.alpha, made.loss.temperature) == (3, 1.0, 0.05)
    assert made.method.projector.widths == ("same", 32)
    assert made.evaluation.linear.epochs == 7
    assert (made.optimizer.name, made.optimizer.lr) == ("lars", 0.3)
    assert made.views.jitter_p == 0.0
    assert made.name == "my digits"


@pytest.mark.parametrize(("text", "value"), [("32", "32"), ("bf16", "bf16"), ('"16"', "16")])
def test_a_precision_may_be_written_as_a_number(text: str, value: str) -> None:
    assert recipe_texts.load("digits", [f"precision={text}"]).precision == value


def test_another_loss_keeps_what_both_have() -> None:
    before = ["loss.temperature=0.3", "loss.negatives=cross"]
    made = recipe_texts.load("digits", [*before, "loss=dcl"])
    own = {key: made.loss.model_dump()[key] for key in ("name", "temperature", "negatives")}
    assert own == {"name": "dcl", "temperature": 0.3, "negatives": "cross"}
    assert not hasattr(made.loss, "alpha")
    back = recipe_texts.load("digits", [*before, "loss=dcl", "loss=macl"])
    assert (back.loss.temperature, back.loss.alpha) == (0.3, 0.5)


def test_a_key_of_the_former_loss_is_refused_in_any_order() -> None:
    for texts in (["loss.alpha=1", "loss=dcl"], ["loss=dcl", "loss.alpha=1"]):
        with pytest.raises(UserError, match=r"unknown key 'loss\.alpha'"):
            recipe_texts.load("digits", texts)


def test_the_default_section_completes_keys() -> None:
    values = recipes.read("digits")
    texts = ["k=3", "linear.epochs=2", "evaluation.temperature=0.2", "data.limit=9"]
    assert recipes.parse(texts, values, default_section="evaluation") == {
        "evaluation.k": 3,
        "evaluation.linear.epochs": 2,
        "evaluation.temperature": 0.2,
        "data.limit": 9,
    }
    with pytest.raises(UserError, match=r"unknown key 'evaluation\.epochs'"):
        recipes.parse(["epochs=3"], values, default_section="evaluation")


@pytest.mark.parametrize(
    "path", ["my #1 set", "a: b", "[x]", "~", "null", " x ", "größe/日本", "1"]
)
def test_the_text_of_a_path_is_the_path(path: str) -> None:
    assert recipes.parse([f"data.path={path}"], recipes.read("digits")) == {"data.path": Path(path)}


def test_varied_values_are_typed() -> None:
    values = recipes.read("digits")
    texts = [
        "loss = nt-xent, macl", "epochs=1,2", "loss.temperature=0.1,1e-2",
        "method.projector.widths=[64, 32], [same]", "data.path=my #1 set,b",
    ]  # fmt: skip
    assert recipes.parse_vary(texts, values) == {
        "loss": ["nt-xent", "macl"],
        "epochs": [1, 2],
        "loss.temperature": [0.1, "1e-2"],
        "method.projector.widths": [[64, 32], ["same"]],
        "data.path": [Path("my #1 set"), Path("b")],
    }


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.5, "0.5"), (True, "true"), (None, "null"), ("a: b", "a: b"), (Path("x y"), "x y"),
     ([64, "same"], "[64, same]"), ({"name": "dcl"}, "{name: dcl}"), ((1, 2), "[1, 2]")],
)  # fmt: skip
def test_values_are_shown_as_a_user_writes_them(value: Any, text: str) -> None:
    assert recipes.text_of(value) == text


def test_a_broken_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipes.available()["digits"].read_text() + "epoch: 3\n")
    for overrides in ({}, {"batch_size": 8}):
        with pytest.raises(UserError, match=r"mine\.yaml: .*\n.*unknown key 'epoch'") as caught:
            recipes.load(str(path), overrides)
        assert str(path) in str(caught.value)
    path.write_text(recipes.available()["digits"].read_text())
    with pytest.raises(UserError) as caught:
        recipes.load(str(path), {"epochs": -1})
    assert "mine.yaml" not in str(caught.value)


def test_another_method_keeps_the_projector() -> None:
    made = recipe_texts.load("digits", ["method=nnclr", "method.queue_size=99"])
    assert made.method.projector == recipes.load("digits").method.projector
    assert made.method.queue_size == 99


def test_a_temperature_may_be_a_section() -> None:
    made = recipe_texts.load("digits", ["loss=dcl", "loss.temperature={name: cosine, period: 9}"])
    assert made.loss.temperature.period == 9
    assert recipes.resolve(yaml.safe_load(recipes.dump(made))) == made


def test_overrides_do_not_change_the_values_they_start_from() -> None:
    values = recipes.read("digits")
    recipe_texts.resolve(values, ["loss.temperature=0.9", "loss=dcl"])
    assert values == recipes.read("digits")


MISTAKES = {
    "epoch=3": "unknown key 'epoch'. Did you mean 'epochs'?",
    "loss.tempratur=1": "unknown key 'loss.tempratur'. Did you mean 'temperature'?",
    "loss.beta=1": "unknown key 'loss.beta'",
    "loss=mcal": "no loss is called 'mcal'. Did you mean 'macl'?",
    "method=moko": "no method is called 'moko'. Did you mean 'moco'?",
    "method.queue_size=5": "unknown key 'method.queue_size'",
    "encoder.nam=x": "unknown key 'encoder.nam'. Did you mean 'name'?",
    "optimizer.name=adamm": "optimizer.name: Input should be 'lars', 'sgd', 'adam' or 'adamw'",
    "optimizer={name: sgd, lrr: 1}": "unknown key 'optimizer.lrr'. Did you mean 'lr'?",
    "loss={name: dcl, tau: 1}": "unknown key 'loss.tau'",
    "loss=[dcl]": "loss",
    "loss=": "loss",
    "epochs=-1": "epochs: Input should be greater than or equal to 0 (got -1)",
    "epochs=many": "epochs: Input should be a valid integer",
    "epochs": "'epochs' is not an override; write key=value",
    "epochs=[": "the value of epochs cannot be read",
    "epochs=2020-13-45": "the value of epochs cannot be read",
    "epochs.more=1": "epochs",
    "batch_size=1": "batch_size: Input should be greater than or equal to 2",
    "loss.temperature=-1": "loss.temperature",
    "loss.temperature=.inf": "loss.temperature",
    "optimizer.lr=.nan": "optimizer.lr: Input should be a finite number",
    "modality=text": "modality: Input should be 'images'",
    "precision=8": "precision: Input should be '64', '32', 'bf16' or '16'",
    "strategy=deepspeed": "strategy: DeepSpeed is not offered: its engine needs CUDA",
    "strategy=dp": "strategy: Input should be 'ddp' or 'fsdp2'",
    "method.projector.widths=[0]": "method.projector.widths",
    "data.path=x": "source=digits has no path; use source=auto",
    "data.source=folder": "source=folder needs path",
    "schedule={name: steps}": "needs milestones",
    "=3": "unknown key ''",
    "clip=1": "clip is now called gradient_clip.",
    "accumulate=2": "accumulate is now called accumulate_grad_batches.",
    "method={name: moco, splits: 4}": "method.splits is now called method.bn_splits.",
}


@pytest.mark.parametrize(("override", "expected"), MISTAKES.items())
def test_a_mistake_is_explained(override: str, expected: str) -> None:
    with pytest.raises(UserError) as caught:
        recipe_texts.load("digits", [override])
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("- a list", "must hold keys and values"),
        ("a: [", "not valid YAML"),
        ("modality: imags", "no modality is called 'imags'. Did you mean 'images'?"),
        ("epochs: 3", "names its modality"),
        ("modality: images", "method is missing"),
        ("modality: images\nmethod: {name: simclr}\nloss: {nam: dcl}", "loss"),
        ("modality: images\nmethod: {name: simclr}\nloss: {name: dcl}\nepoch: 1", "mean 'epochs'"),
        ("when: 2020-13-45", "not valid YAML"),
        ("a: !!python/object/apply:os.mkdir [evil]", "not valid YAML"),
    ],
)
def test_a_file_that_is_no_recipe(
    text: str, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "mine.yaml"
    path.write_text(text)
    with pytest.raises(UserError) as caught:
        recipes.load(str(path))
    assert expected in str(caught.value)
    assert not (tmp_path / "evil").exists()


def test_a_file_of_bytes_and_a_name_that_is_not_there(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UserError, match="not valid YAML"):
        recipes.load(str(path))
    with pytest.raises(UserError, match=r"no recipe is called 'digit'\. Did you mean 'digits'\?"):
        recipes.load("digit")


def test_a_file_is_named_after_itself(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(recipes.available()["digits"].read_text())
    assert recipe_texts.load(str(path), ["epochs=2"]).name == "mine"


def keys(model: Any, prefix: str = "") -> list[str]:
    """All dotted keys of a recipe's values."""
    found = []
    for key, value in model.items():
        found.append(prefix + key)
        if isinstance(value, dict):
            found += keys(value, f"{prefix}{key}.")
    return found


KEYS = keys(recipes.load("digits").model_dump(mode="json"))
DIGITS = recipes.read("digits")
VALUES = [
    "1", "-1", "0", "0.5", "1e400", "-.inf", ".nan", "true", "null", "[]", "{}", "[1, 2]", "macl",
    "{name: moco}", "{name: dcl, temperature: {name: learned}}", "2001-01-01", "0x_", "!!int x",
    "!!float []", "!!timestamp x", "&a [*a]", "<<: 1", "? [a]", "=", "'", "9" * 5000, "[" * 500,
    "same", "[same, [1]]", "digits",
]  # fmt: skip


@settings(max_examples=150)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.sampled_from(KEYS), st.text(alphabet="abcdelmnost._ [", max_size=12)),
            st.one_of(st.sampled_from(VALUES), st.text(max_size=12)),
        ),
        min_size=1,
        max_size=3,
    )
)
def test_whatever_is_written_gives_a_recipe_or_a_user_error(pairs: list[tuple[str, str]]) -> None:
    try:
        made = recipe_texts.resolve(DIGITS, [f"{key}={value}" for key, value in pairs])
    except UserError:
        return
    assert recipes.resolve(yaml.safe_load(recipes.dump(made))) == made
