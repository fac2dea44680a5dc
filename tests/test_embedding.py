"""Whole data sets through a frozen encoder."""

from __future__ import annotations

import os
import signal
import time
import traceback
from collections.abc import Callable
from typing import ClassVar

import pytest
import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.modalities.embedding import embed, embedder
from macl.modalities.protocols import Dataset


class Rows(Dataset):
    """Some rows; item i is row i."""

    labels = None

    def __init__(self, n: int = 11) -> None:
        self.rows = torch.randn(n, 3, generator=torch.Generator().manual_seed(0))
        self.names = [str(i) for i in range(n)]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> Tensor:
        return self.rows[index]

    def collate(self, samples: list[Tensor]) -> Tensor:
        return torch.stack(samples)


class Shifted:
    """Training views would be noise; the plain view is the input plus one."""

    def __call__(self, inputs: Tensor) -> tuple[Tensor, ...]:
        raise AssertionError("embedding takes the plain view")

    def plain(self, inputs: Tensor) -> Tensor:
        return inputs + 1


def encoder() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5))


@pytest.mark.parametrize(("batch_size", "workers"), [(1, 0), (4, 0), (100, 0), (4, 1)])
def test_rows_come_in_order_whatever_the_batches(batch_size: int, workers: int) -> None:
    net, data = encoder(), Rows()
    got = embedder(net, Shifted(), batch_size=batch_size, workers=workers, quiet=True)(data)
    net.eval()
    expected = torch.stack([net(row[None] + 1)[0] for row in data.rows])
    torch.testing.assert_close(got, expected.detach())
    assert not got.requires_grad


def test_large_items_come_in_small_batches() -> None:
    class Sized(Rows):
        batches: ClassVar[list[int]] = []

        def size(self, index: int) -> int:
            return (index % 4) * 1000

        def collate(self, samples: list[Tensor]) -> Tensor:
            self.batches.append(len(samples))
            return super().collate(samples)

    data, net = Sized(14), encoder().eval()
    got = embed(net, Shifted(), data, batch_size=3, quiet=True)
    # Sizes 3000, 3000, 3000, 2000 + 2000, 2000 + 1000, then 1000 and 0, three at most.
    assert data.batches == [1, 1, 1, 2, 2, 3, 3, 1]
    torch.testing.assert_close(got, net(data.rows + 1).detach())


@pytest.mark.parametrize("training", [True, False])
def test_the_mode_is_put_back_and_statistics_stay(training: bool) -> None:
    net = encoder().train(training)
    before = net[1].running_mean.clone()
    embed(net, Shifted(), Rows())
    assert net.training is training
    assert torch.equal(net[1].running_mean, before)


def test_the_mode_is_put_back_after_an_error() -> None:
    class Broken(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            raise RuntimeError("broken")

    net = Broken()
    with pytest.raises(RuntimeError, match="broken"):
        embed(net, Shifted(), Rows())
    assert net.training


def test_an_encoder_in_double_precision_gives_single() -> None:
    single = embed(encoder(), Shifted(), Rows())
    double = embed(encoder().double(), Shifted(), Rows())
    assert double.dtype == torch.float32
    torch.testing.assert_close(single, double, rtol=1e-5, atol=1e-6)


class Damaged(Rows):
    """What happens to item 5 happens in a reading process."""

    def __init__(self, fate: Callable[[], None]) -> None:
        super().__init__()
        self.fate = fate

    def __getitem__(self, index: int) -> Tensor:
        if index == 5:
            self.fate()
        return super().__getitem__(index)


def broken_file() -> None:
    raise UserError("image cat.png cannot be read: broken")


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        (broken_file, "^image cat.png cannot be read: broken$"),
        (lambda: os.kill(os.getpid(), signal.SIGKILL), "^a reading process died.*fewer workers"),
    ],
    ids=["broken file", "killed"],
)
def test_reading_processes_that_fail_are_told_in_words(
    fate: Callable[[], None], words: str
) -> None:
    with pytest.raises(UserError, match=words):
        embed(encoder(), Shifted(), Damaged(fate), batch_size=2, workers=1)


class Slow(nn.Module):
    """Takes its time, so that a reading process dies while a batch is being encoded."""

    def forward(self, view: Tensor) -> Tensor:
        time.sleep(2)
        return view


def test_a_reading_process_that_dies_while_we_encode() -> None:
    with pytest.raises(UserError, match=r"^a reading process died") as told:
        embed(Slow(), Shifted(), Damaged(lambda: os._exit(1)), batch_size=2, workers=1)
    cause = told.value.__cause__
    assert cause is not None
    frames = {frame.name for frame in traceback.extract_tb(cause.__traceback__)}
    assert frames & {"forward", "ahead"}  # a signal's handler, or the next batch is missing
    os.kill(os.getpid(), signal.SIGCHLD)  # torch looks at all workers it knows: none is left
