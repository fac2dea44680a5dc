"""Judge a run's encoder, or one that came from elsewhere: a weights file, a folder, a name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision.models.resnet import BasicBlock, Bottleneck

from macl import recipes
from macl.core.errors import UserError
from macl.core.weights import load_state
from macl.evaluation.evaluate import as_overrides, judge
from macl.modalities.embedding import embedder
from macl.modalities.images import MODALITY
from macl.modalities.images.checkpoints import is_checkpoint, read_checkpoint, resnet_depths
from macl.modalities.images.detection.data import is_voc
from macl.modalities.images.detection.protocol import NAME as DETECTION
from macl.modalities.images.encoders import ResNetEncoder, build_image_encoder
from macl.modalities.images.evaluation import ImageEvaluationConfig
from macl.modalities.images.layouts import as_torchvision
from macl.modalities.images.views import ImageViewsConfig
from macl.probes.score import Score
from macl.runs import Run

SECTIONS = ("evaluation.", "data.", "encoder.", "views.")


def judge_image_run(
    run: Run,
    overrides: list[str],
    *,
    data: Path | None = None,
    protocol: str | None = None,
    best: bool = False,
) -> list[Score]:
    """As `judge`, with VOC as data meaning detection, whose detectors are kept in the run."""
    known = _detection_settings(run.recipe.evaluation, run.recipe.views, run.folder / "detection")
    protocol = protocol or _implied_protocol(data)
    overrides, data = _detection_data([*known, *overrides], data, protocol)
    return judge(run, overrides, data=data, protocol=protocol, best=best)


def judge_image_encoder(
    name: str, overrides: list[str], *, data: Path | None = None, protocol: str | None = None
) -> list[Score]:
    """Score an encoder as it is.

    Args:
        name: a weights file, a folder of Hugging Face's, or a name as in a recipe (untrained).
        overrides: `key=value` for the evaluation section, with or without its name in front, and
            `data.key=value`, `encoder.key=value`, `views.key=value`. Weights that are no ResNet's
            need encoder.name.
        data: images, or VOC for detection.
        protocol: comma-separated; by default those of the evaluation section, detection for VOC.
    """
    protocol = protocol or _implied_protocol(data)
    overrides, data = _detection_data(overrides, data, protocol)
    given = as_overrides(MODALITY, overrides, data, protocol, SECTIONS)
    path = Path(name)
    model: nn.Module | None = None
    sections: dict[str, Any] = {"encoder": {"name": name}}
    if is_checkpoint(path):
        state, header = read_checkpoint(path)
        sections = {"encoder": {"weights": name}, "views": _stored_views(path, header)}
        if not any(each.startswith("encoder.name=") for each in given):
            model = resnet = _resnet_of(state, path)
            large = resnet.conv1.kernel_size == (7, 7)
            sections["views"] = sections["views"] or {"preset": "imagenet" if large else "cifar"}
    # Nothing is trained here; a recipe is how the sections that matter are read and checked.
    untrained = {"method": {"name": "simclr"}, "loss": {"name": "macl"}}
    values = {"name": path.stem, "modality": "images", **sections, **untrained}
    recipe = recipes.resolve(values, recipes.parse(given, values))
    if model is None:
        torch.manual_seed(recipe.seed)
        model = build_image_encoder(recipe.encoder)
    known = _detection_settings(recipe.evaluation, recipe.views, None)
    values = recipe.model_dump(mode="json")
    recipe = recipes.resolve(values, recipes.parse(known, values))
    embed = embedder(model.eval(), MODALITY.build_views(recipe.views, model))
    return MODALITY.evaluate(recipe.evaluation, recipe.data, embed, model, recipe.seed)


def resnet_like(state: Mapping[str, Tensor]) -> ResNetEncoder:
    """The ResNet, with new weights, that weights under torchvision's names were taken from."""
    bottleneck = "layer1.0.conv3.weight" in state
    width = len(state["conv1.weight"])
    # The 3×3 convolution of a bottleneck tells its groups: (channels, channels / groups, 3, 3).
    channels, per_group = state[f"layer1.0.conv{2 if bottleneck else 1}.weight"].shape[:2]
    return ResNetEncoder(
        Bottleneck if bottleneck else BasicBlock,
        resnet_depths(state),
        width,
        "imagenet" if state["conv1.weight"].shape[-1] == 7 else "cifar",
        groups=channels // per_group,
        width_per_group=per_group * 64 // width if bottleneck else 64,
    )


def _resnet_of(state: Mapping[str, Tensor], path: Path) -> ResNetEncoder:
    resnet = as_torchvision(state)
    if resnet is None:
        raise UserError(
            f"{path} holds no ResNet: say with encoder.name=… what it is, such as "
            "encoder.name=timm:vit_small_patch16_224."
        )
    try:
        model = resnet_like(resnet)
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} has a ResNet's names, but not its shapes: {error}") from error
    load_state(model, resnet, path, {})
    return model


def _implied_protocol(data: Path | None) -> str | None:
    return DETECTION if data is not None and is_voc(data) else None


def _detection_data(
    overrides: list[str], data: Path | None, protocol: str | None
) -> tuple[list[str], Path | None]:
    """Where only detection is asked for, `data` is meant as VOC even if it does not look like it.

    So it is the detection that says what is wrong with it.
    """
    if data is None or protocol != DETECTION:
        return overrides, data
    return [*overrides, f"evaluation.detection.data={data.resolve()}"], None


def _detection_settings(
    evaluation: ImageEvaluationConfig, views: ImageViewsConfig, folder: Path | None
) -> list[str]:
    """Overrides for what the detection section leaves to its surroundings."""
    augmentation = views.resolve()
    around = {"mean": list(augmentation.mean), "std": list(augmentation.std), "folder": folder}
    return [
        f"evaluation.detection.{key}={value}"
        for key, value in around.items()
        if value is not None and getattr(evaluation.detection, key) is None
    ]


def _stored_views(path: Path, header: Mapping[str, str]) -> dict[str, Any]:
    """How an exported encoder wants its images; empty where its file does not say."""
    try:
        return dict(json.loads(header.get("views", "{}")))
    except (ValueError, TypeError) as error:
        raise UserError(f"{path} says in a strange way how images are prepared: {error}") from error
