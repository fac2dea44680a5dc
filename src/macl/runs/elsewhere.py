"""Encoders of runs and of elsewhere: opened, and given what they embed."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from torch import nn

from macl import modalities, recipes
from macl.core.devices import Placement, place
from macl.core.errors import UserError, nearest
from macl.core.torch_files import within
from macl.modalities.base import Modality
from macl.modalities.embedding import embedder
from macl.modalities.hub import local_encoder
from macl.modalities.protocols import Dataset, Embed
from macl.recipes import Overrides, Sections
from macl.runs.run import Run

RunLike = str | os.PathLike[str] | Run
"""A run or the path of its folder."""


@dataclass(frozen=True)
class Elsewhere:
    """An opened encoder with its modality and the sections by which it reads and prepares data."""

    modality: Modality
    encoder: nn.Module
    sections: Sections
    placement: Placement
    """Where the encoder runs."""

    @classmethod
    def open(
        cls,
        name: str,
        overrides: Overrides | None = None,
        *,
        modality: str | None = None,
        placement: Placement | None = None,
    ) -> Elsewhere:
        """Open a file, a folder or a name, by default of the first modality that recognizes it."""
        chosen = modalities.get(modality) if modality is not None else recognize(name)
        resolve = partial(recipes.resolve_sections, chosen.name, overrides=overrides)
        path = Path(name).expanduser()
        with within(path) if path.exists() else nullcontext():
            encoder, sections = chosen.open_encoder(name, resolve)
        return cls(chosen, encoder.eval(), sections, placement or place())

    def data_config(self, overrides: Overrides | None = None) -> Any:
        """The data section with overrides, whose keys are all below "data."."""
        values = {"data": self.sections.data.model_dump()}
        return recipes.resolve_sections(self.modality.name, values, overrides).data

    open_data = Run.open_data

    @cached_property
    def embed(self) -> Embed:
        """Encode a data set with this encoder."""
        views = self.modality.build_views(self.sections.views, self.encoder)
        return embedder(self.encoder, views, placement=self.placement)


def run_folder(run: RunLike) -> Path:
    """The folder of a run."""
    return Path(run) if isinstance(run, str | os.PathLike) else run.folder


def open_run(run: RunLike, device: str = "auto", precision: str = "auto") -> Run:
    """An existing run; `UserError` when the folder is none, or the device is not there."""
    return Run.open(run_folder(run), place(device, precision))


def open_encoder(
    run: RunLike | Elsewhere, device: str = "auto", precision: str = "auto"
) -> Run | Elsewhere:
    """A run, or an encoder from elsewhere: a folder, a file, a name, hf:NAME in the local cache."""
    if isinstance(run, Elsewhere):
        return run
    if isinstance(run, Run) or (Path(run) / "recipe.yaml").is_file():
        return open_run(run, device, precision)
    return Elsewhere.open(local_encoder(str(run)), placement=place(device, precision))


@contextmanager
def opened_items(
    run: Run | Elsewhere, source: Any, overrides: Overrides | None
) -> Iterator[Dataset]:
    """The data set that `source` stands for: a path, a list of lines or objects, or itself."""
    if isinstance(source, str | os.PathLike):
        yield run.open_data(Path(source), overrides)
    elif not isinstance(source, list | tuple):
        yield source
    elif not all(isinstance(line, str) for line in source):
        yield run.modality.from_objects(run.data_config(), source)
    elif (suffix := run.modality.line_suffix) is None:
        raise UserError(
            f"lines of text are not valid input for {run.modality.name}: give a file or a folder."
        )
    else:
        lines = [" ".join(text.splitlines()) for text in source]
        empty = next((number for number, line in enumerate(lines, 1) if not line.strip()), None)
        if empty is not None:
            raise UserError(f"entry {empty} of {len(lines)} is empty: leave it out.")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"lines{suffix}"
            file.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            yield run.open_data(file, overrides)


def recognize(name: str) -> Modality:
    """The first modality that recognizes an encoder; `UserError` with what each can open."""
    forms: list[str] = []
    known: list[str] = []
    for each in modalities.names():
        try:
            modality = modalities.get(each)
        except UserError:  # its extra is not installed
            continue
        if modality.recognizes_encoder(name):
            return modality
        forms.append(f"{each}: {modality.encoder_forms}")
        known += modality.encoder_names()
    within = [*Path(name).glob("encoder"), *sorted(Path(name).glob("runs/*/"))]
    if within:
        raise UserError(f"{name} is neither a run nor an encoder; it holds one: {within[0]}.")
    raise UserError(
        f"{name} is not a run (`macl.train('RECIPE', out={name!r})` makes one), and no modality "
        f"recognizes it as an encoder.{nearest(name, known)} An encoder is\n  " + "\n  ".join(forms)
    )
