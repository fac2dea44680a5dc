"""What a modality is to the rest of the house: data, views, encoders, evaluation.

The engine, the methods and the command line talk to these few shapes and to nothing else, so a new
modality is a new folder with the same rooms and no change anywhere else.
"""

from __future__ import annotations

import abc
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Generic, TypeVar

import torch
from torch import Tensor, nn

from macl.core.section import Section
from macl.core.weights import save_weights
from macl.modalities.monitor import has_classes, knn_monitor
from macl.modalities.protocols import Dataset, Embed, Look, Views
from macl.probes.score import Score

if TYPE_CHECKING:
    from macl.runs import Run

ENCODER_FILE = "encoder.safetensors"
"""Name of a run's encoder weights."""

DataT = TypeVar("DataT", bound=Section)
ViewsT = TypeVar("ViewsT", bound=Section)
EncoderT = TypeVar("EncoderT", bound=Section)
EvaluationT = TypeVar("EvaluationT", bound=Section)


class Modality(abc.ABC, Generic[DataT, ViewsT, EncoderT, EvaluationT]):
    """The front door of a modality: four typed recipe sections and what is built from each."""

    name: str
    DataConfig: type[DataT]
    ViewsConfig: type[ViewsT]
    EncoderConfig: type[EncoderT]
    EvaluationConfig: type[EvaluationT]
    monitor_needs: str = "classes"
    """What has to be there for `monitor` to judge by, in words."""

    @abc.abstractmethod
    def load(self, config: DataT, split: str) -> Dataset:
        """The data of one split, "train" or "test"; raises `UserError` when it is not there."""

    @abc.abstractmethod
    def open(self, config: DataT, path: Path) -> Dataset:
        """A user's file or folder, read the way `config` reads, to be embedded."""

    @abc.abstractmethod
    def build_encoder(self, config: EncoderT, dataset: Dataset) -> nn.Module:
        """The encoder: `forward(view) -> (B, out_dim)` with an attribute `out_dim: int`."""

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """Write what `load_encoder` needs; by default the weights alone."""
        save_weights(encoder, folder / ENCODER_FILE, metadata)

    def export(
        self, encoder: nn.Module, views: ViewsT, folder: Path, metadata: Mapping[str, str]
    ) -> Path:
        """Write the encoder as other libraries read it; returns the file with its weights."""
        self.save_encoder(encoder, folder, metadata)
        return folder / ENCODER_FILE

    def reads_back(self, config: EncoderT, encoder: nn.Module, views: Views, folder: Path) -> bool:
        """Whether what `export` wrote to `folder` gives whoever opens it the encoder's features."""
        # The same network by construction: equal weights are equal features.
        again = self.load_encoder(config, folder).state_dict()
        state = encoder.state_dict()
        return all(torch.equal(value.cpu(), again[name]) for name, value in state.items())

    @abc.abstractmethod
    def load_encoder(self, config: EncoderT, folder: Path) -> nn.Module:
        """The trained encoder of a run, from its folder alone: its data need not be there."""

    @abc.abstractmethod
    def build_views(self, config: ViewsT, encoder: nn.Module) -> Views:
        """The views; text needs the encoder's tokenizer, the others ignore `encoder`."""

    def example(self, config: ViewsT) -> Tensor | None:
        """A view to trace the encoder with; None where its input is no single tensor."""
        return None

    def monitor(self, config: EvaluationT, train: Dataset) -> Look | None:
        """A quick look to take during training, larger is better; None where nothing can be judged.

        Called before training, so that what is wrong with its data is told before anything long.
        """
        return partial(knn_monitor, train) if has_classes(train) else None

    def data_key(self, path: Path, protocol: str | None = None) -> str:
        """The recipe key that `path` belongs to when a user brings it to these protocols."""
        return "data.path"

    def judge(
        self, run: Run, overrides: list[str], *, data: Path | None, protocol: str | None, best: bool
    ) -> list[Score]:
        """Judge a run on a user's behalf; see `macl.evaluation.evaluate`."""
        from macl.evaluation.evaluate import judge

        return judge(run, overrides, data=data, protocol=protocol, best=best)

    @abc.abstractmethod
    def evaluate(
        self,
        config: EvaluationT,
        data: DataT,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """Judge a frozen encoder by the protocols that `config` names."""
