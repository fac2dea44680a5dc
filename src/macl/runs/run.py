"""A run is a folder: its recipe, its metrics, its checkpoints, its encoder, its results."""

from __future__ import annotations

import csv
import json
import warnings
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

from macl import modalities, recipes
from macl.core.devices import Placement, place
from macl.core.errors import SkippedInputWarning, UserError
from macl.core.files import remove_partial, write_text
from macl.core.inside import refuse_foreign_parts
from macl.core.remote import on_network
from macl.core.torch_files import within
from macl.core.weights import load_state
from macl.modalities.base import ENCODER_FILE, Modality
from macl.modalities.embedding import embedder
from macl.modalities.protocols import Dataset, Embed, Views
from macl.modalities.tuning import merged, tune
from macl.probes.score import BEST, LAST, Score
from macl.recipes import Overrides, Recipe

PLACE = ("protocol", "task", "metric", "split")
"""The keys by which the scores of an encoder differ."""

ENCODER_PREFIX = "method.encoder."
"""How the names of the encoder's weights begin in a checkpoint."""


@dataclass(frozen=True)
class Run:
    """The folder of a run and what is in it."""

    folder: Path
    placement: Placement = field(default_factory=place, compare=False)
    """Where its encoder runs."""

    @classmethod
    def open(cls, folder: Path, placement: Placement | None = None) -> Run:
        """An existing run whose parts do not lead out of it, and whose recipe imports no code."""
        recipes.require_run(folder)
        refuse_foreign_parts(folder)
        run = cls(folder, placement or place())
        recipes.refuse_imports(run.recipe, run.recipe_file)
        return run

    @classmethod
    def create(cls, folder: Path, recipe: Recipe) -> Run:
        """Make the folder and store the resolved recipe."""
        run = cls(folder)
        write_text(run.recipe_file, recipes.dump(recipe))
        return run

    @property
    def recipe_file(self) -> Path:
        """The resolved recipe."""
        return self.folder / "recipe.yaml"

    @property
    def metrics_file(self) -> Path:
        """One row per logged step."""
        return self.folder / "metrics.csv"

    @property
    def last_checkpoint(self) -> Path:
        """Where a resumed training continues."""
        return self.folder / "checkpoints" / "last.ckpt"

    @property
    def results_file(self) -> Path:
        """The scores of evaluations."""
        return self.folder / "results.json"

    @property
    def is_finished(self) -> bool:
        """Whether training ended: the encoder is written last."""
        return (self.folder / ENCODER_FILE).is_file()

    @cached_property
    def recipe(self) -> Recipe:
        """The recipe that made this run."""
        return recipes.resolve_file(str(self.recipe_file))

    def data_config(self, overrides: Overrides | None = None) -> Any:
        """The data section of the recipe with overrides, whose keys are all below "data."."""
        for key in overrides or ():
            if not key.startswith("data."):
                raise UserError(
                    f"{key}: the run is trained; only how data is read can still be set, with "
                    "data.KEY=VALUE."
                )
        return recipes.override(self.recipe, overrides or {}).data

    def open_data(self: Any, source: Path, overrides: Overrides | None = None) -> Dataset:
        """A user's file or folder, read as the recipe reads its data, to be embedded.

        The recipe's `limit` is for training; one among the overrides counts.
        """
        config = self.data_config(overrides)
        useful = self.modality.open_keys
        for key in overrides or ():
            name = key.removeprefix("data.")
            if useful is not None and name not in useful:
                raise UserError(
                    f"{key} has no effect on what is embedded. Of the data section there are: "
                    f"{', '.join(sorted(useful))}."
                )
        if "data.limit" not in (overrides or {}) and "limit" in type(config).model_fields:
            config = config.model_copy(update={"limit": None})
        if on_network(source) and "download" in type(config).model_fields:
            config = config.model_copy(update={"download": True})
        dataset: Dataset = self.modality.open(config, source)
        return dataset

    @cached_property
    def modality(self) -> Modality:
        """The modality of the recipe."""
        return modalities.get(self.recipe.modality)

    @cached_property
    def encoder(self) -> nn.Module:
        """The trained encoder in eval mode; of an unfinished run that of its last checkpoint."""
        if self.is_finished:
            return self._stored_encoder(self.folder)
        if self.last_checkpoint.is_file():
            return self._unfinished_encoder().eval()
        if self.has_best:
            self._note_unfinished("its best monitored encoder")
            return self.best_encoder
        raise UserError(
            f"{self.folder} has no encoder yet: its training did not end. Continue "
            f"with `macl.train({str(self.folder)!r}, resume=True)`."
        )

    @property
    def has_best(self) -> bool:
        """Whether the encoder with the highest monitored score was kept, in the folder BEST."""
        return (self.folder / BEST / ENCODER_FILE).is_file()

    @cached_property
    def best_encoder(self) -> nn.Module:
        """The encoder with the highest monitored score, in eval mode; see `encoder`."""
        if not self.has_best:
            raise UserError(f"{self.folder} kept no best encoder: nothing was monitored.")
        return self._stored_encoder(self.folder / BEST)

    def _stored_encoder(self, folder: Path) -> nn.Module:
        with within(folder):
            return self.modality.load_encoder(self.recipe.encoder, folder).eval()

    def _unfinished_encoder(self) -> nn.Module:
        """The encoder as the last checkpoint has it, built as training built it."""
        # Imports Lightning, which takes a second and is needed for unfinished runs alone.
        from macl.core.checkpoints import SafeCheckpointIO

        checkpoint = SafeCheckpointIO().load_checkpoint(self.last_checkpoint)
        state = {
            name.removeprefix(ENCODER_PREFIX): value
            for name, value in checkpoint.get("state_dict", {}).items()
            if name.startswith(ENCODER_PREFIX)
        }
        train = self.modality.load(self.recipe.data, "train")
        with within(self.last_checkpoint):
            encoder = self.modality.build_encoder(self.recipe.encoder, train)
        if self.recipe.precision == "64":
            encoder.double()
        tune(encoder, self.recipe.encoder)
        load_state(encoder, state, self.last_checkpoint)
        encoder = merged(encoder)
        step, epoch = checkpoint.get("global_step", 0), checkpoint.get("epoch", 0)
        self._note_unfinished(f"the encoder of its last checkpoint (epoch {epoch}, step {step})")
        return encoder

    def _note_unfinished(self, which: str) -> None:
        warnings.warn(
            f"{self.folder} is unfinished: {which} is used. "
            f"`macl.train({str(self.folder)!r}, resume=True)` finishes it.",
            SkippedInputWarning,
            stacklevel=3,
        )

    @cached_property
    def views(self) -> Views:
        """The views of the recipe; `plain` is what embedding uses."""
        return self.modality.build_views(self.recipe.views, self.encoder)

    @cached_property
    def embed(self) -> Embed:
        """Encode a data set with this run's encoder."""
        workers = self.recipe.workers
        return embedder(self.encoder, self.views, workers=workers, placement=self.placement)

    def metrics(self) -> list[dict[str, float]]:
        """The rows of metrics.csv; empty cells are left out."""
        if not self.metrics_file.is_file():
            return []
        try:
            with self.metrics_file.open(newline="") as file:
                return [{k: float(v) for k, v in row.items() if v} for row in csv.DictReader(file)]
        except (OSError, ValueError, TypeError, csv.Error) as error:
            raise _damaged(self.metrics_file, error) from error

    def results(self) -> dict[str, Any]:
        """What results.json holds; empty before the first evaluation."""
        if not self.results_file.is_file():
            return {}
        try:
            document = json.loads(self.results_file.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise _damaged(self.results_file, error) from error
        if not isinstance(document, dict):
            raise _damaged(self.results_file, "it does not hold a JSON object")
        scores = document.get("scores", [])
        whole = isinstance(scores, list) and all(isinstance(score, dict) for score in scores)
        if not whole or not all(isinstance(s.get(key), str) for s in scores for key in PLACE):
            raise _damaged(self.results_file, "its scores are not a list of scores")
        return document

    def record(self, scores: list[Score]) -> None:
        """Add scores to results.json, in place of those of the same encoder, protocol and task."""

        def place(score: dict[str, Any]) -> tuple[str, ...]:
            # Earlier versions recorded the last encoder alone, and did not say so.
            return (score.get("encoder", LAST), *(score[key] for key in PLACE))

        kept = {place(score): score for score in self.results().get("scores", [])}
        kept |= {place(s): s for s in (score.as_dict() for score in scores)}
        document = {
            "recipe": self.recipe.name,
            "seed": self.recipe.seed,
            "versions": {name: version(name) for name in ("macl", "torch")},
            "scores": list(kept.values()),
        }
        remove_partial(self.folder)
        write_text(self.results_file, json.dumps(document, indent=2, default=str))


def _damaged(path: Path, error: object) -> UserError:
    return UserError(f"{path} cannot be read ({error}). Remove it, or make it again.")
