"""Any content of a recipe file or an override gives a recipe or an error that names the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

import recipe_texts
from fuzzing import examples
from macl import recipes
from macl.core.errors import UserError
from macl.methods.base import build_method
from macl.modalities.images.encoders import build_image_encoder
from tiny import recipe

NEEDS = {"digits": "torch", "topics": "transformers", "atlas": "torch_geometric", "chembl": "rdkit"}


def keys(values: Any, prefix: str = "") -> list[str]:
    """All dotted keys of a recipe's values."""
    found = []
    for key, value in values.items():
        found.append(prefix + key)
        if isinstance(value, dict):
            found += keys(value, f"{prefix}{key}.")
    return found


def refusal(name: str, overrides: list[str], *keys: str) -> str:
    """The error of a recipe; its own keys where there is none."""
    try:
        recipe_texts.load(name, overrides)
    except UserError as error:
        return str(error)
    return " ".join(keys)


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(), st.text(max_size=6),
    st.sampled_from(["macl", "moco", "same", "digits", "64", -1, 0, 10**30]), st.dates(),
)  # fmt: skip
WORDS = ["name", "temperature", "loss", "data", "path", "widths", "modality", "encoder", "0", "a"]
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(st.sampled_from(WORDS), inner, max_size=3)
    ),
    max_leaves=6,
)


@pytest.mark.parametrize("name", NEEDS)
def test_any_value_of_any_key(name: str) -> None:
    """The error for a wrong value names its section."""
    pytest.importorskip(NEEDS[name])
    all_keys = keys(recipes.load(name).model_dump(mode="json"))

    @examples(150)
    @given(st.sampled_from(all_keys), VALUES)
    def attempt(key: str, value: Any) -> None:
        override = f"{key}={yaml.safe_dump(value, default_flow_style=True)}"
        assert key.split(".")[0] in refusal(name, [override], key)

    attempt()


@pytest.mark.parametrize("name", NEEDS)
def test_any_document(name: str, tmp_path: Path) -> None:
    """A shipped recipe in which some sections are something else."""
    pytest.importorskip(NEEDS[name])
    shipped, path = recipes.read(name), tmp_path / "mine.yaml"
    sections = st.sampled_from([*shipped, *recipes.Recipe.model_fields, "nonsense"])

    @examples(100)
    @given(st.dictionaries(sections, VALUES, min_size=1, max_size=3))
    def attempt(changes: dict[str, Any]) -> None:
        path.write_text(yaml.safe_dump({**shipped, **changes}), encoding="utf-8")
        error = refusal(str(path), [], *changes)
        assert any(key in error for key in (*changes, "YAML"))

    attempt()


@examples(150)
@given(st.one_of(st.binary(max_size=60), st.text(max_size=60).map(str.encode)))
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "bytes.yaml"
    path.write_bytes(content)
    with pytest.raises(UserError):
        recipes.load(str(path))


@examples(100)
@given(st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_any_text_for_overrides(overrides: list[str]) -> None:
    with pytest.raises(UserError):
        recipe_texts.load("digits", overrides)


@pytest.mark.parametrize(
    "overrides",
    [
        ("method=moco", "method.queue_size=1000000000000000"),
        ("method.projector.widths=[100000000000, 100000000000]",),
        ("method=nnclr", "method.predictor.widths=[32, 7]"),
        ("method=moco", "method.queue_size=100000000000000000000"),
    ],
)
def test_numbers_that_no_machine_holds(overrides: tuple[str, ...]) -> None:
    made = recipe(*overrides)
    with pytest.raises(UserError, match=f"method {made.method.name}"):
        build_method(made.method, made.loss, build_image_encoder(made.encoder))
