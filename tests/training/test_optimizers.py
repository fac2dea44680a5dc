from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch import nn

from macl.losses import SigLIP
from macl.optim import LARS, build_optimizer, parameter_groups
from macl.recipes.optim import OptimizerConfig


def lars_by_hand(
    w: torch.Tensor,
    gradients: list[torch.Tensor],
    lrs: list[float],
    *,
    momentum: float = 0.9,
    decay: float = 0.0,
    eta: float = 1e-3,
    adapt: bool = True,
) -> torch.Tensor:
    w, v = w.clone(), torch.zeros_like(w)
    for gradient, lr in zip(gradients, lrs, strict=True):
        g = gradient + decay * w
        w_norm, g_norm = float((w**2).sum() ** 0.5), float((g**2).sum() ** 0.5)
        trust = eta * w_norm / g_norm if adapt and w_norm > 0 and g_norm > 0 else 1.0
        v = momentum * v + lr * trust * g
        w = w - v
    return w


def test_lars_follows_its_definition_over_two_steps_and_a_changing_rate() -> None:
    torch.manual_seed(0)
    matrix = nn.Parameter(torch.randn(3, 4, dtype=torch.float64))
    bias = nn.Parameter(torch.randn(3, dtype=torch.float64))
    start = [matrix.detach().clone(), bias.detach().clone()]
    gradients = [[torch.randn_like(p) for p in (matrix, bias)] for _ in range(2)]
    optimizer = LARS(
        [
            {"params": [matrix], "weight_decay": 0.1},
            {"params": [bias], "weight_decay": 0.0, "adapt": False},
        ],
        lr=2.0,
    )
    lrs = [2.0, 0.5]
    for (of_matrix, of_bias), lr in zip(gradients, lrs, strict=True):
        for group in optimizer.param_groups:
            group["lr"] = lr
        matrix.grad, bias.grad = of_matrix, of_bias
        optimizer.step()
    expected = lars_by_hand(start[0], [g[0] for g in gradients], lrs, decay=0.1)
    torch.testing.assert_close(matrix.detach(), expected)
    expected = lars_by_hand(start[1], [g[1] for g in gradients], lrs, adapt=False)
    torch.testing.assert_close(bias.detach(), expected)


def test_lars_in_numbers() -> None:
    w = nn.Parameter(torch.tensor([[3.0, 4.0]]))
    w.grad = torch.tensor([[0.0, 2.0]])
    LARS([w], lr=10.0, momentum=0.0, trust_coefficient=0.1).step()
    # trust = 0.1 · 5 / 2, so the step is 10 · 0.25 · (0, 2).
    torch.testing.assert_close(w.detach(), torch.tensor([[3.0, -1.0]]))


def test_zero_norms_take_a_plain_step_and_parameters_without_gradient_stay() -> None:
    zero_weight = nn.Parameter(torch.zeros(2, 2))
    zero_gradient = nn.Parameter(torch.ones(2, 2))
    unused = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([zero_weight, zero_gradient, unused], lr=0.5)
    zero_weight.grad, zero_gradient.grad = torch.ones(2, 2), torch.zeros(2, 2)
    optimizer.step()
    torch.testing.assert_close(zero_weight.detach(), torch.full((2, 2), -0.5))
    torch.testing.assert_close(zero_gradient.detach(), torch.ones(2, 2))
    torch.testing.assert_close(unused.detach(), torch.ones(2, 2))


def test_lars_does_not_touch_gradients_and_its_momentum_survives_a_checkpoint() -> None:
    def run(interrupt: bool) -> torch.Tensor:
        w = nn.Parameter(torch.arange(1.0, 7.0).reshape(2, 3))
        optimizer = LARS([w], lr=1.0, weight_decay=0.1)
        for step in range(4):
            if interrupt and step == 2:
                state = optimizer.state_dict()
                optimizer = LARS([w], lr=123.0)
                optimizer.load_state_dict(state)
            gradient = torch.full((2, 3), float(step + 1))
            w.grad = gradient.clone()
            optimizer.step()
            assert torch.equal(w.grad, gradient)
        return w.detach()

    assert torch.equal(run(interrupt=True), run(interrupt=False))


def test_lars_runs_a_closure_and_rejects_senseless_settings() -> None:
    w = nn.Parameter(torch.ones(2, 2))
    optimizer = LARS([w], lr=1.0)

    def closure() -> float:
        optimizer.zero_grad()
        loss = w.square().sum()
        loss.backward()
        return loss.item()

    assert optimizer.step(closure) == 4.0
    assert not torch.equal(w.detach(), torch.ones(2, 2))
    for bad in ({"lr": -1.0}, {"lr": 1.0, "momentum": 1.0}, {"lr": 1.0, "trust_coefficient": 0.0}):
        with pytest.raises(ValueError, match="LARS needs"):
            LARS([w], **bad)


