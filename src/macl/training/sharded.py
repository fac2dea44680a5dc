"""FSDP2: weights, gradients, the optimizer's state and checkpoints in parts, one for each process.

Imported where it is used: torch's distributed checkpoints take a while to load.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch.distributed as dist
from lightning.pytorch.strategies import ModelParallelStrategy
from torch import nn
from torch.distributed.checkpoint.hf_storage import (
    HuggingFaceStorageReader,
    HuggingFaceStorageWriter,
)
from torch.distributed.checkpoint.state_dict import (
    get_model_state_dict,
    get_optimizer_state_dict,
    set_model_state_dict,
    set_optimizer_state_dict,
)
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.fsdp import fully_shard

from macl.core.checkpoint_parts import PARTS, new_parts, part_names, parts_folder
from macl.core.checkpoints import SafeCheckpointIO
from macl.training.compute import blocks, local


class FullySharded(ModelParallelStrategy):
    """FSDP2; every process writes its part of a checkpoint, and any number of them reads it.

    The file is written after all parts, and they have a new name: it is complete at any time.
    """

    def save_checkpoint(
        self, checkpoint: dict[str, Any], filepath: Any, storage_options: Any | None = None
    ) -> None:
        """Write the parts as safetensors, then the file that names them."""
        path = Path(filepath)
        name = self.broadcast(new_parts(path))
        states = checkpoint.pop("optimizer_states")
        tensors = part_names(checkpoint.pop("state_dict"), states)
        parts = path.with_name(name)
        save(tensors, storage_writer=HuggingFaceStorageWriter(str(parts), save_distributed=True))
        self.barrier()
        if self.is_global_zero:
            groups = [{"param_groups": state["param_groups"]} for state in states]
            rest = {"state_dict": {}, "optimizer_states": groups, PARTS: parts.name}
            self.checkpoint_io.save_checkpoint({**checkpoint, **rest}, path)

    def load_checkpoint(self, checkpoint_path: Any, weights_only: bool | None = None) -> Any:
        """Read each process' share of the parts, or of a whole file; nothing is unpickled."""
        path = Path(checkpoint_path)
        checkpoint = SafeCheckpointIO().load_file(path)
        parts = parts_folder(checkpoint, path)
        if parts is None:
            return super().load_checkpoint(path, weights_only=True)
        module = self.lightning_module
        assert module is not None
        model = get_model_state_dict(module)
        states = [get_optimizer_state_dict(module, optimizer) for optimizer in self.optimizers]
        reader = HuggingFaceStorageReader(str(parts))
        stored = reader.read_metadata().state_dict_metadata
        tensors = part_names(model, states)
        load({k: v for k, v in tensors.items() if k in stored}, storage_reader=reader)
        set_model_state_dict(module, model)
        for optimizer, state, own in zip(
            self.optimizers, states, checkpoint["optimizer_states"], strict=True
        ):
            set_optimizer_state_dict(module, optimizer, optim_state_dict={**state, **own})
        return checkpoint


def shard(method: nn.Module, mesh: Any) -> list[nn.Parameter]:
    """Shard the networks of a method over the processes of `mesh`, block by block.

    Returns:
        What stays whole: parameters of the loss, such as a learned temperature. Their gradients are
        averaged as DistributedDataParallel does.
    """
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


def _average(parameter: nn.Parameter, group: dist.ProcessGroup) -> None:
    assert parameter.grad is not None
    dist.all_reduce(parameter.grad, group=group)
    parameter.grad /= dist.get_world_size(group)
