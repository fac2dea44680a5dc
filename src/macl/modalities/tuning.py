"""Which weights of a pretrained encoder are trained: layers by depth, freezing, LoRA."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from macl.core.errors import UserError, nearest
from macl.core.installed import require
from macl.optim import layer_depths
from macl.recipes.tuning import LoraSection

NORMS = (_BatchNorm, nn.LayerNorm, nn.GroupNorm)


def tune(encoder: nn.Module, section: Any) -> None:
    """Freeze what the encoder section names, and put LoRA's matrices in their places."""
    freeze = getattr(section, "freeze", 0.0)
    if freeze == "norms":
        for module in encoder.modules():
            if isinstance(module, NORMS):
                module.requires_grad_(False)
    elif isinstance(freeze, tuple):
        known = [name for name, _ in encoder.named_modules() if name]
        for name in freeze:
            if name not in known:
                raise UserError(f"encoder.freeze: no module is {name!r}.{nearest(name, known)}")
            encoder.get_submodule(name).requires_grad_(False)
    elif freeze:
        depths = layer_depths(encoder)
        frozen = round(freeze * (max(depths.values()) + 1))
        for name, weight in encoder.named_parameters():
            if depths[name] < frozen:
                weight.requires_grad_(False)
    lora = getattr(section, "lora", None)
    if lora is None:
        return
    require("peft", "adapt", "encoder.lora")
    from peft import inject_adapter_in_model

    kinds = [(name, module) for name, module in encoder.named_modules() if name]
    linear = [name for name, module in kinds if isinstance(module, nn.Linear)]
    dense = [n for n, m in kinds if isinstance(m, nn.Conv2d) and m.groups == 1]
    config = _config(lora, list(lora.targets) if lora.targets != "auto" else linear or dense)
    encoder.requires_grad_(False)
    try:
        inject_adapter_in_model(config, encoder)
    except ValueError as error:
        raise UserError(f"encoder.lora: {error}") from error


def merged(encoder: nn.Module) -> nn.Module:
    """A copy whose low-rank matrices are added to the weights; the encoder itself without LoRA."""
    if not any(hasattr(module, "lora_A") for module in encoder.modules()):
        return encoder
    whole = copy.deepcopy(encoder)
    layers = [(name, m) for name, m in whole.named_modules() if hasattr(m, "lora_A")]
    for name, layer in layers:
        layer.merge()
        parent, _, leaf = name.rpartition(".")
        setattr(whole.get_submodule(parent), leaf, layer.get_base_layer())
    return whole


def save_adapter(encoder: nn.Module, folder: Path, section: LoraSection) -> None:
    """Write the low-rank matrices as peft reads them for the encoder, or for its `model`."""
    state = {n: v for n, v in encoder.state_dict().items() if ".lora_" in n}
    wrapper = "model." if all(name.startswith("model.") for name in state) else ""
    matrices = {
        f"base_model.model.{name.removeprefix(wrapper).replace('.default', '')}": value.contiguous()
        for name, value in state.items()
    }
    folder.mkdir(parents=True, exist_ok=True)
    save_file(matrices, folder / "adapter_model.safetensors")
    layers = {name.split(".lora_")[0].removeprefix("base_model.model.") for name in matrices}
    _config(section, sorted(layers)).save_pretrained(folder)


def _config(section: LoraSection, targets: list[str]) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=section.rank, lora_alpha=section.alpha or 2 * section.rank, target_modules=targets
    )