def network() -> nn.Module:
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))


def test_parameter_groups_split_by_axes_and_skip_the_frozen() -> None:
    module = network()
    module[3].weight.requires_grad_(False)
    matrices, vectors = parameter_groups(module, 0.1)
    assert [id(p) for p in matrices["params"]] == [id(module[0].weight)]
    expected = [module[0].bias, module[1].weight, module[1].bias, module[3].bias]
    assert [id(p) for p in vectors["params"]] == [id(p) for p in expected]
    assert (matrices["weight_decay"], matrices["adapt"]) == (0.1, True)
    assert (vectors["weight_decay"], vectors["adapt"]) == (0.0, False)
    assert len(parameter_groups(nn.Linear(2, 2, bias=False), 0.1)) == 1


@pytest.mark.parametrize(
    ("scaling", "lr", "batch", "expected"),
    [
        ("none", 1e-3, 1024, 1e-3),
        ("linear", 0.3, 512, 0.6),
        ("linear", 0.3, 128, 0.15),
        ("linear-above-256", 1e-3, 64, 1e-3),
        ("linear-above-256", 1e-3, 1024, 4e-3),
        ("sqrt", 0.075, 256, 1.2),
    ],
)
def test_learning_rate_scaling(scaling: str, lr: float, batch: int, expected: float) -> None:
    config = OptimizerConfig.model_validate({"lr_scaling": scaling, "lr": lr})
    assert config.learning_rate(batch) == pytest.approx(expected)
    optimizer = build_optimizer(config, network(), batch)
    assert optimizer.param_groups[0]["lr"] == pytest.approx(expected)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("lars", LARS),
        ("sgd", torch.optim.SGD),
        ("adam", torch.optim.Adam),
        ("adamw", torch.optim.AdamW),
    ],
)
def test_build_optimizer(name: str, kind: type[torch.optim.Optimizer]) -> None:
    settings = {"name": name, "weight_decay": 0.01, "momentum": 0.8}
    module = network()
    optimizer = build_optimizer(OptimizerConfig.model_validate(settings), module, 256)
    assert type(optimizer) is kind
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == ([0.01, 0.0] if name == "lars" else [0.01])
    if name in ("lars", "sgd"):
        assert optimizer.param_groups[0]["momentum"] == 0.8
    other = {**settings, "exclude_norm_and_bias": name != "lars"}
    optimizer = build_optimizer(OptimizerConfig.model_validate(other), module, 256)
    decays = [group["weight_decay"] for group in optimizer.param_groups]
    assert decays == ([0.01] if name == "lars" else [0.01, 0.0])
    module(torch.randn(2, 3, 3, 3)).sum().backward()
    before = module[3].weight.detach().clone()
    optimizer.step()
    assert not torch.equal(before, module[3].weight)


@pytest.mark.parametrize("name", ["adam", "adamw"])
def test_betas_and_eps_reach_adam(name: str) -> None:
    given = {"name": name, "betas": [0.8, 0.95], "eps": 1e-6}
    optimizer = build_optimizer(OptimizerConfig.model_validate(given), network(), 256)
    assert all(tuple(g["betas"]) == (0.8, 0.95) for g in optimizer.param_groups)
    assert all(g["eps"] == 1e-6 for g in optimizer.param_groups)
    for wrong in ({"betas": [0.9, 1.0]}, {"betas": [0.9]}, {"eps": 0}):
        with pytest.raises(ValidationError):
            OptimizerConfig.model_validate(wrong)


def test_config_rejects_what_makes_no_sense() -> None:
    for bad in ({"name": "lamb"}, {"lr": -1}, {"momentum": 1}, {"learning_rate": 1}):
        with pytest.raises(ValidationError):
            OptimizerConfig.model_validate(bad)


@pytest.mark.parametrize("name", ["sgd", "adamw", "lars"])
@pytest.mark.parametrize("exclude", [False, True])
def test_learned_temperature_and_bias_do_not_decay(name: str, exclude: bool) -> None:
    loss = SigLIP()
    module = nn.ModuleList([nn.Linear(2, 2), loss])
    config = OptimizerConfig(name=name, lr=0.1, weight_decay=0.5, exclude_norm_and_bias=exclude)
    optimizer = build_optimizer(config, module, 8)
    decays = {id(p): g["weight_decay"] for g in optimizer.param_groups for p in g["params"]}
    assert [decays[id(p)] for p in loss.parameters()] == [0.0, 0.0]
    assert decays[id(module[0].weight)] == 0.5
    assert decays[id(module[0].bias)] == (0.0 if exclude else 0.5)
