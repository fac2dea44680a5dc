"""What a method and its loss get from the training: indices, the step, the size of the training."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from macl.losses import (
    ContrastiveLoss,
    CosineSchedule,
    LossOutput,
    NTXent,
    StepInfo,
    Temperature,
    TrainingContext,
)
from macl.losses.build import Inputs
from macl.losses.pairs import Explicit
from macl.methods import Method, SimCLR, Step
from macl.training import fit
from macl.training.fit import train
from tiny import HERE, METHODS, recipe

IN, N = 5, 6


@dataclass
class Seen:
    indices: list[list[int]] = field(default_factory=list)
    steps: list[int] = field(default_factory=list)
    contexts: list[TrainingContext] = field(default_factory=list)


class PerSample(NTXent):
    """A loss with state per sample, as SogCLR has."""

    takes_indices = True

    def setup(self, context: TrainingContext) -> None:
        self.seen = Seen(contexts=[context])
        self.register_buffer("count", torch.zeros(context.samples))

    def advance(self, step: int) -> None:
        super().advance(step)
        self.seen.steps.append(step)

    def evaluate(self, inputs: Inputs) -> LossOutput:
        assert inputs.indices is not None
        self.seen.indices.append(inputs.indices.tolist())
        self.count[inputs.indices] += 1
        return super().evaluate(inputs)


@pytest.mark.parametrize("method", METHODS)
def test_a_loss_gets_indices_steps_and_the_size_of_the_training(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build, built = fit.build_method, []

    def with_state(section: Any, loss: Any, encoder: nn.Module) -> Method:
        made = build(section, loss, encoder)
        kept: Any = made.loss
        made.loss = PerSample(negatives=kept.negatives, symmetric=kept.symmetric)
        built.append(made)
        return made

    monkeypatch.setattr(fit, "build_method", with_state)
    made = recipe(
        "epochs=2",
        "data.limit=70",
        "monitor_every=0",
        "accumulate_grad_batches=2",
        *METHODS[method],
    )
    train(made, tmp_path, compute=HERE)
    seen = built[0].loss.seen
    calls = 2 if method == "nnclr" else 1
    assert seen.contexts == [
        TrainingContext(samples=70, batch_size=64, steps_per_epoch=1, epochs=2)
    ]
    assert seen.steps == [0, 1, 2]  # where training starts, and after each optimizer step
    assert len(seen.indices) == 4 * calls
    for epoch in (seen.indices[: 2 * calls], seen.indices[2 * calls :]):
        assert len({i for batch in epoch for i in batch}) == 64
    assert built[0].loss.count.sum() == 4 * calls * 32


def test_a_loss_without_state_is_not_given_indices() -> None:
    assert not ContrastiveLoss.takes_indices
    method = SimCLR(nn.Linear(IN, 4), nn.Identity(), NTXent())
    step = method(*torch.randn(2, N, IN), indices=torch.arange(N))
    assert isinstance(step, Step)
    assert [*step.metrics] == [
        "info_nce", "alignment", "temperature", "gradient_scale", "effective_anchors", "floored"
    ]  # fmt: skip


def test_temperatures_advance_with_the_step_or_ignore_it() -> None:
    cosine = CosineSchedule(0.1, 1.0, period=10)
    cosine.advance(5)
    step = StepInfo(Explicit(torch.zeros(2), torch.zeros(2, 3)))
    assert cosine(step).item() == pytest.approx(0.1)
    cosine.advance()
    assert int(cosine.step) == 6
    Temperature().advance(3)
    method = SimCLR(nn.Linear(IN, 4), nn.Identity(), NTXent(cosine))
    method.advance(2)
    assert int(cosine.step) == 2


class Plain(Method):
    """No loss section, no negatives, no temperature."""

    def encode(self, *views: Any) -> tuple[Tensor, ...]:
        return self.project_together(*views)

    def step(self, *embeddings: Tensor, **_: Any) -> Step:
        z1, z2 = embeddings
        return Step((z1 - z2).square().mean(), {"spread": z1.std(0).mean().detach()})


def test_a_method_without_a_contrast() -> None:
    method = Plain(nn.Linear(IN, 4), nn.Identity())
    step = method(*torch.randn(2, N, IN))
    step.loss.backward()
    assert [*step.metrics] == ["spread"]
    assert method.loss is None
    with pytest.raises(ValueError, match="hard negatives"):
        method.check_hard_negatives()
