"""Every method × every loss, and the heads that recipes ask for."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.losses import CosineSchedule, LearnedTemperature, SupCon, TempNet, TrainingContext
from macl.methods.base import build_method
from macl.methods.heads import build_head, head_dim
from macl.recipes.losses import LOSSES, CosineConfig, LearnedConfig, LossSection
from macl.recipes.methods import HeadConfig, MoCoConfig, NNCLRConfig, SimCLRConfig
from macl.recipes.schema import section_name

IN = 6
METHODS = {
    "simclr": SimCLRConfig(name="simclr"),
    "moco": MoCoConfig(name="moco", queue_size=10),
    "nnclr": NNCLRConfig(name="nnclr", queue_size=10),
}


def encoder() -> nn.Module:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(IN, 8), nn.ReLU())
    module.out_dim = 8
    return module


CONTEXT = TrainingContext(
    samples=20, batch_size=8, steps_per_epoch=2, epochs=1, labels=torch.arange(20) % 3
)
KINDS = {section_name(kind): kind for kind in LOSSES}


def section(name: str, **values: Any) -> LossSection:
    return KINDS[name](name=name, **values)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("loss", KINDS)
def test_every_cell_of_the_grid_takes_a_step(method: str, loss: str) -> None:
    built = build_method(METHODS[method], section(loss), encoder())
    built.setup(CONTEXT)
    optimizer = torch.optim.SGD(built.parameters(), lr=0.1)
    before = [p.detach().clone() for p in built.encoder.parameters()]
    for seed in range(2):
        x1, x2 = torch.randn(2, 8, IN, generator=torch.Generator().manual_seed(seed))
        optimizer.zero_grad()
        step = built(x1, x2, indices=torch.randperm(20)[:8])
        step.loss.backward()
        trained = [p for p in built.parameters() if p.requires_grad]
        assert all(p.grad is not None and p.grad.isfinite().all() for p in trained)
        assert step.loss.isfinite()
        optimizer.step()
    moved = zip(before, built.encoder.parameters(), strict=True)
    assert all(not torch.equal(a, b) for a, b in moved)


def test_the_numbers_of_a_section_reach_the_loss() -> None:
    macl = section("macl", temperature=0.3, alpha=0.7, threshold=0.1, reweight=False)
    loss = build_method(METHODS["simclr"], macl, encoder()).loss
    assert (loss.temperature.temperature, loss.temperature.alpha) == (0.3, 0.7)
    assert (loss.temperature.threshold, loss.reweight, loss.gather) == (0.1, False, True)
    hcl = section("hcl", beta=0.5, tau_plus=0.2, negatives="cross", symmetric=False)
    loss = build_method(METHODS["moco"], hcl, encoder()).loss
    assert (loss.beta, loss.tau_plus, loss.negatives, loss.symmetric) == (0.5, 0.2, "cross", False)


@pytest.mark.parametrize(("widths", "dim"), [((5,), 5), ((5, "same"), 8), ((), 8)])
def test_tempnet_is_built_for_the_width_of_the_embeddings(
    widths: tuple[int | str, ...], dim: int
) -> None:
    method = SimCLRConfig(name="simclr", projector=HeadConfig(widths=widths))
    loss = build_method(method, section("tempnet", rho=1.0), encoder()).loss
    assert isinstance(loss, TempNet)
    assert (loss.dim, loss.rho) == (dim, 1.0)


def test_the_labels_of_the_data_reach_the_loss() -> None:
    built = build_method(METHODS["simclr"], section("supcon"), encoder())
    built.setup(CONTEXT)
    x1, x2 = torch.randn(2, 8, IN)
    indices = torch.tensor([0, 3, 6, 1, 4, 7, 2, 5])
    duplicates = torch.zeros(8, dtype=torch.int64)  # of one group: no negatives, had they a say
    step = built(x1, x2, groups=duplicates, indices=indices)
    expected = SupCon()(*built.encode(x1, x2), labels=indices % 3)
    torch.testing.assert_close(step.loss, expected)
    assert step.metrics["positives_per_anchor"] > 1
    assert not any("labels" in name for name in built.state_dict())


@pytest.mark.parametrize(
    ("labels", "expected"), [(None, "has none"), (torch.zeros(20, 2), r"torch.float32 \(20, 2\)")]
)
def test_labels_that_supcon_cannot_use(labels: Tensor | None, expected: str) -> None:
    built = build_method(METHODS["simclr"], section("supcon"), encoder())
    with pytest.raises(ValueError, match=expected):
        built.setup(dataclasses.replace(CONTEXT, labels=labels))


def test_temperatures_by_name() -> None:
    cosine = CosineConfig(name="cosine", tau_min=0.2, tau_max=0.4, period=9)
    loss = build_method(METHODS["simclr"], section("nt-xent", temperature=cosine), encoder()).loss
    assert isinstance(loss.temperature, CosineSchedule)
    assert (loss.temperature.tau_min, loss.temperature.tau_max, loss.temperature.period) == (
        0.2,
        0.4,
        9,
    )
    learned = LearnedConfig(name="learned", temperature=0.3)
    built = build_method(METHODS["moco"], section("nt-xent", temperature=learned), encoder())
    assert isinstance(built.loss.temperature, LearnedTemperature)
    assert any(p is built.loss.temperature.log_temperature for p in built.parameters())


@pytest.mark.parametrize(
    ("method", "loss", "words"),
    [
        ("simclr", section("macl", temperature=0.1, floor=0.5), "floor"),
        ("nnclr", section("nt-xent", negatives="both"), "symmetric=False"),
        (
            "simclr",
            section("nt-xent", temperature=CosineConfig(name="cosine", tau_min=1, tau_max=0.5)),
            "swap",
        ),
    ],
)
def test_numbers_that_do_not_go_together(method: str, loss: object, words: str) -> None:
    with pytest.raises(UserError, match=words):
        build_method(METHODS[method], loss, encoder())


def test_a_predictor_of_another_width_is_refused() -> None:
    config = NNCLRConfig(name="nnclr", predictor=HeadConfig(widths=(16, 12)))
    with pytest.raises(UserError, match="output has 12 dimensions and the projector's 256"):
        build_method(config, section("macl"), encoder())


def kinds(head: nn.Sequential) -> list[str]:
    return [type(layer).__name__ for layer in head]


def test_heads_of_the_paper() -> None:
    simclr = build_head(HeadConfig(widths=(2048, 128), norm="all", bias=False), 2048)
    assert kinds(simclr) == ["Linear", "BatchNorm1d", "ReLU", "Linear", "BatchNorm1d"]
    assert all(layer.bias is None for layer in simclr if isinstance(layer, nn.Linear))
    moco = build_head(HeadConfig(widths=(2048, 128), norm="none"), 2048)
    assert kinds(moco) == ["Linear", "ReLU", "Linear"]
    simcse = HeadConfig(widths=("same",), norm="none", activation="tanh", final_activation=True)
    assert kinds(build_head(simcse, 768)) == ["Linear", "Tanh"]
    hidden = build_head(HeadConfig(widths=("same", 64)), 32)
    assert kinds(hidden) == ["Linear", "BatchNorm1d", "ReLU", "Linear"]
    # A bias before batch normalization has no effect.
    assert hidden[0].bias is None
    assert hidden[3].bias is not None


@pytest.mark.parametrize("widths", [(), ("same",), (5,), (7, "same"), ("same", 3)])
def test_head_dim_is_the_width_that_comes_out(widths: tuple[int | str, ...]) -> None:
    config = HeadConfig(widths=widths, norm="none")
    out = build_head(config, 4)(torch.zeros(2, 4))
    assert out.shape == (2, head_dim(config, 4))
