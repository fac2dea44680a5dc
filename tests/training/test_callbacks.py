"""Metrics on file, the monitor, and the best encoder."""

from __future__ import annotations

import signal
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
from safetensors.torch import load_file

from macl.core.signals import Interrupted
from macl.geometry import effective_rank
from macl.modalities.embedding import monitored
from macl.modalities.protocols import Dataset
from macl.modalities.splits import Subset, random_subset
from macl.probes.score import Score
from macl.runs import Run
from macl.training.callbacks import Monitor, SaveLast
from macl.training.fit import train
from macl.training.journal import Journal
from macl.training.metrics import MetricsFile
from tiny import HERE, assert_same, recipe, state_of

JOURNAL = Journal()


class Model(pl.LightningModule):
    """One weight that a step moves by one."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.method = torch.nn.Module()
        self.method.encoder = torch.nn.Identity()

    def whole_encoder(self) -> torch.nn.Module:
        return self.method.encoder

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        loss = self.weight.sum()
        JOURNAL.ends_epoch = batch_idx == 4
        JOURNAL.is_logged = batch_idx % 2 == 1 or JOURNAL.ends_epoch
        JOURNAL.row = {"loss": loss.detach(), "variance": 2 * loss.detach()}
        if self.global_step > 5:
            JOURNAL.row["late"] = torch.tensor(1.0)
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=1.0)


def to_host(trainer: pl.Trainer, row: list[torch.Tensor]) -> list[float]:
    return torch.stack(row).tolist()


def fit(*callbacks: pl.Callback, epochs: int = 2) -> None:
    trainer = pl.Trainer(
        accelerator="cpu", max_epochs=epochs, callbacks=[*callbacks], logger=False,
        enable_checkpointing=False, enable_model_summary=False, enable_progress_bar=False,
    )  # fmt: skip
    data = torch.utils.data.DataLoader(torch.zeros(5, 1))
    trainer.fit(Model(), data)


def test_rows_come_when_the_module_logs(tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    fit(MetricsFile(path, JOURNAL, to_host))
    lines = path.read_text().splitlines()
    columns = lines[0].split(",")
    assert columns == ["step", "epoch", "loss", "variance", "late", "lr", "monitor"]
    rows = [dict(zip(columns, line.split(","), strict=True)) for line in lines[1:]]
    assert [(row["step"], row["epoch"]) for row in rows] == [
        ("2", "0"), ("4", "0"), ("5", "0"), ("7", "1"), ("9", "1"), ("10", "1"),
    ]  # fmt: skip
    assert [row["loss"] for row in rows] == ["-1", "-3", "-4", "-6", "-8", "-9"]
    assert [row["variance"] for row in rows] == ["-2", "-6", "-8", "-12", "-16", "-18"]
    assert [row["late"] for row in rows] == ["", "", "", "1", "1", "1"]
    assert {row["lr"] for row in rows} == {"1"}


def test_the_monitor_looks_every_few_epochs_and_at_the_end(tmp_path: Path) -> None:
    values = iter([3.0, 5.0, 4.0])
    kept: list[float] = []
    metrics = MetricsFile(tmp_path / "metrics.csv", JOURNAL, to_host)
    seen: list[float] = []

    def look(encoder: torch.nn.Module) -> tuple[Score, dict[str, float]]:
        seen.append(next(values))
        return Score("knn", "top1", seen[-1]), {"effective_rank": 7.0}

    monitor = Monitor(look, 2, metrics, lambda encoder: kept.append(seen[-1]))
    fit(metrics, monitor, epochs=5)
    assert seen == [3.0, 5.0, 4.0]
    assert kept == [3.0, 5.0]
    rows = [row for row in Run(tmp_path).metrics() if "monitor" in row]
    assert [(row["epoch"], row["monitor"]) for row in rows] == [(1, 3), (3, 5), (4, 4)]
    assert all("loss" in row and row["effective_rank"] == 7 for row in rows)
    steps = [row["step"] for row in Run(tmp_path).metrics()]
    assert steps == sorted(set(steps))
    again = Monitor(look, 2, metrics, kept.append)
    again.load_state_dict(monitor.state_dict())
    assert again.best == 5.0


def test_the_monitor_looks_every_few_steps_too(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv", JOURNAL, to_host)
    score = Score("sts", "spearman", 1.0)
    fit(metrics, Monitor(lambda encoder: (score, {}), 10, metrics, lambda encoder: None, steps=2))
    rows = [row for row in Run(tmp_path).metrics() if "monitor" in row]
    assert [row["step"] for row in rows] == [2, 4, 6, 8, 10]
    # Steps 6 and 8 have no other figures: the module logs its fifth batch and every second one.
    assert ["loss" in row for row in rows] == [True, True, False, False, True]


def test_no_monitor_where_there_is_nothing_to_evaluate_on(tmp_path: Path) -> None:
    metrics = MetricsFile(tmp_path / "metrics.csv", JOURNAL, to_host)
    fit(metrics, Monitor(lambda encoder: (None, {"alpha_req": 1.5}), 1, metrics, pytest.fail))
    rows = Run(tmp_path).metrics()
    assert all("monitor" not in row for row in rows)
    assert rows[-1]["alpha_req"] == 1.5


def test_what_the_monitor_logs_without_labels() -> None:
    """Of the vectors that a monitor embedded, or of a sample where there is no monitor."""

    class Items(Dataset):
        def __len__(self) -> int:
            return 50

        def __getitem__(self, index: int) -> torch.Tensor:
            return torch.eye(8)[index % 8]

        def collate(self, samples: list[Any]) -> Any:
            return torch.stack(samples)

        names = tuple(map(str, range(50)))
        labels = None

    def embed(items: Dataset, *, augmented: bool = False) -> torch.Tensor:
        return torch.stack([items[i] for i in range(len(items))])

    score, figures = monitored(None, Items(), embed, most=20)
    assert score is None
    chosen = embed(Subset(Items(), random_subset(len(Items()), 20)))
    assert figures["effective_rank"] == pytest.approx(effective_rank(chosen).item())
    best = Score("knn", "top1", 1.0)

    def evaluate(embed: Any) -> Score:
        embed(Subset(Items(), torch.arange(3)))
        return best

    score, figures = monitored(evaluate, Items(), embed)
    assert score is best
    assert figures["effective_rank"] == pytest.approx(3)


class Striking(pl.Callback):
    """Sends signals to this process while a batch is under way."""

    def __init__(self, *signals: signal.Signals) -> None:
        self.signals = signals

    def on_train_batch_start(self, *arguments: Any) -> None:
        for number in self.signals:
            signal.raise_signal(number)


def test_a_second_ctrl_c_interrupts_at_once(tmp_path: Path) -> None:
    path, before = tmp_path / "last.ckpt", signal.getsignal(signal.SIGINT)
    try:
        with pytest.raises(SystemExit):  # what Lightning makes of a KeyboardInterrupt
            fit(Striking(signal.SIGINT, signal.SIGINT), SaveLast(JOURNAL, path, 100))
    finally:
        signal.signal(signal.SIGINT, before)
    assert not path.exists()


def test_a_termination_after_a_ctrl_c_waits_for_the_step_too(tmp_path: Path) -> None:
    path = tmp_path / "last.ckpt"
    with pytest.raises(Interrupted, match="SIGTERM"):
        fit(Striking(signal.SIGINT, signal.SIGTERM), SaveLast(JOURNAL, path, 100))
    assert torch.load(path, weights_only=True)["global_step"] == 1


@pytest.mark.parametrize(("minutes", "saved"), [(None, 2), (60.0, 2), (1e-9, 10)])
def test_checkpoints_by_the_clock(minutes: float | None, saved: int, tmp_path: Path) -> None:
    """Beside those at the end of an epoch, of which there are two with five steps each."""
    times: list[float] = []

    class Counted(SaveLast):
        def _save(self, trainer: pl.Trainer, stop: bool) -> None:
            super()._save(trainer, stop)
            times.append(self.saved_at)

    fit(Counted(JOURNAL, tmp_path / "last.ckpt", 1000, minutes))
    assert len(times) == saved


def test_training_restores_the_signal_handlers(tmp_path: Path) -> None:
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    fit(SaveLast(JOURNAL, tmp_path / "last.ckpt", 100))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before


def test_the_best_encoder_is_kept_beside_the_last(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second of three looks is made the best: what is kept is the encoder of that moment."""
    scores, looked_at = iter([1.0, 9.0, 2.0]), []

    def look(evaluate: Any, dataset: Dataset, embed: Any) -> tuple[Score, dict[str, float]]:
        encoder = embed.args[0].args[0]
        looked_at.append({name: value.clone() for name, value in encoder.state_dict().items()})
        return Score("knn", "top1", next(scores)), {}

    monkeypatch.setattr("macl.training.fit.monitored", look)
    run = train(recipe("epochs=3", "data.limit=64"), tmp_path / "run", compute=HERE)
    assert_same(load_file(run.folder / "best" / "encoder.safetensors"), dict(looked_at[1]))
    assert_same(load_file(run.folder / "encoder.safetensors"), dict(looked_at[2]))
    assert not torch.equal(looked_at[1]["conv1.weight"], looked_at[2]["conv1.weight"])
    assert state_of(run)["callbacks"]["Monitor"] == {"best": 9.0, "since_best": 1}
