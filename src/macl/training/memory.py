"""Less memory for weights and activations: sharding over processes, and recomputation."""

from __future__ import annotations

from contextlib import nullcontext
from functools import partial
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import DDPStrategy, ModelParallelStrategy
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from macl.chunks import statistics_kept
from macl.core.errors import UserError
from macl.recipes import Recipe


def build_strategy(recipe: Recipe, world: int) -> Any:
    """Lightning's strategy for `world` processes; `UserError` if it lacks the precision."""
    if world == 1:
        return "auto"
    if recipe.strategy == "fsdp2":
        if recipe.precision == "16":
            raise UserError("strategy fsdp2 does not scale losses: use precision bf16 or 32.")
        return _FullySharded(world, 1, save_distributed_checkpoint=False)
    # Buffers are not sent: the queue is the same on every rank by construction, and sending it with
    # every step would cost more than the gradients. Not every method uses every head.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


class _FullySharded(ModelParallelStrategy):
    """FSDP2; one process writes whole checkpoints, any number reads them, and none unpickles."""

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        return super().load_checkpoint(checkpoint_path, weights_only=True)


def shard(method: nn.Module, mesh: Any) -> list[nn.Parameter]:
    """Shard the networks of a method over the processes of `mesh`, block by block.

    Returns:
        What stays whole: parameters of the loss, such as a learned temperature. Their gradients are
        averaged as DistributedDataParallel does.
    """
    from torch.distributed.fsdp import fully_shard

    if mesh.device_type != "cpu":  # as the trainer does for DistributedDataParallel
        nn.SyncBatchNorm.convert_sync_batchnorm(method)
    for name, network in method.named_children():
        if name != "loss" and any(True for _ in network.parameters()):
            for block in blocks(network):
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)
    whole = [p for p in method.parameters() if p.requires_grad and local(p) is p]
    for parameter in whole:
        parameter.register_post_accumulate_grad_hook(partial(_average, group=mesh.get_group()))
    return whole


def local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds, where it is sharded."""
    part: Tensor = value.to_local() if hasattr(value, "to_local") else value
    return part


def _average(parameter: Tensor, group: dist.ProcessGroup) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad, group=group)
    parameter.grad /= dist.get_world_size(group)


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
