"""What a modality is to the rest of the house: data, views, encoders, evaluation.

The engine, the methods and the command line talk to these few shapes and to nothing else, so a new
modality is a new folder with the same rooms and no change anywhere else.
"""

from __future__ import annotations

import abc
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor, nn

from macl.config import Section
from macl.weights import save_weights

if TYPE_CHECKING:
    from macl.runs import Run

ENCODER_FILE = "encoder.safetensors"
"""Name of a run's encoder weights."""

Inputs = Any
"""What `Dataset.collate` makes of samples: a tensor, a list of strings, a batch of graphs."""

View = Any
"""What an encoder takes: a tensor, a mapping of tensors, a batch of graphs."""


@runtime_checkable
class Dataset(Protocol):
    """A map-style dataset that knows what its items are called and, sometimes, what they are."""

    labels: Tensor | None
    """(N,) int64 classes, or None. Used by evaluation only, never by training."""

    names: Sequence[str]
    """What a person calls item i: a file name, a sentence, a SMILES string."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: int) -> Any: ...

    def collate(self, samples: list[Any]) -> Inputs:
        """Join samples into the inputs that views take, without randomness: that is the views'."""
        ...


@runtime_checkable
class Views(Protocol):
    """Two random views of a batch for training, one plain view for everything else.

    Randomness comes from torch's global generator of the device alone, which the engine seeds at
    every step; that is what makes a resumed run equal to an uninterrupted one.
    """

    def __call__(self, inputs: Inputs) -> tuple[View, ...]:
        """Two views; a third, where the data has one, holds hard negatives."""
        ...

    def plain(self, inputs: Inputs) -> View:
        """The inputs as they are, for evaluation and embedding."""
        ...


@dataclass(frozen=True)
class Score:
    """One number of an evaluation, with enough beside it to be honest about it."""

    protocol: str
    """How it was judged: "knn", "linear", "sts", "svm"."""
    metric: str
    """What the number is: "top1", "spearman", "roc-auc"."""
    value: float
    """In percent where the paper reports percent."""
    split: str = "test"
    task: str = ""
    """Which of several tasks ("STS12", "MR"); empty when there is only one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Settings and side figures: k, epochs, chosen C, standard deviation, number of items."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


Embed = Callable[[Dataset], Tensor]
"""A data set through the frozen encoder in eval mode, in order: (N, D) float32 on the CPU."""

Look = Callable[[Embed], Score | None]
"""Judges an encoder by how it embeds, quickly."""

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
        from macl.evaluation.monitor import has_classes, knn_monitor

        return partial(knn_monitor, train) if has_classes(train) else None

    def data_key(self, path: Path, protocol: str | None = None) -> str:
        """The recipe key that `path` belongs to when a user brings it to these protocols."""
        return "data.path"

    def judge(
        self, run: Run, overrides: list[str], *, data: Path | None, protocol: str | None, best: bool
    ) -> list[Score]:
        """Judge a run on a user's behalf; see `macl.evaluation.judge`."""
        from macl.evaluation.judge import judge

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
