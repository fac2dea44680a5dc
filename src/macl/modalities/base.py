"""The contract of a modality: its recipe sections, and all that other packages ask of it.

The trainer, the methods, evaluation, reports and the command line use these methods and nothing
else, so a new modality, also one of another package, is a class like this and no change elsewhere.
Methods without a default say what a modality is; the others describe special cases.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar

import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.section import Section
from macl.core.weights import read_metadata, save_weights
from macl.modalities.items import Items
from macl.modalities.monitor import has_classes, knn_monitor
from macl.modalities.onnx_graphs import Graph
from macl.modalities.protocols import Dataset, Embed, Monitor, Views
from macl.probes.score import Score
from macl.recipes import Overrides, Sections

ENCODER_FILE = "encoder.safetensors"
"""Name of a run's encoder weights."""

MODALITY_KEY = "modality"
"""Where the header of that file names the modality."""

Resolve = Callable[[Mapping[str, Any]], Sections]
"""Values of sections → typed sections, with the user's overrides."""

DataT = TypeVar("DataT", bound=Section)
ViewsT = TypeVar("ViewsT", bound=Section)
EncoderT = TypeVar("EncoderT", bound=Section)
EvaluationT = TypeVar("EvaluationT", bound=Section)


class Modality(abc.ABC, Generic[DataT, ViewsT, EncoderT, EvaluationT]):
    """A modality: four typed recipe sections and what is built from each."""

    name: ClassVar[str]
    DataConfig: type[DataT]
    ViewsConfig: type[ViewsT]
    EncoderConfig: type[EncoderT]
    EvaluationConfig: type[EvaluationT]
    has_splits: ClassVar[bool] = True
    """Whether train and test are different items; False: both are the whole set."""
    open_keys: ClassVar[frozenset[str] | None] = None
    """Keys of the data section that `open` uses; an override of another one has no effect there
    and is refused. None: all."""
    encoder_forms: ClassVar[str] = f"an exported folder or its {ENCODER_FILE}"
    """What `open_encoder` takes, for help and messages."""
    layouts: ClassVar[Mapping[str, str]] = {}
    """Further forms that `export_layout` writes: name → what it is for."""
    library: ClassVar[str] = "pytorch"
    """The library that opens exported encoders, as model hubs call it."""
    line_suffix: ClassVar[str | None] = None
    """Type of a file with one item per line, for items given as text; None: they are no text."""
    monitor_needs: ClassVar[str] = "classes"
    """What the data must have for `monitor`."""

    # Data.

    @abc.abstractmethod
    def load(self, config: DataT, split: str) -> Dataset:
        """The data of one split, "train" or "test"; raises `UserError` when it is not there."""

    @abc.abstractmethod
    def open(self, config: DataT, path: Path) -> Dataset:
        """A user's file or folder, read the way `config` reads, to be embedded."""

    def from_objects(self, config: DataT, items: Sequence[Any]) -> Dataset:
        """A data set of Python objects, for `macl.train(data=[…])`; by default `UserError`."""
        raise UserError(
            f"a list of {type(items[0]).__name__ if items else 'nothing'} is no data for "
            f"{self.name}: give a file, a folder, or a macl.modalities.protocols.Dataset."
        )

    def data_overrides(self, path: Path, protocols: Sequence[str] | None = None) -> Overrides:
        """The overrides that `--data PATH` stands for when these protocols are asked for."""
        return {"data.path": path}

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """What a page shows for the items at `indices`; by default their names."""
        return Items([dataset.names[i] for i in indices])

    def facing(self, dataset: Dataset, indices: Sequence[int]) -> tuple[Dataset, Tensor] | None:
        """The other side of paired items: its M distinct items, and what belongs together.

        Returns:
            The items, and (P, 2) int64: item `indices[i]` and item j of the other side. None where
            items have no other side.
        """
        return None

    # Encoders and views.

    @abc.abstractmethod
    def build_encoder(self, config: EncoderT, dataset: Dataset) -> nn.Module:
        """The encoder: `forward(view) -> (B, out_dim)` with an attribute `out_dim: int`."""

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """Write what `load_encoder` needs; by default the weights alone."""
        save_weights(encoder, folder / ENCODER_FILE, {**metadata, MODALITY_KEY: self.name})

    @abc.abstractmethod
    def load_encoder(self, config: EncoderT, folder: Path) -> nn.Module:
        """The trained encoder of a run, from its folder alone: its data need not be there."""

    @abc.abstractmethod
    def build_views(self, config: ViewsT, encoder: nn.Module) -> Views:
        """The views; text needs the encoder's tokenizer, the others ignore `encoder`."""

    def example(self, config: ViewsT) -> Tensor | None:
        """A view to trace the encoder with; None where its input is no single tensor."""
        return None

    def graphs(self, encoder: nn.Module, config: ViewsT) -> Sequence[Graph]:
        """What `export` writes as ONNX; by default the encoder, where it has an `example`."""
        example = self.example(config)
        return [] if example is None else [Graph("encoder.onnx", encoder, {"input": example})]

    def recognises_encoder(self, name: str) -> bool:
        """Whether `open_encoder` can open `name`; by default what `export` wrote."""
        file = _exported_file(name)
        return file is not None and read_metadata(file).get(MODALITY_KEY) == self.name

    def encoder_names(self) -> Sequence[str]:
        """Names that `open_encoder` knows besides files and folders, to suggest the nearest."""
        return ()

    def has_weights(self, name: str) -> bool | None:
        """Whether the pre-trained weights that an encoder's name stands for are on this machine.

        Nothing is fetched. None: the name stands for no pre-trained weights.
        """
        return None

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """An encoder that is not part of a run, and the sections to evaluate it with.

        Args:
            name: a file, a folder or a name; see `encoder_forms`.
            resolve: types the values that `name` implies for the sections, with the overrides.
        """
        file = _exported_file(name)
        if file is None:
            raise UserError(f"{name}: not an encoder of {self.name}; give {self.encoder_forms}.")
        sections = resolve(_stored_sections(file))
        return self.load_encoder(sections.encoder, file.parent), sections

    # Export.

    def export(
        self, encoder: nn.Module, views: ViewsT, folder: Path, metadata: Mapping[str, str]
    ) -> Path:
        """Write the encoder as other libraries read it; returns the file with its weights."""
        self.save_encoder(encoder, folder, metadata)
        return folder / ENCODER_FILE

    def export_layout(
        self,
        layout: str,
        encoder: nn.Module,
        views: ViewsT,
        folder: Path,
        metadata: Mapping[str, str],
    ) -> str:
        """Write the encoder in one of `layouts` as well; returns the name of what was written."""
        raise NotImplementedError(f"{self.name} has no layout {layout!r}")

    def reads_back(self, config: EncoderT, encoder: nn.Module, views: Views, folder: Path) -> bool:
        """Whether what `export` wrote to `folder` gives the encoder's features when opened."""
        # The same network by construction: equal weights are equal features.
        again = self.load_encoder(config, folder).state_dict()
        state = encoder.state_dict()
        return all(torch.equal(value.cpu(), again[name]) for name, value in state.items())

    # Evaluation.

    @abc.abstractmethod
    def evaluate(
        self,
        config: EvaluationT,
        data: DataT,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """Evaluate a frozen encoder by the protocols that `config` names."""

    def implied_protocols(self, path: Path, config: EvaluationT) -> Sequence[str] | None:
        """The protocols that `--data PATH` asks for by what is there; None: those of `config`."""
        return None

    def complete(self, config: EvaluationT, views: ViewsT, folder: Path | None) -> EvaluationT:
        """The evaluation section with what it leaves to its surroundings filled in.

        Args:
            config: as the recipe and the user give it.
            views: of the same recipe.
            folder: of the run, where a protocol may keep files; None without a run.
        """
        return config

    def monitor(self, config: EvaluationT, train: Dataset) -> Monitor | None:
        """A quick score to take during training; None where the data has nothing to score by.

        Called before training, so that mistakes in its data are reported before anything long.
        """
        return partial(knn_monitor, train) if has_classes(train) else None

    def monitor_title(self, config: EvaluationT) -> str:
        """What `monitor` measures, for the axis of a chart."""
        return "kNN accuracy"

    def sections(self) -> dict[str, type[Section]]:
        """The types of the recipe sections data, views, encoder and evaluation."""
        return {
            "data": self.DataConfig,
            "views": self.ViewsConfig,
            "encoder": self.EncoderConfig,
            "evaluation": self.EvaluationConfig,
        }


def _exported_file(name: str) -> Path | None:
    """The weights in an exported folder, or the same file named directly."""
    path = Path(name).expanduser()
    file = path / ENCODER_FILE if path.is_dir() else path
    return file if file.name == ENCODER_FILE and file.is_file() else None


def _stored_sections(file: Path) -> dict[str, Any]:
    """The sections encoder and views in the header of an exported encoder."""
    header = read_metadata(file)
    try:
        return {key: json.loads(header[key]) for key in ("encoder", "views") if key in header}
    except ValueError as error:
        raise UserError(f"{file}: its header is damaged ({error}). Export it again.") from error
