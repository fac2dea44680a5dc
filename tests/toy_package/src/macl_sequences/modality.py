"""The modality: data, views, encoder and evaluation of number sequences."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.modalities.base import Modality
from macl.modalities.protocols import Dataset, Embed, Items, Views
from macl.probes.knn import knn_accuracy
from macl.probes.score import Score
from macl_sequences.sections import (
    SECTIONS,
    SequenceDataConfig,
    SequenceEncoderConfig,
    SequenceEvaluationConfig,
    SequenceViewsConfig,
)

FREQUENCIES = (1.0, 2.0, 4.0)
LENGTH = 32


class SequenceDataset(Dataset):
    """N sequences of equal length in memory: (N, T) float32."""

    def __init__(self, values: Tensor, names: list[str], labels: Tensor | None = None) -> None:
        self.values, self.names, self.labels = values, names, labels
        self.classes = [f"{f:g} Hz" for f in FREQUENCIES] if labels is not None else ()

    def __len__(self) -> int:
        return len(self.values)

    def __getitem__(self, index: int) -> Tensor:
        return self.values[index]

    def collate(self, samples: list[Tensor]) -> Tensor:
        """(B, T)."""
        return torch.stack(samples)


class SequenceViews(Views):
    """Noise and a random scale."""

    def __init__(self, config: SequenceViewsConfig) -> None:
        self.config = config

    def __call__(self, inputs: Tensor) -> tuple[Tensor, Tensor]:
        return self._view(inputs), self._view(inputs)

    def plain(self, inputs: Tensor) -> Tensor:
        """As they are."""
        return inputs

    def _view(self, x: Tensor) -> Tensor:
        factor = 1 + self.config.scale * (2 * torch.rand(len(x), 1, device=x.device) - 1)
        return factor * x + self.config.noise * torch.randn_like(x)


class SequenceEncoder(nn.Module):
    """A convolution, a non-linearity, the mean and the maximum over time: (B, T) → (B, 2·width)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.out_dim = 2 * width
        self.conv = nn.Conv1d(1, width, kernel_size=9, padding=4)

    def forward(self, view: Tensor) -> Tensor:
        hidden = torch.relu(self.conv(view.unsqueeze(1)))
        return torch.cat([hidden.mean(dim=2), hidden.amax(dim=2)], dim=1)


class Sequences(Modality):
    """Number sequences."""

    name = "sequences"
    sections = SECTIONS
    open_keys = frozenset({"limit"})

    def load(self, config: SequenceDataConfig, split: str) -> Dataset:
        """Sine waves of random phase, whose class is their frequency; or the user's file."""
        if config.path is not None:
            return self.open(config, config.path)
        count = min(config.limit or 120, 120)
        generator = torch.Generator().manual_seed(len(split))
        phase = 2 * torch.pi * torch.rand(count, 1, generator=generator)
        labels = torch.arange(count) % len(FREQUENCIES)
        frequency = torch.tensor(FREQUENCIES)[labels].unsqueeze(1)
        time = torch.linspace(0, 1, LENGTH)
        values = torch.sin(2 * torch.pi * frequency * time + phase)
        return SequenceDataset(values, [f"{split}/{i}" for i in range(count)], labels)

    def open(self, config: SequenceDataConfig, path: Path) -> Dataset:
        """A .csv file with a sequence per line."""
        try:
            values = np.loadtxt(path, delimiter=",", dtype=np.float32, ndmin=2)
        except (OSError, ValueError) as error:
            raise UserError(f"{path}: not a .csv file of numbers ({error}).") from error
        values = values[: config.limit]
        names = [f"line {i + 1}" for i in range(len(values))]
        return SequenceDataset(torch.from_numpy(values), names)

    def describe_items(self, dataset: Dataset, indices: Any) -> Items:
        """Names, and the sequences as curves."""
        return Items(
            [dataset.names[i] for i in indices], drawings=[_curve(dataset[i]) for i in indices]
        )

    def build_encoder(self, config: SequenceEncoderConfig, dataset: Dataset | None) -> nn.Module:
        """Its size does not depend on the data."""
        return SequenceEncoder(config.width)

    def build_views(self, config: SequenceViewsConfig, encoder: nn.Module) -> Views:
        """Noise and scale."""
        return SequenceViews(config)

    def evaluate(
        self,
        config: SequenceEvaluationConfig,
        data: SequenceDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """kNN from train to test."""
        train, test = self.load(data, "train"), self.load(data, "test")
        found = knn_accuracy(embed(train), train.labels, embed(test), test.labels, k=config.k)
        return [Score("knn", metric, value) for metric, value in found.items()]


def _curve(values: Tensor) -> str:
    low, high = float(values.min()), float(values.max())
    scaled = 38 - 36 * (values - low) / max(high - low, 1e-9)
    points = " ".join(f"{2 * i},{y:.1f}" for i, y in enumerate(scaled.tolist()))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {2 * len(values)} 40">'
        f'<polyline points="{points}" fill="none" stroke="#3f90da"/></svg>'
    )


MODALITY = Sequences()
