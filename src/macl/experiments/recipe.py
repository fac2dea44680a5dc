"""Recipes: typed YAML, one per method × data, every value overridable as key=value."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import (
    BaseModel,
    BeforeValidator,
    Field,
    PositiveInt,
    ValidationError,
    create_model,
)

from macl import modalities
from macl.config import Section, UserError, nearest
from macl.experiments.sections import LossConfig, MethodConfig
from macl.training.optimizers import OptimizerConfig
from macl.training.schedules import ScheduleConfig

ALLOW_IMPORTS = "MACL_ALLOW_IMPORTS"
"""Environment variable: 1 lets recipes from files import the code that they name."""


class Recipe(Section):
    """Everything that determines a run. The four sections of the modality are typed by it."""

    name: str
    description: str = ""
    needs: str = ""
    """What a person has to bring: data, GPUs. Empty: nothing, it runs as it is."""
    modality: Literal["images", "text", "graphs", "molecules"]
    data: Any
    views: Any
    encoder: Any
    method: MethodConfig
    loss: LossConfig
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: Any
    epochs: int = Field(default=100, ge=0)
    """0 keeps the encoder as it starts: what no pre-training gives."""
    batch_size: int = Field(default=256, ge=2)
    """The global batch: all processes together."""
    drop_last: bool = True
    """Leave out the last batch of an epoch when it is short."""
    accumulate: PositiveInt = 1
    """Batches per optimiser step. It adds no negatives: each batch is contrasted with itself."""
    chunk_size: int | None = Field(default=None, ge=2)
    """Samples that a process encodes at a time, for batches beyond its memory: the loss still sees
    the whole batch, for one more forward pass. Batch norm sees chunks. None: all at once."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do about a step with NaN or infinities; its batch is listed in faults/ anyway."""
    clip: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; None leaves it alone."""
    precision: Annotated[Literal["64", "32", "bf16", "16"], BeforeValidator(str)] = "32"
    seed: int = Field(default=0, ge=0)
    workers: int = Field(default=0, ge=0)
    """Processes that read data beside the training."""
    monitor_every: int = Field(default=10, ge=0)
    """Epochs between quick looks at the embedding (kNN where there are labels); 0 for never."""
    monitor_steps: int = Field(default=0, ge=0)
    """Optimiser steps between further such looks within an epoch; 0 for none."""
    save_every: PositiveInt = 500
    """Steps between checkpoints within an epoch; one is written after every epoch anyway."""


def available() -> dict[str, Path]:
    """The recipes that come with the package, by name."""
    folder = Path(str(resources.files("macl.experiments"))) / "recipes"
    return {path.stem: path for path in sorted(folder.glob("*.yaml"))}


def read(name: str) -> dict[str, Any]:
    """The values of a recipe by its name, or of a YAML file by its path."""
    shipped, path = available(), Path(name)
    if name in shipped:
        path = shipped[name]
    elif not (path.suffix in (".yaml", ".yml") and path.is_file()):
        raise UserError(f"no recipe is called {name!r}.{nearest(name, shipped)}")
    try:
        values = _yaml(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(values, dict):
        raise UserError(f"{path} must hold keys and values, as the shipped recipes do.")
    return {"name": path.stem, **values}


def resolve(values: Mapping[str, Any], overrides: Iterable[str] = ()) -> Recipe:
    """Values and `key=value` overrides, checked; a `UserError` names the key that is wrong."""
    plain = _plain_copy(values)
    name = plain.get("modality")
    if not isinstance(name, str):
        raise UserError(f"a recipe names its modality: one of {', '.join(modalities.NAMES)}.")
    model = _model(name)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals:
            raise UserError(f"{override!r} is no override; write key=value, such as epochs=20.")
        _assign(plain, model, key.strip(), _parse(text, key))
    try:
        return model.model_validate(plain)
    except ValidationError as error:
        raise UserError(_explain(error, model)) from None


def load(name: str, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by name or path, with overrides.

    What a file says about importing code does not count; see `refuse_imports`.
    """
    given = list(overrides)
    recipe = resolve(read(name), given)
    keys = {override.partition("=")[0].strip() for override in given}
    if not keys & {"encoder", "encoder.allow_import"}:
        refuse_imports(recipe, name)
    return recipe


def refuse_imports(recipe: Recipe, origin: str | Path) -> None:
    """`UserError` if a recipe from a file wants to run code that the user did not speak of.

    A file may come from anywhere, so it cannot give itself leave: the command line or the
    environment has to.
    """
    wanted = getattr(recipe.encoder, "allow_import", False)
    if wanted and os.environ.get(ALLOW_IMPORTS) != "1":
        raise UserError(
            f"{origin} would import and run Python code (encoder.name={recipe.encoder.name}). If "
            f"you trust it, say `macl --allow-imports …` or set {ALLOW_IMPORTS}=1."
        )


