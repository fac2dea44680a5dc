"""The typed recipe: everything that determines a run."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, Union, get_args

from pydantic import BaseModel, BeforeValidator, Field, PositiveInt, create_model, model_validator

from macl.core import plugins
from macl.core.section import Section
from macl.recipes.losses import LOSSES
from macl.recipes.methods import METHODS
from macl.recipes.optim import OptimizerConfig, ScheduleConfig

Kinds = tuple[type[Section], ...]


def _known_strategy(value: Any) -> Any:
    if value == "deepspeed":
        raise ValueError(
            "DeepSpeed is not offered: its engine needs CUDA, so nothing about it was tested. "
            "strategy=fsdp2 shards weights, gradients and the optimizer's state too"
        )
    return value


class Recipe(Section):
    """Everything that determines a run. The four sections of the modality are typed by it."""

    name: str
    description: str = ""
    requirements: str = ""
    """Data and hardware that the user provides; empty where it runs as it is."""
    modality: str
    data: Any
    views: Any
    encoder: Any
    method: Any
    loss: Any = None
    """None for a method that needs no loss."""
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: Any
    epochs: int = Field(default=100, ge=0)
    """0 keeps the initial encoder: the baseline without pre-training."""
    steps: PositiveInt | None = None
    """Optimizer steps to train for, in place of epochs."""
    stream: bool = False
    """Open shards as training needs them, without counting their samples first; needs `steps`."""
    batch_size: int = Field(default=256, ge=2)
    """The global batch: all processes together."""
    drop_last: bool = True
    """Leave out the last batch of an epoch when it is short."""
    accumulate_grad_batches: PositiveInt = 1
    """Batches per optimizer step. It adds no negatives: each batch is contrasted with itself."""
    chunk_size: int | None = Field(default=None, ge=2)
    """Samples that a process encodes at a time, for batches beyond its memory: the loss still sees
    the whole batch, for one more forward pass. Batch norm sees chunks. None: all at once."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do at a step with NaN or infinities; its batch is listed in faults/ in both cases."""
    gradient_clip: float | None = Field(default=None, gt=0)
    """Largest norm of the gradient; None: no clipping."""
    precision: Annotated[Literal["64", "32", "bf16", "16"], BeforeValidator(str)] = "32"
    seed: int = Field(default=0, ge=0)
    workers: int = Field(default=0, ge=0)
    """Processes that read data in parallel with training."""
    monitor_every: int = Field(default=10, ge=0)
    """Epochs between quick evaluations during training (kNN where there are labels); 0: none."""
    monitor_steps: int = Field(default=0, ge=0)
    """Optimizer steps between further quick evaluations within an epoch; 0: none."""
    patience: int = Field(default=0, ge=0)
    """Quick evaluations without a better score after which training stops; 0: it does not."""
    ema: float | None = Field(default=None, gt=0, lt=1)
    """Decay of a running mean of the encoder's weights, which the run then ends with."""
    evaluate_best: bool = False
    """Comparisons also evaluate the encoder with the best monitored score, as protocols do that
    select it on a development set."""
    loggers: tuple[Literal["tensorboard", "wandb", "mlflow"], ...] = ("tensorboard",)
    """Where metrics go beside metrics.csv; wandb and mlflow are extras."""
    save_every: PositiveInt = 500
    """Steps between checkpoints within an epoch; one is written after every epoch anyway."""
    save_minutes: float | None = Field(default=None, gt=0)
    """Minutes between checkpoints, beside `save_every`; looked at when a row is logged."""
    compile: bool = False
    """Compile the encoder with torch.compile."""
    activation_checkpointing: bool = False
    """Compute the encoder's activations twice, block by block, instead of keeping them."""
    strategy: Annotated[Literal["ddp", "fsdp2"], BeforeValidator(_known_strategy)] = "ddp"
    """Of several processes: fsdp2 shards weights, gradients and the optimizer's state over them."""
    matmul_precision: Literal["highest", "high", "medium"] = "highest"
    """Of float32 products on a GPU: high uses its TF32 units."""

    @model_validator(mode="after")
    def _method_has_its_loss(self) -> Self:
        if self.loss is None and self.method.needs_loss:
            raise ValueError(f"method {self.method.name} needs a loss, such as loss=macl")
        return self

    @property
    def length(self) -> str:
        """How long it trains: "20 epochs", "1000 steps"."""
        count, unit = (self.epochs, "epoch") if self.steps is None else (self.steps, "step")
        return f"{count} {unit if count == 1 else unit + 's'}"


class Sections(Section):
    """The four sections that a modality types: enough to evaluate an encoder, without training."""

    data: Any
    views: Any
    encoder: Any
    evaluation: Any


def sections_model(modality: str) -> type[Sections]:
    """`Sections` with the types of one modality."""
    fields = _modality_fields(modality)
    return create_model(f"{modality.title()}Sections", __base__=Sections, **fields)


def recipe_model(modality: str, wanted: Iterable[str] = ()) -> type[Recipe]:
    """The recipe class of a modality; `wanted` are names of losses and methods.

    Those that are other packages' are imported.
    """
    losses = _kinds("macl.losses", LOSSES, wanted)
    return _recipe_model(modality, losses, _kinds("macl.methods", METHODS, wanted))


@functools.cache
def _recipe_model(modality: str, losses: Kinds, methods: Kinds) -> type[Recipe]:
    fields: dict[str, Any] = {
        "modality": (Literal[modality], ...),
        "method": (Annotated[Union[methods], Field(discriminator="name")], ...),  # noqa: UP007
        "loss": (Annotated[Union[losses], Field(discriminator="name")] | None, None),  # noqa: UP007
        **_modality_fields(modality),
    }
    return create_model(f"{modality.title()}Recipe", __base__=Recipe, **fields)


def _modality_fields(name: str) -> dict[str, Any]:
    kinds = plugins.sections(name)
    return {key: (kind, Field(default_factory=kind)) for key, kind in kinds.items()}


def _kinds(group: plugins.Group, built_in: Kinds, wanted: Iterable[str]) -> Kinds:
    """The built-in sections, and those among `wanted` that other packages define."""
    added = set(wanted) & set(plugins.names(group)) - set(map(section_name, built_in))
    return (*built_in, *(plugins.load(group, name) for name in sorted(added)))


def section_name(kind: type[BaseModel]) -> str | None:
    """The value of a `name: Literal["…"]` field, by which the kinds of a section differ."""
    field = kind.model_fields.get("name")
    names = get_args(field.annotation) if field is not None and field.is_required() else ()
    return names[0] if len(names) == 1 else None
