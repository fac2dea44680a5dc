"""Pretrained networks of timm, torchvision and transformers: built, and written for them."""

from __future__ import annotations

import copy
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torchvision import models
from torchvision.models.resnet import BasicBlock

from macl.core.errors import UserError
from macl.core.installed import require
from macl.core.weights import load_state, save_weights
from macl.modalities.hub import SAFELY, quiet, read_network, reading
from macl.modalities.images import checkpoints, preprocessing
from macl.modalities.images.checkpoints import WEIGHTS
from macl.modalities.images.preprocessing import PREPROCESSOR, TIMM, TORCHVISION, processor_config
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig


class HuggingFaceImages(nn.Module):
    """A vision model of transformers: (B, 3, H, W) → its pooled output, (B, out_dim)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        config: Any = model.config
        self.config = config
        widths = getattr(config, "hidden_sizes", None)
        self.out_dim: int = widths[-1] if widths else config.hidden_size
        self.side = getattr(config, "image_size", None)
        # Others interpolate their positions without being asked.
        taken = inspect.signature(model.forward).parameters
        self.interpolates = "interpolate_pos_encoding" in taken

    def forward(self, pixels: Tensor) -> Tensor:
        """The pooled output, or the first token where the model has none."""
        other = self.interpolates and pixels.shape[-1] != self.side
        output = self.model(pixels, **({"interpolate_pos_encoding": True} if other else {}))
        pooled: Tensor | None = getattr(output, "pooler_output", None)
        return (output.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)


def build_timm(config: ImageEncoderConfig) -> nn.Module:
    """A model of timm without classifier; timm interpolates positions for another `img_size`."""
    name = config.name[len(TIMM) :]
    own = preprocessing.timm_config(name)
    import timm
    from huggingface_hub import try_to_load_from_cache

    fixed = {} if config.img_size is None else {"img_size": config.img_size}
    create: Callable[..., nn.Module] = functools.partial(
        timm.create_model, name, num_classes=0, in_chans=config.channels, **fixed
    )
    try:
        encoder = create(pretrained=False)
    except (TypeError, AssertionError, ValueError) as error:
        raise UserError(f"{config.name} cannot be built with {fixed}: {error}") from error
    if config.weights is None and not config.pretrained:
        return encoder
    path = config.weights
    if path is None and own.get("hf_hub_id"):
        cached = try_to_load_from_cache(own["hf_hub_id"], WEIGHTS)
        path = Path(cached) if isinstance(cached, str) else None
    if path is None:
        if config.download:
            return create(pretrained=True)
        raise _not_here(config.name)
    state = checkpoints.read_checkpoint(path)
    names = encoder.state_dict()
    if all(n in state and state[n].shape == value.shape for n, value in names.items()):
        encoder.load_state_dict({n: state[n] for n in names})
        return encoder
    if config.weights is not None and checkpoints.as_torchvision(names) is not None:
        checkpoints.load_foreign(encoder, state, path)
        return encoder
    heads = own.get("classifier") or ()
    heads = tuple(f"{head}." for head in ([heads] if isinstance(heads, str) else heads))
    return _converted(create, {n: v for n, v in state.items() if not n.startswith(heads)}, path)


def build_torchvision(config: ImageEncoderConfig) -> nn.Module:
    """A model of torchvision without its last layer, the classifier."""
    name = config.name[len(TORCHVISION) :]
    own = preprocessing.torchvision_weights(name)
    fixed = {"image_size": config.img_size} if name.startswith("vit_") and config.img_size else {}
    encoder: nn.Module = models.get_model(name, weights=None, **fixed)
    head, linear = [(n, m) for n, m in encoder.named_modules() if isinstance(m, nn.Linear)][-1]
    parent, _, leaf = head.rpartition(".")
    setattr(encoder.get_submodule(parent), leaf, nn.Identity())
    encoder.out_dim = linear.in_features  # type: ignore[assignment]
    if config.weights is not None:
        path = config.weights
        state = checkpoints.read_checkpoint(path)
    elif config.pretrained:
        path = Path(torch.hub.get_dir()) / "checkpoints" / Path(own.url).name
        if not path.is_file() and not config.download:
            raise _not_here(config.name)
        state = own.get_state_dict(progress=False, check_hash=True)
    else:
        return encoder
    if fixed:
        from torchvision.models.vision_transformer import interpolate_embeddings

        state = dict(interpolate_embeddings(config.img_size, encoder.patch_size, state))
    checkpoints.load_foreign(encoder, state, path, (f"{head}.", "aux", "AuxLogits", "fc."))
    return encoder


def build_huggingface(folder: Path, *, weights: bool = True) -> HuggingFaceImages:
    """The vision model of a folder, of a CLIP its vision tower; else untrained from its plan."""
    require("transformers", "text", str(folder))
    from transformers import AutoConfig

    with reading(folder):
        config = AutoConfig.from_pretrained(folder, **SAFELY)
        model = read_network(folder, getattr(config, "vision_config", config), weights)
    return HuggingFaceImages(model)


def save_huggingface(encoder: HuggingFaceImages, folder: Path, views: ImageViewsConfig) -> Path:
    """Write a folder that transformers opens: configuration, weights, preprocessing."""
    model: Any = encoder.model
    with quiet():
        model.save_pretrained(folder)
    (folder / PREPROCESSOR).write_text(json.dumps(processor_config(views), indent=2) + "\n")
    return folder / WEIGHTS


def save_timm(encoder: nn.Module, folder: Path, views: ImageViewsConfig) -> Path:
    """Write a folder that `timm.create_model("local-dir:FOLDER")` opens."""
    from timm.models import save_for_hf

    # Convolutions may be stored channels last, which safetensors does not take.
    encoder = copy.deepcopy(encoder).to(memory_format=torch.contiguous_format)
    chosen, own = views.resolve(), dict(encoder.pretrained_cfg)  # type: ignore[arg-type]
    size = chosen.size or own["input_size"][-1]
    built: dict[str, int] = {"img_size": size} if own.get("fixed_input_size") else {}
    if len(chosen.mean) != own["input_size"][0]:
        built["in_chans"] = len(chosen.mean)
        own["first_conv"] = None  # is as wide as it should be: not to be adapted from three
    own |= {
        "input_size": (len(chosen.mean), size, size),
        "mean": chosen.mean,
        "std": chosen.std,
        "interpolation": chosen.interpolation,
        "crop_pct": 1.0 if chosen.crop == "whole" else chosen.crop,
        "crop_mode": "squash" if chosen.crop == "whole" else "center",
        "num_classes": 0,
    }
    encoder.pretrained_cfg = own  # type: ignore[assignment]
    save_for_hf(encoder, folder, model_args=built, safe_serialization=True)
    return folder / WEIGHTS


def export_huggingface(
    encoder: nn.Module, folder: Path, views: ImageViewsConfig, metadata: Mapping[str, str]
) -> None:
    """A folder that `transformers.AutoModel` opens; `pooler_output` is the features."""
    require("transformers", "text", "the layout huggingface")
    from transformers import ResNetConfig, ResNetModel

    state = checkpoints.resnet_state(encoder, "huggingface")
    shape = checkpoints.resnet_shape(state)
    block, depths, width = shape["block"], shape["layers"], shape["width"]
    config = ResNetConfig(
        embedding_size=width,
        hidden_sizes=[width * block.expansion * 2**stage for stage in range(len(depths))],
        depths=depths,
        layer_type="basic" if block is BasicBlock else "bottleneck",
    )
    model = ResNetModel(config)
    try:
        model.load_state_dict(checkpoints.renamed(state, "huggingface"))
    except RuntimeError as error:
        raise UserError(
            "Hugging Face's ResNet has a 7×7 stem and no groups; this encoder is another network. "
            "Export it without `layouts=huggingface`."
        ) from error
    whole = HuggingFaceImages(model).eval()
    checkpoints.require_equal(encoder, whole, "the Hugging Face model")
    save_huggingface(whole, folder, views)
    save_weights(model, folder / WEIGHTS, metadata)


def _not_here(name: str) -> UserError:
    return UserError(
        f"the weights of {name} are not on this machine: set encoder.weights=FILE, or let the "
        "library fetch them with encoder.download=true."
    )


def _converted(create: Callable[..., nn.Module], state: dict[str, Tensor], path: Path) -> nn.Module:
    """The model with `state` as timm converts it: other names, positions of another size."""
    built = []
    for seed in (0, 1):
        overlay = {"state_dict": dict(state), "source": ""}
        with torch.random.fork_rng(), suppress(RuntimeError, KeyError, IndexError, ValueError):
            torch.manual_seed(seed)
            built.append(create(pretrained=True, pretrained_cfg_overlay=overlay))
    states = [each.state_dict() for each in built]
    # What timm did not find in the file keeps its random values, which differ by the seed.
    if len(built) < 2 or not all(torch.equal(v, states[1][n]) for n, v in states[0].items()):
        load_state(create(), state, path)  # names what is wrong
    del built[0].pretrained_cfg["state_dict"]  # type: ignore[operator, union-attr]
    return built[0]
