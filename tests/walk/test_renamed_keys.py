"""Recipe keys with new names: a user's recipe is refused with the new name, a stored run opens."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import yaml

from macl import recipes
from macl.core.errors import UserError
from macl.modalities.splits import stratified_split
from macl.recipes.upgrade import RENAMED_KEYS

RENAMED = {
    "optimizer.scaling": ("linear", "optimizer.lr_scaling"),
    "schedule.final": (0.1, "schedule.final_lr_factor"),
    "evaluation.linear.scaling": ("linear", "evaluation.linear.lr_scaling"),
    "needs": ("a GPU", "requirements"),
}
LOSSES = {
    "loss.lowest": {"loss": "dystress", "loss.lowest": 0.1},
    "loss.form": {"loss": "supcon", "loss.form": "out"},
    "loss.temperature.highest": {"loss.temperature": {"name": "cosine", "highest": 1.0}},
}
"""Old keys of losses, and how a user would set them."""


@pytest.mark.parametrize("old", RENAMED)
def test_an_old_key_is_refused_with_its_new_name(old: str) -> None:
    value, new = RENAMED[old]
    with pytest.raises(UserError, match=f"{old} is now called {new}"):
        recipes.load("digits", {old: value})


@pytest.mark.parametrize("old", LOSSES)
def test_an_old_key_of_a_loss_is_refused_with_its_new_name(old: str) -> None:
    with pytest.raises(UserError, match=f"{old} is now called {RENAMED_KEYS[old]}"):
        recipes.load("digits", {"loss": "nt-xent", **LOSSES[old]})


@pytest.mark.parametrize("old", RENAMED)
def test_a_stored_run_opens_with_an_old_key(old: str, tmp_path: Path) -> None:
    value, new = RENAMED[old]
    written = recipes.dump(recipes.load("digits", {new: value}))
    last = old.rpartition(".")[2]
    stored = tmp_path / "recipe.yaml"
    stored.write_text(written.replace(f"{new.rpartition('.')[2]}: {value}", f"{last}: {value}"))
    assert f"{last}: {value}" in stored.read_text()
    flat = recipes.flatten(recipes.resolve_file(str(stored)).model_dump())
    assert flat[new] == value


def test_a_stored_run_opens_with_a_removed_key(tmp_path: Path) -> None:
    values = recipes.load("digits", {}).model_dump(mode="json")
    values["evaluation"]["detection"] |= {"frozen_stages": 0, "from_scratch": False}
    stored = tmp_path / "recipe.yaml"
    stored.write_text(yaml.safe_dump(values))
    assert recipes.resolve_file(str(stored)).evaluation == recipes.load("digits", {}).evaluation


def test_a_stratified_split_keeps_proportions_and_leaves_single_items_in_training() -> None:
    labels = torch.tensor([0] * 50 + [1] * 10 + [2])
    train, test = stratified_split(labels, 0.2)
    assert torch.equal(torch.cat([train, test]).sort().values, torch.arange(61))
    assert labels[test].bincount(minlength=3).tolist() == [10, 2, 0]
    again = stratified_split(labels, 0.2)
    assert torch.equal(test, again[1])


def test_a_split_of_single_items_holds_nothing_out() -> None:
    train, test = stratified_split(torch.arange(5), 0.5)
    assert len(train) == 5
    assert len(test) == 0
