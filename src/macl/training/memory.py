"""Less memory for weights and activations: the strategy of several processes, recomputation."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from macl.caching import statistics_kept
from macl.core.errors import UserError
from macl.recipes import Recipe


def build_strategy(recipe: Recipe, world: int) -> Any:
    """Lightning's strategy for `world` processes; `UserError` if it lacks the precision."""
    if world == 1:
        return "auto"
    if recipe.strategy == "fsdp2":
        if recipe.precision == "16":
            raise UserError("strategy fsdp2 does not scale losses: use precision bf16 or 32.")
        if recipe.ema is not None:
            raise UserError("strategy fsdp2 keeps no mean of the weights: use ddp, or ema=null.")
        from macl.training.sharded import FullySharded

        return FullySharded(world, 1)
    # Buffers are not sent: the queue is the same on every rank by construction, and sending it with
    # every step would cost more than the gradients. Not every method uses every head.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds, where it is sharded."""
    part: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return part


def checkpoint_activations(encoder: nn.Module) -> None:
    """Keep the inputs of each block alone; its activations are computed again for the gradient."""
    for block in blocks(encoder):
        options: dict[str, Any] = {"use_reentrant": False, "context_fn": partial(_replayed, block)}
        block.forward = partial(checkpoint, block.forward, **options)


def _replayed(block: nn.Module) -> tuple[Any, Any]:
    return nullcontext(), statistics_kept(block)  # batch normalization counts a batch once


def blocks(network: nn.Module) -> list[nn.Module]:
    """The outermost numbered modules with parameters: `layer1.0`, `blocks.3`, `encoder.layer.5`."""
    outermost: dict[str, nn.Module] = {}
    for name, module in network.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in outermost)
        numbered = name.rpartition(".")[2].isdecimal()
        if numbered and not inside and any(True for _ in module.parameters()):
            outermost[name] = module
    return list(outermost.values())
