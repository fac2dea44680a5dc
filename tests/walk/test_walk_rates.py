"""metrics.csv has the learning rate that moved the weights in its step."""

from __future__ import annotations

from pathlib import Path

import pytest

from macl.optim import learning_rate_factor
from macl.training.fit import train
from tiny import HERE, recipe


def test_the_logged_rate_is_the_applied_one(tmp_path: Path) -> None:
    asked = recipe("epochs=1", "data.limit=192", "schedule.warmup_epochs=0.5", "monitor_every=0")
    run = train(asked, tmp_path / "run", compute=HERE)
    rows = run.metrics()
    assert rows[-1]["step"] == 6
    for row in rows:
        factor = learning_rate_factor(asked.schedule, int(row["step"]) - 1, 6, 3)
        assert row["lr"] == pytest.approx(asked.optimizer.lr * factor)
