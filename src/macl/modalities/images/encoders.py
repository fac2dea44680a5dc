"""Image encoders: torchvision's ResNets, small ones for laptops, timm's models, a user's own."""

from __future__ import annotations

import difflib
import functools
from typing import Literal

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock, Bottleneck, ResNet

from macl.core.errors import UserError, nearest
from macl.core.plugins import load_object
from macl.modalities.images.checkpoints import load_checkpoint
from macl.modalities.images.sections import SMALL, ImageEncoderConfig

SMALL_WIDTH = 16

PROBED_SIDES = (32, 64, 224, 256, 384)
"""Image sides tried to learn the output width of a model without `out_dim`."""


class ResNetEncoder(ResNet):
    """A ResNet without classifier, of any width, with the parameter names of torchvision's.

    `forward`: (B, 3, H, W) float to (B, out_dim).
    """

    def __init__(
        self,
        block: type[BasicBlock | Bottleneck],
        layers: list[int],
        width: int = 64,
        stem: Literal["cifar", "imagenet"] = "imagenet",
        zero_init_residual: bool = False,
        groups: int = 1,
        width_per_group: int = 64,
    ) -> None:
        # torchvision's constructor fixes four stages from 64 channels; its other methods do not.
        nn.Module.__init__(self)
        self._norm_layer = nn.BatchNorm2d
        self.inplanes, self.dilation, self.groups = width, 1, groups
        self.base_width = width_per_group
        small = stem == "cifar"
        self.conv1 = nn.Conv2d(
            3,
            width,
            kernel_size=3 if small else 7,
            stride=1 if small else 2,
            padding=1 if small else 3,
            bias=False,
        )
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.Identity() if small else nn.MaxPool2d(3, stride=2, padding=1)
        for stage in range(4):
            planes, stride = width * 2**stage, 1 if stage == 0 else 2
            blocks = (
                self._make_layer(block, planes, layers[stage], stride)
                if stage < len(layers)
                else nn.Identity()
            )
            self.add_module(f"layer{stage + 1}", blocks)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Identity()
        self.out_dim: int = self.inplanes
        self._initialise(zero_init_residual)

    def _initialise(self, zero_init_residual: bool) -> None:
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
            elif zero_init_residual and isinstance(module, BasicBlock):
                nn.init.zeros_(module.bn2.weight)
            elif zero_init_residual and isinstance(module, Bottleneck):
                nn.init.zeros_(module.bn3.weight)


def build_image_encoder(config: ImageEncoderConfig) -> nn.Module:
    """The encoder: `forward` takes (B, 3, H, W) floats to (B, out_dim), with `out_dim: int`.

    Raises:
        UserError: there is no such encoder, it may not be imported, or the weights do not fit it.
    """
    if ":" in config.name:
        if config.width is not None:
            raise UserError(f"encoder.width is for ResNets; {config.name} has its own.")
        kind, name = config.name.split(":", 1)
        encoder = _from_timm(name) if kind == "timm" else _from_import(config)
        if not isinstance(getattr(encoder, "out_dim", None), int):
            encoder.out_dim = _probed_dim(encoder, config.name)  # type: ignore[assignment]
    else:
        encoder = _resnet(config)
    if config.weights is not None:
        load_checkpoint(encoder, config.weights)
    return encoder


@functools.cache
def encoder_names() -> tuple[str, ...]:
    """The names of the ResNets that need no prefix."""
    known = models.list_models(models, include=["resnet*", "resnext*", "wide_resnet*"])
    return (*known, *SMALL)


def _resnet(config: ImageEncoderConfig) -> ResNetEncoder:
    if config.name in SMALL:
        block, layers, width = BasicBlock, [SMALL[config.name]] * 3, SMALL_WIDTH
        groups, width_per_group = 1, 64
    else:
        if config.name not in encoder_names():
            raise UserError(
                f"no image encoder is called {config.name!r}, nor is there such a file or folder."
                f"{nearest(config.name, encoder_names())} Also timm:NAME and "
                "package.module:factory."
            )
        # torchvision keeps the layout of each name inside its builder: build one without storage.
        with torch.device("meta"):
            layout = models.get_model(config.name, weights=None)
        stages = [layout.layer1, layout.layer2, layout.layer3, layout.layer4]
        block, layers = type(stages[0][0]), [len(stage) for stage in stages]
        width, groups, width_per_group = layout.bn1.num_features, layout.groups, layout.base_width
    encoder = ResNetEncoder(
        block,
        layers,
        config.width or width,
        config.stem,
        config.zero_init_residual,
        groups,
        width_per_group,
    )
    # Convolutions follow the layout of their weights; this one is about 1.2 times as fast on CPU.
    # With few channels torch's CPU backward of a strided 1×1 convolution writes out of bounds in
    # it (seen in 2.15, up to 8 channels), so narrow encoders keep the plain layout.
    narrow = (config.width or width) < 16
    return encoder if narrow else encoder.to(memory_format=torch.channels_last)


def _from_timm(name: str) -> nn.Module:
    try:
        import timm
    except ImportError as error:
        raise UserError(f"encoder timm:{name} needs timm: pip install timm.") from error
    # Only timm's own names: prefixes such as hf-hub: would use the network unasked.
    if ":" in name or not timm.is_model(name):
        close = difflib.get_close_matches(name, timm.list_models(), n=5)
        hint = f" Nearest: {', '.join(close)}." if close else ""
        raise UserError(f"timm has no model {name!r}.{hint} timm.list_models() names them all.")
    encoder: nn.Module = timm.create_model(name, pretrained=False, num_classes=0)
    return encoder


def _from_import(config: ImageEncoderConfig) -> nn.Module:
    if not config.allow_import:
        raise UserError(
            f"encoder {config.name} would import and run Python code; if you trust it, set"
            " encoder.allow_import=true."
        )
    try:
        factory = load_object(config.name)
    except ModuleNotFoundError as error:
        raise UserError(
            f"encoder {config.name}: {error}; is its folder on PYTHONPATH or installed?"
        ) from error
    except AttributeError as error:
        raise UserError(f"encoder {config.name}: {error}.") from error
    encoder = factory()
    if not isinstance(encoder, nn.Module):
        raise UserError(f"encoder {config.name} made a {type(encoder).__name__}, not an nn.Module.")
    return encoder


@torch.no_grad()
def _probed_dim(encoder: nn.Module, name: str) -> int:
    """The width of what comes out for a blank image of the first side that the encoder takes."""
    training = encoder.training
    encoder.eval()
    failure: object = None
    for side in PROBED_SIDES:
        try:
            features = encoder(torch.zeros(2, 3, side, side))
        # Any exception only means that the model does not take images of this side.
        except Exception as error:
            failure = error
            continue
        encoder.train(training)
        if not isinstance(features, Tensor) or features.ndim != 2:
            shape = (
                tuple(features.shape) if isinstance(features, Tensor) else type(features).__name__
            )
            raise UserError(
                f"encoder {name} gives {shape} for 2 images; it must give (2, out_dim)."
            )
        return features.shape[1]
    raise UserError(
        f"encoder {name} takes no blank RGB image of side {PROBED_SIDES} ({failure}); give it an"
        " attribute out_dim."
    )
