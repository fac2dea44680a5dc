"""What pretrained networks of timm, torchvision and transformers expect of their images."""

from __future__ import annotations

import difflib
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torchvision import models

from macl.core.errors import UserError
from macl.core.files import read_json
from macl.core.installed import require
from macl.modalities.base import ENCODER_FILE, stored_sections
from macl.modalities.images.checkpoints import WEIGHTS
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.images.views import short_side

TIMM, TORCHVISION = "timm:", "torchvision:"
PREPROCESSOR = "preprocessor_config.json"
BICUBIC = 3
"""What Pillow, and with it transformers, calls this interpolation."""

STATISTICS = ("mean", "std")
"""What a network was trained with and cannot do without."""


def folder_kind(folder: Path) -> Literal["timm", "vision", "clip"] | None:
    """Whose model a folder holds: timm's (`save_for_hf`), transformers' of images, or a CLIP."""
    config = read_json(folder / "config.json")
    if "architecture" in config:
        return "timm"
    if "model_type" in config and "vision_config" in config:
        return "clip"
    return "vision" if "model_type" in config and "num_channels" in config else None


def located(config: ImageEncoderConfig) -> ImageEncoderConfig:
    """A folder of timm's or of `macl export` by the network that it names, and its weights."""
    folder = Path(config.name)
    file = folder / ENCODER_FILE
    if config.weights is None and file.is_file():
        values = stored_sections(file).get("encoder")
        if values is None:
            raise UserError(f"{file} does not name its network; export the run again.")
        changed = config.model_dump(exclude_defaults=True, exclude={"name"})
        return ImageEncoderConfig.model_validate({**values, **changed, "weights": file})
    if folder_kind(folder) == "timm":
        name = TIMM + str(read_json(folder / "config.json")["architecture"])
        weights = config.weights or folder / WEIGHTS
        return config.model_copy(update={"name": name, "weights": weights})
    return config


def completed(
    encoder: ImageEncoderConfig, views: ImageViewsConfig
) -> tuple[ImageEncoderConfig, ImageViewsConfig]:
    """Both sections with what the network's own configuration says and they leave open."""
    encoder = located(encoder)
    own, fixed = preprocessing_of(encoder)
    if encoder.weights is not None or encoder.pretrained or Path(encoder.name).is_dir():
        for key in STATISTICS:
            ours, theirs = getattr(views, key) or (), own.get(key, ())
            # Of other channels than it was trained with there is nothing to compare.
            if len(ours) == len(theirs) and not np.allclose(ours, theirs, rtol=0, atol=1e-3):
                raise UserError(
                    f"views.{key}={list(ours)}, but {encoder.name} was trained with "
                    f"{list(theirs)}. Leave views.{key} out to use its own."
                )
        unset = {key: value for key, value in own.items() if getattr(views, key) is None}
        views = views.model_copy(update=unset)
    elif fixed and views.resolve().size is None:
        views = views.model_copy(update={"size": own["size"]})
    chosen = views.resolve()
    if encoder.img_size not in (None, chosen.size):
        raise UserError(
            f"encoder.img_size={encoder.img_size}, but views.size={chosen.size}: leave "
            "encoder.img_size out to build the network for the size of the views."
        )
    built = {"img_size": chosen.size} if fixed else {}
    return encoder.model_copy(update={"channels": len(chosen.mean), **built}), views


