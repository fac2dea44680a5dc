"""The paper's tables and figures as data: its numbers, and the runs behind them by scale."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import yaml
from pydantic import ConfigDict, Field, PositiveFloat, PositiveInt

from macl.core.errors import UserError, nearest
from macl.core.section import Section

if TYPE_CHECKING:
    from macl.experiments.compare import Setting

SCALES = ("smoke", "laptop", "paper")

Axes = dict[str, dict[str, dict[str, Any] | None]]
"""What varies: the overrides behind each label of the paper, given even where they equal the
recipe's values, so that the label's meaning is explicit; None: cited, never run."""


class _Data(Section):
    # Labels such as 64 or 0.5 are names here, not numbers.
    model_config = ConfigDict(coerce_numbers_to_str=True)


class Speed(_Data):
    """The speed that an estimate of hours assumes."""

    samples_per_second: PositiveFloat
    basis: str
    """The hardware and network that this is assumed or was measured for."""


class Scale(_Data):
    """The runs of a table at one scale."""

    recipe: str
    overrides: dict[str, Any] = Field(default_factory=dict)
    """For all runs, on top of the recipe: dotted key → value."""
    axes: Axes = Field(default_factory=dict)
    """Other overrides behind the same labels; labels left out are not run at this scale."""
    seeds: PositiveInt = 1
    metrics: dict[str, str] = Field(default_factory=dict)
    """Instead of the table's."""
    requires: dict[str, str] = Field(default_factory=dict)
    """Keys that the user has to set, and what each is for."""
    extras: tuple[str, ...] = ()
    """Of the package, besides the one of the recipe's modality."""
    gpu: str = ""
    """Which GPUs it takes; empty: none."""
    items: PositiveInt | dict[str, PositiveInt]
    """Training items, or by label where the data vary."""
    speed: Speed
    notes: tuple[str, ...] = ()
    """Differences from the paper that are not keys of a recipe."""

    def items_of(self, setting: Setting) -> int:
        """Training items of the run of `setting`."""
        if isinstance(self.items, int):
            return self.items
        return next(self.items[label] for _, label in setting if label in self.items)


@dataclass(frozen=True)
class Published:
    """A number of the paper."""

    value: float
    std: float | None = None
    """Where the paper reports one."""

    @classmethod
    def of(cls, written: float | str) -> Published:
        """From 82.31, or from "77.87±0.41"."""
        value, _, std = str(written).partition("±")
        return cls(float(value), float(std) if std else None)

    def text(self, decimals: int) -> str:
        """As the paper writes it."""
        spread = "" if self.std is None else f" ± {self.std:.{decimals}f}"
        return f"{self.value:.{decimals}f}{spread}"


class PaperTable(_Data):
    """A table or figure of the paper."""

    name: str
    where: str
    """Its number in the paper."""
    title: str
    axes: Axes = Field(default_factory=dict)
    """The first label that is run on the first axis is the baseline."""
    metrics: dict[str, str] = Field(default_factory=dict)
    """The paper's columns, and our score for each."""
    numbers: dict[str, Any] = Field(default_factory=dict)
    """The paper's numbers by metric, then by the label on each axis in turn."""
    decimals: int = 2
    figure: Literal["bars", "map", "gradient-scale"] | None = None
    notes: tuple[str, ...] = ()
    scales: dict[Literal["smoke", "laptop", "paper"], Scale] = Field(default_factory=dict)
    """None for what is computed without a run."""

    def published(self) -> dict[tuple[str, Setting], Published]:
        """The paper's numbers by metric and setting."""
        found = {}
        for metric, setting in itertools.product(self.metrics, self.labels()):
            number = self.numbers.get(metric)
            for _, label in setting:
                number = {str(key): below for key, below in (number or {}).items()}.get(label)
            if number is not None:
                found[metric, setting] = Published.of(number)
        return found

    def scale(self, name: str) -> Scale | None:
        """The runs at a scale; None where the table needs none. `UserError` for a wrong name."""
        if name not in SCALES:
            raise UserError(f"no scale is called {name!r}.{nearest(name, SCALES)}")
        return self.scales[name] if self.scales else None  # type: ignore[index]

    def labels(self) -> list[Setting]:
        """Every place of the paper's grid, run or cited."""
        grid = itertools.product(*self.axes.values())
        return [tuple(zip(self.axes, chosen, strict=True)) for chosen in grid]

    def settings(self, scale: Scale) -> list[tuple[Setting, dict[str, Any]]]:
        """What is run at a scale: the labels and the overrides behind them."""
        axes = {name: scale.axes.get(name, values) for name, values in self.axes.items()}
        run = [
            [(name, label, own) for label, own in values.items() if own is not None]
            for name, values in axes.items()
        ]
        return [
            (
                tuple((name, label) for name, label, _ in chosen),
                {key: value for *_, own in chosen for key, value in own.items()},
            )
            for chosen in itertools.product(*run)
        ]


def available() -> dict[str, Path]:
    """The tables and figures that come with the package, by name."""
    folder = Path(str(resources.files("macl.paper"))) / "yaml"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def load(name: str) -> PaperTable:
    """A table or figure by its name."""
    shipped = available()
    if name not in shipped:
        raise UserError(f"no table or figure is called {name!r}.{nearest(name, shipped)}")
    values = yaml.safe_load(shipped[name].read_text(encoding="utf-8"))
    return PaperTable.model_validate({"name": name, **values})