def dump(recipe: Recipe) -> str:
    """The resolved recipe as YAML; `resolve(yaml.safe_load(...))` gives the same recipe."""
    return yaml.safe_dump(recipe.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


@functools.cache
def _model(name: str) -> type[Recipe]:
    modality = modalities.get(name)
    sections: dict[str, Any] = {
        "modality": (Literal[name], ...),
        "data": (modality.DataConfig, Field(default_factory=modality.DataConfig)),
        "views": (modality.ViewsConfig, Field(default_factory=modality.ViewsConfig)),
        "encoder": (modality.EncoderConfig, Field(default_factory=modality.EncoderConfig)),
        "evaluation": (modality.EvaluationConfig, Field(default_factory=modality.EvaluationConfig)),
    }
    return create_model(f"{name.title()}Recipe", __base__=Recipe, **sections)


def _plain_copy(values: Any) -> Any:
    if isinstance(values, Mapping):
        return {str(key): _plain_copy(value) for key, value in values.items()}
    return values


def _parse(text: str, key: str) -> Any:
    try:
        return _yaml(text)
    except ValueError as error:
        raise UserError(f"the value of {key} cannot be read: {text!r}.") from error


class _Tree(yaml.SafeLoader):
    """YAML without aliases: a few lines of them can stand for more values than memory holds."""

    def compose_node(self, parent: Any, index: Any) -> Any:
        """A node of the document, unless it is a reference to another one."""
        if self.check_event(yaml.AliasEvent):
            raise yaml.YAMLError("write values out instead of referring to them with *")
        return super().compose_node(parent, index)


def _yaml(text: str) -> Any:
    try:
        return yaml.load(text, _Tree)
    # Besides its own errors PyYAML lets those of int(), date() and the like through.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(str(error)) from error


def _assign(values: dict[str, Any], model: type[BaseModel], key: str, value: Any) -> None:
    """Set a dotted key. A name given for a whole section picks another kind of that section:
    `loss=dcl` keeps whatever DCL has in common with the loss that stood there.
    """
    *parents, last = key.split(".")
    here, kinds = values, [model]
    for part in parents:
        kinds = _kinds(kinds, part, key)
        below = here.setdefault(part, {})
        if not isinstance(below, dict):
            raise UserError(f"{key}: {part} is a plain value and has no keys below it.")
        here = below
        kinds = [kind for kind in kinds if _name_of(kind) == here.get("name")] or kinds
    by_name = {_name_of(kind): kind for kind in _kinds(kinds, last, key)}
    by_name.pop(None, None)
    if isinstance(value, str) and value in by_name:
        before = here.get(last)
        kept = before if isinstance(before, dict) else {}
        fields = by_name[value].model_fields
        here[last] = {k: v for k, v in kept.items() if k in fields} | {"name": value}
    elif isinstance(value, str) and by_name and isinstance(here.get(last), dict):
        raise UserError(f"no {key} is called {value!r}.{nearest(value, map(str, by_name))}")
    else:
        here[last] = value


def _kinds(models: list[type[BaseModel]], part: str, key: str) -> list[type[BaseModel]]:
    """The models that the field `part` may hold; `UserError` when there is no such field."""
    fields = {n: f for m in models for n, f in m.model_fields.items()}
    if part not in fields:
        raise UserError(f"unknown key {key!r}.{nearest(part, fields)}")
    return [below for model in models for below in _models_below(model, part)]


def _models_below(model: type[BaseModel], part: str) -> list[type[BaseModel]]:
    field = model.model_fields.get(part)
    return [] if field is None else _models_in(field.annotation)


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    if get_origin(annotation) in (Union, UnionType, Annotated):
        return [model for part in get_args(annotation) for model in _models_in(part)]
    return []


def _name_of(model: type[BaseModel]) -> str | None:
    """The value of a `name: Literal["…"]` field that tells a section's kinds apart."""
    field = model.model_fields.get("name")
    names = get_args(field.annotation) if field is not None and field.is_required() else ()
    return names[0] if len(names) == 1 else None


def _explain(error: ValidationError, model: type[BaseModel]) -> str:
    lines = []
    for problem in error.errors():
        *above, last = problem["loc"] or ("recipe",)
        keys, kinds = _walk(model, above)
        if problem["type"] == "extra_forbidden":
            fields = {name for kind in kinds for name in kind.model_fields}
            lines.append(
                f"unknown key {'.'.join([*keys, str(last)])!r}.{nearest(str(last), fields)}"
            )
            continue
        key = ".".join(_walk(model, problem["loc"])[0])
        if problem["type"] == "missing":
            lines.append(f"{key} is missing.")
        else:
            lines.append(f"{key}: {problem['msg']} (got {problem.get('input')!r}).")
    return "the recipe is not right:\n  " + "\n  ".join(dict.fromkeys(lines))


def _walk(
    model: type[BaseModel], loc: Iterable[int | str]
) -> tuple[list[str], list[type[BaseModel]]]:
    """The recipe's keys along a pydantic location, and the models that may stand at its end."""
    keys: list[str] = []
    kinds = [model]
    for part in loc:
        named = [kind for kind in kinds if _name_of(kind) == part]
        fields = {name for kind in kinds for name in kind.model_fields}
        if named:  # the tag of a section's kind
            kinds = named
        elif isinstance(part, int) or part in fields:
            keys.append(str(part))
            kinds = [m for kind in kinds for m in _models_below(kind, str(part))]
    return keys, kinds