def preprocessing_of(config: ImageEncoderConfig) -> tuple[dict[str, Any], bool]:
    """What a network expects of its images, and whether it is built for one size of them.

    The first are values of the views section, by the configuration beside the weights, or the
    library's; empty where neither has one.
    """
    folder, weights = Path(config.name), config.weights
    if weights is not None and weights.name == ENCODER_FILE:
        stored = stored_sections(weights).get("views")
        if stored is not None:
            own = ImageViewsConfig.model_validate(stored).resolve()
            keys = ("size", *STATISTICS, "crop", "interpolation")
            return {key: getattr(own, key) for key in keys}, False
    if config.name.startswith(TIMM):
        beside = {} if weights is None else read_json(weights.parent / "config.json")
        settings = beside.get("pretrained_cfg")
        if not isinstance(settings, dict):
            settings = timm_config(config.name[len(TIMM) :])
        views = {
            "size": settings["input_size"][-1],
            "mean": tuple(settings["mean"]),
            "std": tuple(settings["std"]),
            "crop": "whole" if settings.get("crop_mode") == "squash" else settings["crop_pct"],
            "interpolation": "bicubic" if settings["interpolation"] == "bicubic" else "bilinear",
        }
        return views, bool(settings.get("fixed_input_size"))
    if config.name.startswith(TORCHVISION):
        name = config.name[len(TORCHVISION) :]
        transform = torchvision_weights(name).transforms()
        size = transform.crop_size[0]
        views = {
            "size": size,
            "mean": tuple(transform.mean),
            "std": tuple(transform.std),
            "crop": min(1.0, size / transform.resize_size[0]),
            "interpolation": transform.interpolation.value,
        }
        return views, name.startswith("vit_")
    return (_of_huggingface(folder) if folder_kind(folder) else {}), False


def image_processor(folder: Path) -> dict[str, Any]:
    """How a folder of transformers says that images are prepared; empty where it does not say."""
    # transformers 5 writes one file for images and texts.
    both = read_json(folder / "processor_config.json").get("image_processor")
    return read_json(folder / PREPROCESSOR) or (both if isinstance(both, dict) else {})


def _of_huggingface(folder: Path) -> dict[str, Any]:
    stored = image_processor(folder)
    if not stored:
        raise UserError(f"{folder} has no {PREPROCESSOR}, which says how its images are prepared.")
    config = read_json(folder / "config.json")
    resized = _side(stored.get("size"), config.get("vision_config", config).get("image_size", 224))
    views: dict[str, Any] = {"size": resized, "crop": "whole"}
    if stored.get("do_resize") is False:
        del views["size"]
    elif stored.get("do_center_crop"):
        views["size"] = _side(stored.get("crop_size"), resized)
        views["crop"] = min(1.0, views["size"] / resized)
    elif stored.get("crop_pct"):
        views["crop"] = stored["crop_pct"]
    given = {key: stored.get(f"image_{key}") for key in STATISTICS}
    views |= {key: tuple(value) for key, value in given.items() if value}
    views["interpolation"] = "bicubic" if stored.get("resample") == BICUBIC else "bilinear"
    return views


def processor_config(views: ImageViewsConfig) -> dict[str, Any]:
    """preprocessor_config.json, by which transformers prepares images as evaluation does here."""
    chosen = views.resolve()
    size = chosen.size or 224
    resized = square = {"height": size, "width": size}
    if chosen.crop != "whole":
        resized = {"shortest_edge": short_side(size, chosen.crop)}
    return {
        "image_processor_type": "CLIPImageProcessor",
        "do_convert_rgb": True,
        "do_resize": chosen.size is not None,
        "size": resized,
        "do_center_crop": chosen.crop != "whole",
        "crop_size": square,
        "resample": BICUBIC if chosen.interpolation == "bicubic" else 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(chosen.mean),
        "image_std": list(chosen.std),
    }


def _side(size: Any, default: int) -> int:
    if isinstance(size, dict):
        size = size.get("height") or size.get("shortest_edge")
    return size if isinstance(size, int) and size else default


def timm_config(name: str) -> dict[str, Any]:
    """timm's configuration of a model; only of timm's own names: hf-hub: would use the network."""
    require("timm", "adapt", f"encoder timm:{name}")
    import timm

    if ":" in name or not timm.is_model(name.split(".")[0]):
        raise UserError(
            f"timm has no model {name!r}.{_closest(name, timm.list_models())} timm.list_models() "
            "names them all."
        )
    pretrained = timm.get_pretrained_cfg(name)
    with torch.device("meta"):
        return dict(pretrained.to_dict() if pretrained else timm.create_model(name).pretrained_cfg)


def torchvision_weights(name: str) -> Any:
    """torchvision's entry of the best weights of a classifier: where they are, how it prepares."""
    try:
        return models.get_model_weights(name).DEFAULT
    except (ValueError, AttributeError) as error:
        hint = _closest(name, models.list_models(models))
        raise UserError(f"torchvision has no classifier {name!r}.{hint}") from error


def _closest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, n=5)
    return f" Nearest: {', '.join(close)}." if close else ""
