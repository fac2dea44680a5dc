"""Recipe keys that trade time for memory, or precision for time, and change nothing else."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from torch import nn

from macl.core.errors import UserError
from macl.training.compute import blocks, build_strategy, checkpoint_activations
from macl.training.fit import train
from tiny import HERE, assert_same, recipe, state_of

QUICK = ("epochs=1", "data.limit=64", "monitor_every=0")


def test_blocks_are_the_outermost_numbered_modules() -> None:
    network = nn.Module()
    network.stem = nn.Linear(2, 2)
    network.layers = nn.ModuleList(nn.Sequential(nn.Linear(2, 2), nn.ReLU()) for _ in range(3))
    network.empty = nn.Sequential(nn.ReLU())
    assert blocks(network) == list(network.layers)


def test_activations_are_computed_again(tmp_path: Path) -> None:
    """Weights, and the running statistics of batch normalization, are those of keeping them."""
    runs = [
        train(recipe(*QUICK, f"activation_checkpointing={on}"), tmp_path / on, compute=HERE)
        for on in ("false", "true")
    ]
    assert blocks(runs[0].encoder)
    assert_same(*(state_of(run)["state_dict"] for run in runs))


def test_each_block_runs_twice() -> None:
    calls: list[int] = []
    network = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    network[0].register_forward_pre_hook(lambda *_: calls.append(0))
    block = nn.Module()
    block.inner = nn.Sequential(network)
    block.forward = lambda x: block.inner[0](x)  # type: ignore[method-assign]
    checkpoint_activations(block)
    block.forward(torch.ones(2, 3)).sum().backward()
    assert len(calls) == 2


class Products(pl.Callback):
    """The precision of float32 products while a run is trained."""

    seen: str | None = None

    def on_train_batch_end(self, *_: Any) -> None:
        self.seen = torch.get_float32_matmul_precision()


def test_the_precision_of_products_is_that_of_the_recipe(tmp_path: Path) -> None:
    before, products = torch.get_float32_matmul_precision(), Products()
    made = recipe(*QUICK, "matmul_precision=high")
    train(made, tmp_path / "run", compute=HERE, callbacks=[products])
    assert products.seen == "high"
    assert torch.get_float32_matmul_precision() == before == "highest"


def test_the_encoder_is_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By dynamo alone: inductor would take minutes."""
    compiled: list[nn.Module] = []
    compile_module = nn.Module.compile

    def noted(self: nn.Module) -> None:
        compiled.append(self)
        compile_module(self, backend="eager")

    monkeypatch.setattr(nn.Module, "compile", noted)
    run = train(recipe(*QUICK, "compile=true"), tmp_path / "compiled", compute=HERE)
    plain = train(recipe(*QUICK), tmp_path / "plain", compute=HERE)
    assert len(compiled) == 1
    one, two = (state_of(each)["state_dict"] for each in (run, plain))
    torch.testing.assert_close(one, two)


def test_sharding_has_no_scaled_half_precision() -> None:
    assert build_strategy(recipe("strategy=fsdp2", "precision=16"), 1) == "auto"
    with pytest.raises(UserError, match="use precision bf16 or 32"):
        build_strategy(recipe("strategy=fsdp2", "precision=16"), 2)
    with pytest.raises(UserError, match="no mean of the weights"):
        build_strategy(recipe("strategy=fsdp2", "ema=0.9"), 2)
