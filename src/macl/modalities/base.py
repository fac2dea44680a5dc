"""The contract of a modality: a required core and optional parts with defaults.

All else uses these methods alone, so that a new modality, also of another package, is a subclass.
Sections are typed `Any` here; a modality names its own types.
"""

from __future__ import annotations

import abc
import json
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from macl.core.errors import UserError
from macl.core.section import Section
from macl.core.weights import load_weights, read_metadata, save_weights
from macl.modalities.embedding import knn_monitor
from macl.modalities.protocols import Dataset, Embed, Graph, Items, Monitor, Views
from macl.modalities.splits import has_classes
from macl.probes.score import Score
from macl.recipes import Overrides, Recipe, Sections

ENCODER_FILE = "encoder.safetensors"
"""Name of a run's encoder weights."""

MODALITY_KEY = "modality"
"""Where the header of that file names the modality."""

Resolve = Callable[[Mapping[str, Any]], Sections]
"""Values of sections → typed sections, with the user's overrides."""


class Modality(abc.ABC):
    """A modality: a core, which a subclass must write, and parts with defaults, which it may."""

    # Required: the name, the four recipe sections, and what is built from each.

    name: ClassVar[str]
    sections: ClassVar[Mapping[str, type[Section]]]
    """The types of the sections data, views, encoder and evaluation."""

    @abc.abstractmethod
    def load(self, config: Any, split: str) -> Dataset:
        """The data of one split, "train" or "test"; raises `UserError` when it is not there."""

    @abc.abstractmethod
    def open(self, config: Any, path: Path) -> Dataset:
        """A user's file or folder, read the way `config` reads, to be embedded."""

    @abc.abstractmethod
    def build_encoder(self, config: Any, dataset: Any) -> nn.Module:
        """The encoder: `forward(view) -> (B, out_dim)` with an attribute `out_dim: int`.

        `dataset` is the training data; None where the weights of a run follow.
        """

    @abc.abstractmethod
    def build_views(self, config: Any, encoder: nn.Module) -> Views:
        """The views; text needs the encoder's tokenizer, the others ignore `encoder`."""

    @abc.abstractmethod
    def evaluate(
        self, config: Any, data: Any, embed: Embed, encoder: nn.Module, seed: int
    ) -> list[Score]:
        """Evaluate a frozen encoder by the protocols that `config` names."""

    # Optional: other sources of data, and what a report shows of an item.

    has_splits: ClassVar[bool] = True
    """Whether train and test are different items; False: both are the whole set."""
    open_keys: ClassVar[frozenset[str] | None] = None
    """Keys of the data section that `open` uses; others are refused there. None: all."""
    line_suffix: ClassVar[str | None] = None
    """Type of a file with one item per line, for items given as text; None: items are not text."""

    def from_objects(self, config: Any, items: Sequence[Any]) -> Dataset:
        """A data set of Python objects, for `macl.train(data=[…])`; by default `UserError`."""
        raise UserError(
            f"a list of {type(items[0]).__name__ if items else 'nothing'} is not data for "
            f"{self.name}: give a file, a folder, or a macl.modalities.protocols.Dataset."
        )

    def data_overrides(self, path: Path, protocols: Sequence[str] | None = None) -> Overrides:
        """The overrides that the path `data` stands for when these protocols are asked for."""
        return {"data.path": path}

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """What a page shows for the items at `indices`; by default their names."""
        return Items([dataset.names[i] for i in indices])

    def facing(self, dataset: Dataset, indices: Sequence[int]) -> tuple[Dataset, Tensor] | None:
        """The M distinct items of the other side of paired data, and what belongs together.

        That is (P, 2) int64: item `indices[i]` and item j of the other side. None: no other side.
        """
        return None

    # Optional: pretrained encoders, encoders from elsewhere, and export.

    encoder_forms: ClassVar[str] = f"an exported folder or its {ENCODER_FILE}"
    """What `open_encoder` takes, for help and messages."""
    layouts: ClassVar[Mapping[str, str]] = {}
    """Further forms that `export_layout` writes: name → what it is for."""
    library: ClassVar[str] = "pytorch"
    """The library that opens exported encoders, as model hubs call it."""
    adapt_recipe: ClassVar[str | None] = None
    """The recipe by which `macl.adapt` adapts a pretrained encoder; None: it adapts runs alone."""

    def load_encoder(self, config: Any, folder: Path) -> nn.Module:
        """The trained encoder of a run, from its folder alone: its data need not be there."""
        return with_weights(self.build_encoder(config, None), folder)

    def start_from(self, name: str, weights: Path | None) -> Overrides:
        """The overrides that make a recipe begin with a pretrained encoder; `weights` is a file."""
        return {"encoder.name": name}

    def settle(self, recipe: Recipe) -> Recipe:
        """The recipe with what a pretrained encoder's own configuration decides filled in."""
        return recipe

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """Write what `load_encoder` needs; by default the weights alone."""
        save_weights(encoder, folder / ENCODER_FILE, {**metadata, MODALITY_KEY: self.name})

    def recognizes_encoder(self, name: str) -> bool:
        """Whether `open_encoder` can open `name`; by default what `export` wrote."""
        file = exported_file(name)
        return file is not None and read_metadata(file).get(MODALITY_KEY) == self.name

    def encoder_names(self) -> Sequence[str]:
        """Names that `open_encoder` knows besides files and folders, to suggest the nearest."""
        return ()

    def has_weights(self, name: str) -> bool | None:
        """Whether the pretrained weights that a name stands for are here; None: it has none."""
        return None

    def open_encoder(self, name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
        """An encoder that is not part of a run, and the sections to evaluate it with.

        `resolve` types the values that `name`, one of `encoder_forms`, implies for the sections.
        """
        file = exported_file(name)
        if file is None:
            raise UserError(f"{name}: not an encoder of {self.name}; give {self.encoder_forms}.")
        sections = resolve(stored_sections(file))
        return self.load_encoder(sections.encoder, file.parent), sections

    def graphs(self, encoder: nn.Module, config: Any) -> Sequence[Graph]:
        """What `export` writes as ONNX, by the section of the views; by default nothing."""
        return ()

    def export(
        self, encoder: nn.Module, views: Any, folder: Path, metadata: Mapping[str, str]
    ) -> Path:
        """Write the encoder as other libraries read it; returns the file with its weights."""
        self.save_encoder(encoder, folder, metadata)
        return folder / ENCODER_FILE

    def export_layout(
        self, layout: str, encoder: nn.Module, views: Any, folder: Path, metadata: Mapping[str, str]
    ) -> str:
        """Write the encoder in one of `layouts` as well; returns the name of what was written."""
        raise NotImplementedError(f"{self.name} has no layout {layout!r}")

    def reads_back(self, config: Any, encoder: nn.Module, views: Views, folder: Path) -> bool:
        """Whether what `export` wrote to `folder` gives the encoder's features when opened."""
        # The same network by construction: equal weights are equal features.
        again = self.load_encoder(config, folder).state_dict()
        state = encoder.state_dict()
        return all(torch.equal(value.cpu(), again[name]) for name, value in state.items())

    def usage(self, encoder: nn.Module, views: Any) -> tuple[str, Sequence[str]]:
        """For the model card: the library that opens an export, and lines of code that do."""
        return self.library, ('vectors = macl.embed("FOLDER", items).values',)

    def preparation(self, data: Any, views: Any) -> str:
        """What is done to an item before it is encoded; empty where the code above does it all."""
        return ""

    # Optional: scores during training, and protocols that depend on the data.

    monitor_needs: ClassVar[str] = "classes"
    """What the data must have for `monitor`."""

    def input_settings(self, config: Any) -> dict[str, Any]:
        """How `build_views` prepares an input for evaluation, to be stored with every score."""
        return {}

    def implied_protocols(self, path: Path, config: Any) -> Sequence[str] | None:
        """The protocols that the path `data` asks for by what is there; None: those of `config`."""
        return None

    def complete(self, config: Any, views: Any, folder: Path | None) -> Any:
        """The evaluation section with what it leaves to its surroundings filled in.

        `views` are of the same recipe; in `folder`, the run's, a protocol may keep files.
        """
        return config

    def monitor(self, config: Any, train: Dataset) -> Monitor | None:
        """A quick score to take during training; None where the data has nothing to score by.

        Called before training, so that mistakes in its data are reported before anything long.
        """
        return partial(knn_monitor, train) if has_classes(train) else None

    def monitor_title(self, config: Any) -> str:
        """What `monitor` measures, for the axis of a chart."""
        return "kNN accuracy"

    def runnable_protocols(self, config: Any, train: Dataset) -> tuple[str, ...]:
        """The protocols that a run with this training data can be evaluated by, by default.

        Empty: they need labels, or files that `config` does not name.
        """
        return tuple(getattr(config, "protocols", ())) if has_classes(train) else ()


def with_weights(encoder: Any, folder: Path) -> Any:
    """The encoder, with the weights of the run or the export in `folder`."""
    load_weights(encoder, folder / ENCODER_FILE)
    return encoder


def exported_file(name: str) -> Path | None:
    """The weights in an exported folder, or the same file named directly."""
    path = Path(name).expanduser()
    file = path / ENCODER_FILE if path.is_dir() else path
    return file if file.name == ENCODER_FILE and file.is_file() else None


def stored_sections(file: Path) -> dict[str, Any]:
    """The sections encoder and views in the header of an exported encoder."""
    header = read_metadata(file)
    try:
        return {key: json.loads(header[key]) for key in ("encoder", "views") if key in header}
    except ValueError as error:
        raise UserError(f"{file}: its header is damaged ({error}). Export it again.") from error
