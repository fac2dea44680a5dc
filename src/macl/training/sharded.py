"""FSDP2: weights, gradients, optimizer state and checkpoints in parts, one for each process."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import Tensor, nn
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from macl.core.checkpoints import PARTS, PROCESSES, write_parts
from macl.training.compute import blocks, local


class FullySharded(ModelParallelStrategy):
    """FSDP2; every process writes its part of a checkpoint, and any number of them reads it.

    The file is written after all parts, and they have a new name: it is complete at any time.
    """

    def optimizer_state(self, optimizer: Optimizer) -> dict[str, Any]:
        """As of any optimizer; what belongs to a sharded weight is sharded too."""
        return optimizer.state_dict()

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Write the parts as safetensors, then the file that names them."""
        path = Path(filepath)
        parts = path.with_name(self.broadcast(f"{path.stem}-{secrets.token_hex(8)}.parts"))
        whole = write_parts(checkpoint, parts, self.global_rank)
        self.barrier()
        if self.is_global_zero:
            names = {PARTS: parts.name, PROCESSES: self.world_size}
            self.checkpoint_io.save_checkpoint({**whole, **names}, path)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read a checkpoint, in parts or whole, of which this process keeps its share."""
        checkpoint = self.checkpoint_io.load_checkpoint(checkpoint_path)
        module = self.lightning_module
        assert module is not None
        own, stored = module.state_dict(), checkpoint["state_dict"]
        module.load_state_dict({k: _sharded_as(v, own.get(k)) for k, v in stored.items()})
        for optimizer, state in zip(self.optimizers, checkpoint["optimizer_states"], strict=True):
            weights = [w for group in optimizer.param_groups for w in group["params"]]
            for number, slots in state["state"].items():
                for slot, value in slots.items():
                    slots[slot] = _sharded_as(value, weights[number])
            optimizer.load_state_dict(state)
        return checkpoint


def _sharded_as(value: Any, like: Tensor | None) -> Any:
    """A tensor in the shards of another of its shape; other values as they are."""
    if isinstance(like, DTensor) and isinstance(value, Tensor) and value.shape == like.shape:
        return distribute_tensor(value, like.device_mesh, like.placements)
    return value


def shard(method: nn.Module, mesh: Any) -> list[nn.Parameter]:
    """Shard the networks of a method over the processes of `mesh`, block by block.

    What it returns stays whole: parameters of the loss, such as a learned temperature, whose
    gradients are averaged as DistributedDataParallel does.
    """
    if mesh.device_type != "cpu":  # as the trainer does for DistributedDataParallel
        nn.SyncBatchNorm.convert_sync_batchnorm(method)
    for name, network in method.named_children():
        if name != "loss" and any(True for _ in network.parameters()):
            for block in blocks(network):
                fully_shard(block, mesh=mesh)
            fully_shard(network, mesh=mesh)

    def average(parameter: Tensor) -> None:
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad, group=mesh.get_group())
        parameter.grad /= mesh.size()

    whole = [p for p in method.parameters() if p.requires_grad and local(p) is p]
    for parameter in whole:
        parameter.register_post_accumulate_grad_hook(average)
    return whole
