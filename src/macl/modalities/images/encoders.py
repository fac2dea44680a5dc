"""Image encoders: ResNets, networks of other libraries, a user's own; by a recipe or a file."""

from __future__ import annotations

import functools
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from macl.core.errors import UserError, nearest
from macl.core.plugins import load_factory
from macl.core.weights import load_state, read_metadata
from macl.modalities.base import MODALITY_KEY, Resolve, exported_file, stored_sections
from macl.modalities.images import checkpoints
from macl.modalities.images.preprocessing import TIMM, TORCHVISION, completed, folder_kind, located
from macl.modalities.images.pretrained import build_huggingface, build_timm, build_torchvision
from macl.modalities.images.sections import SMALL, ImageEncoderConfig
from macl.modalities.images.views import RGB
from macl.recipes import Sections

PROBED_SIDES = (32, 64, 224, 256, 384)
"""Image sides tried to learn the output width of a model without `out_dim`."""


class ResNetEncoder(ResNet):
    """A ResNet without classifier, of any width, with the parameter names of torchvision's."""

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: list[int],
        width: int = 64,
        stem: Literal["cifar", "imagenet"] = "imagenet",
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
        channels: int = 3,
    ) -> None:
        # torchvision's constructor fixes four stages from 64 channels; its other methods do not.
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups = width, 1, groups
        self.base_width = width_per_group
        small = stem == "cifar"
        side, stride = (3, 1) if small else (7, 2)
        self.conv1 = nn.Conv2d(channels, width, side, stride, padding=side // 2, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        for stage, stride in enumerate((1, 2, 2, 2)):
            blocks: nn.Module = nn.Identity()
            if stage < len(layers):
                blocks = self._make_layer(block, width * 2**stage, layers[stage], stride)
            self.add_module(f"layer{stage + 1}", blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Identity()
        self.out_dim: int = self.inplanes
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, BasicBlock | Bottleneck):
                last = module.bn2 if isinstance(module, BasicBlock) else module.bn3
                nn.init.zeros_(last.weight)


def build_image_encoder(config: ImageEncoderConfig) -> nn.Module:
    """The encoder: `forward` takes (B, C, H, W) floats to (B, out_dim), with `out_dim: int`."""
    config = located(config)
    is_folder = Path(config.name).is_dir()
    is_resnet = ":" not in config.name and not is_folder
    if config.width is not None and not is_resnet:
        raise UserError(f"encoder.width is for ResNets; {config.name} has its own.")
    if is_folder or config.name.startswith(TORCHVISION):
        if config.channels != RGB:
            raise UserError(
                f"{config.name} takes images of {RGB} channels, and views.mean has "
                f"{config.channels} values: take a model of timm, whose first layer can be widened."
            )
        return build_huggingface(Path(config.name)) if is_folder else build_torchvision(config)
    if config.name.startswith(TIMM):
        encoder = build_timm(config)
    else:
        encoder = _resnet(config) if is_resnet else load_factory(config.name, config.allow_import)()
        if not isinstance(encoder, nn.Module):
            made = type(encoder).__name__
            raise UserError(f"encoder {config.name} made a {made}, not an nn.Module.")
        if config.weights is not None:
            checkpoints.load_checkpoint(encoder, config.weights)
    if not isinstance(getattr(encoder, "out_dim", None), int):
        encoder.out_dim = _probed_dim(encoder, config)  # type: ignore[assignment]
    return encoder


@functools.cache
def encoder_names() -> tuple[str, ...]:
    """The names of the ResNets that need no prefix."""
    known = models.list_models(models, include=["resnet*", "resnext*", "wide_resnet*"])
    return (*known, *SMALL)


def _resnet(config: ImageEncoderConfig) -> ResNetEncoder:
    if config.name in SMALL:
        depths = [SMALL[config.name]] * 3
        shape: dict[str, Any] = {"block": BasicBlock, "layers": depths, "width": 16}
    elif config.name not in encoder_names():
        raise UserError(
            f"no image encoder is called {config.name!r}, nor is there such a file or folder."
            f"{nearest(config.name, encoder_names())} Also timm:NAME, "
            "torchvision:NAME and package.module:factory."
        )
    else:
        # torchvision keeps the layout of each name inside its builder: build one without storage.
        with torch.device("meta"):
            state = models.get_model(config.name, weights=None).state_dict()
        shape = checkpoints.resnet_shape(state)
    width = config.width or shape["width"]
    own = config.model_dump(include={"stem", "zero_init_residual", "channels"})
    encoder = ResNetEncoder(**{**shape, **own, "width": width})
    # Convolutions follow the layout of their weights; this one is about 1.2 times as fast on CPU.
    # With few channels torch's CPU backward of a strided 1×1 convolution writes out of bounds in
    # it (seen in 2.15, up to 8 channels), so narrow encoders keep the plain layout.
    return encoder if width < 16 else encoder.to(memory_format=torch.channels_last)


@torch.no_grad()
def _probed_dim(encoder: nn.Module, config: ImageEncoderConfig) -> int:
    """The width of what comes out for a blank image of the first side that the encoder takes."""
    sides = (config.img_size,) if config.img_size else PROBED_SIDES
    training, failure = encoder.training, ""
    for side in sides:
        try:
            features = encoder.eval()(torch.zeros(2, config.channels, side, side))
        # Any exception only means that the model does not take images of this side.
        except Exception as error:
            failure = str(error)
            continue
        encoder.train(training)
        if isinstance(features, Tensor) and features.ndim == 2:
            return features.shape[1]
        given = tuple(getattr(features, "shape", ())) or type(features).__name__
        raise UserError(
            f"encoder {config.name} gives {given} for 2 images; it must give (2, out_dim)."
        )
    raise UserError(
        f"encoder {config.name} takes no blank image of side {sides} ({failure}); give it an"
        " attribute out_dim."
    )


def is_image_encoder(name: str) -> bool:
    """Whether `open_image_encoder` can open `name`, by its name and its header."""
    path = exported_file(name) or Path(name).expanduser()
    if path.is_dir():
        # A CLIP is one of image-text, and one of images where that is asked for.
        return folder_kind(path) in ("timm", "vision")
    if not checkpoints.is_checkpoint(path):
        return name in encoder_names() or (":" in name and not name.startswith("package:"))
    with suppress(UserError):  # reported when it is opened
        if path.suffix == ".safetensors":
            return read_metadata(path).get(MODALITY_KEY, "images") == "images"
    return True


def open_image_encoder(name: str, resolve: Resolve) -> tuple[nn.Module, Sections]:
    """The encoder, and the sections for its evaluation with the views that its file asks for.

    `name` is a weights file; a folder of Hugging Face's, timm's or `macl export`; or a name as in a
    recipe, untrained unless encoder.weights or encoder.pretrained is set.
    """
    path = Path(name).expanduser()
    exported = exported_file(name)
    stored = {} if exported is None else stored_sections(exported)
    if "encoder" in stored:
        encoder = {**stored["encoder"], "weights": str(exported)}
        sections = resolve({"encoder": encoder, "views": stored.get("views", {})})
        return build_image_encoder(sections.encoder), sections
    if path.is_dir() or not checkpoints.is_checkpoint(path):
        return _built(resolve({"encoder": {"name": str(path) if path.is_dir() else name}}))
    state = checkpoints.read_checkpoint(path)
    views = stored_sections(path).get("views") if path.suffix == ".safetensors" else None
    sections = resolve({"views": views or {}})
    if "name" in sections.encoder.model_fields_set:
        return _built(sections, weights=path.absolute())
    resnet = checkpoints.as_torchvision(state)
    if resnet is None:
        raise UserError(
            f"{path} holds no ResNet: name its network with encoder.name=…, such as "
            "encoder.name=timm:vit_small_patch16_224."
        )
    try:
        shape = checkpoints.resnet_shape(resnet)
        model = ResNetEncoder(**shape)
    except (ArithmeticError, LookupError, TypeError, ValueError, RuntimeError) as error:
        raise UserError(f"{path} has a ResNet's names, but not its shapes: {error}") from error
    load_state(model, resnet, path)
    if views is None:  # the presets are called like the stems
        sections = resolve({"views": {"preset": shape["stem"]}})
    return model, sections


def _built(sections: Sections, **changes: Any) -> tuple[nn.Module, Sections]:
    """The encoder by its section, and the sections as its own configuration completes them."""
    encoder, views = completed(sections.encoder.model_copy(update=changes), sections.views)
    torch.manual_seed(0)  # an encoder without weights is the same every time
    sections = sections.model_copy(update={"encoder": encoder, "views": views})
    return build_image_encoder(encoder), sections
