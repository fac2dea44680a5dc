"""Where and how a run is computed: devices, machines, strategy, memory."""

from __future__ import annotations

import ctypes
import logging
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from lightning.pytorch.strategies import DDPStrategy
from torch import Tensor, nn

from macl.caching import computed_again
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.launch import launched_processes
from macl.recipes import Recipe

# The module makes itself double: Lightning's "64-true" would also change the default type of new
# tensors, and with it the random numbers of the views.
PRECISION = {"64": "32-true", "32": "32-true", "bf16": "bf16-mixed", "16": "16-mixed"}

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3
LARGEST_KEPT = 1 << 28
"""Blocks up to this size are reused. Larger ones, views of very large batches, are few."""


@dataclass(frozen=True)
class Compute:
    """Where a run is computed; nothing here changes what is computed."""

    devices: int = 0
    """Processes on each node; 0: as many as torchrun or srun started, one where neither did."""
    nodes: int = 0
    """Machines; 0: likewise."""
    accelerator: str = "auto"
    progress: bool = True

    @property
    def world(self) -> int:
        """Processes in all."""
        return self.devices * self.nodes

    def settled(self) -> Compute:
        """With numbers in place of zeros; `UserError` if they are not those of the launcher."""
        asked = replace(self, devices=self.devices or 1, nodes=self.nodes or 1)
        given = bool(self.devices or self.nodes)
        devices, nodes = launched_processes() or (asked.devices, asked.nodes)
        started = replace(self, devices=devices, nodes=nodes)
        if given and asked.world != started.world:
            raise UserError(
                f"torchrun or srun started {started.world} processes, and `devices=` and "
                f"`nodes=` ask for {asked.world}. Leave both out, or use "
                f"`devices={started.devices}` `nodes={started.nodes}`."
            )
        return asked if given else started


HERE = Compute()
"""One process on this machine, on its GPU if it has one."""


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
    # The queue is the same on every rank, and sending it would cost more than the gradients.
    return DDPStrategy(broadcast_buffers=False, gradient_as_bucket_view=True)


def build_trainer(
    recipe: Recipe,
    folder: Path,
    compute: Compute,
    epochs: int,
    callbacks: list[pl.Callback],
    loggers: list[Logger],
) -> pl.Trainer:
    """Lightning's trainer of a recipe; `UserError` if the strategy lacks the precision."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    gpu = compute.accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available()
    return pl.Trainer(
        accelerator=compute.accelerator if gpu or compute.accelerator != "auto" else "cpu",
        devices=compute.devices,
        num_nodes=compute.nodes,
        strategy=build_strategy(recipe, compute.world),
        sync_batchnorm=compute.world > 1 and gpu,
        precision=PRECISION[recipe.precision],  # type: ignore[arg-type]
        max_epochs=epochs,
        accumulate_grad_batches=recipe.accumulate_grad_batches,
        gradient_clip_val=recipe.gradient_clip,
        callbacks=callbacks,
        plugins=[SafeCheckpointIO()],
        logger=loggers,
        enable_checkpointing=any(isinstance(c, pl.callbacks.Checkpoint) for c in callbacks),
        enable_model_summary=False,
        enable_progress_bar=compute.progress,
        use_distributed_sampler=False,
        default_root_dir=folder,
    )


def local(value: Tensor) -> Tensor:
    """The part of a tensor that this process holds, where it is sharded."""
    return value.to_local() if hasattr(value, "to_local") else value


def checkpoint_activations(encoder: nn.Module) -> None:
    """Keep the inputs of each block alone; its activations are computed again for the gradient."""
    for block in blocks(encoder):
        block.forward = partial(computed_again, block, block.forward)


def blocks(network: nn.Module) -> list[nn.Module]:
    """The outermost numbered modules with parameters: `layer1.0`, `blocks.3`, `encoder.layer.5`."""
    outermost: dict[str, nn.Module] = {}
    for name, module in network.named_modules():
        inside = any(name.startswith(f"{outer}.") for outer in outermost)
        numbered = name.rpartition(".")[2].isdecimal()
        if numbered and not inside and any(True for _ in module.parameters()):
            outermost[name] = module
    return list(outermost.values())


@contextmanager
def kept_memory() -> Iterator[None]:
    """Keep freed blocks for the next allocation inside; afterwards return what is free.

    glibc returns large blocks to the system as they are freed: those above 32 MiB always, and the
    end of its heap. The activations of the next step are then new pages, which the system clears
    one by one: 40% of a step of a resnet8 of width 16 at 512 views of 32 px, in two threads. Does
    nothing without glibc, or where the environment configures its malloc.
    """
    configured = any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ)
    if configured or platform.libc_ver()[0] != "glibc":
        yield
        return
    libc = ctypes.CDLL(None)
    libc.mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
    libc.mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)
    try:
        yield
    finally:  # where glibc's own adjustment of these two ends
        libc.mallopt(M_MMAP_THRESHOLD, 1 << 25)
        libc.mallopt(M_TRIM_THRESHOLD, 1 << 26)
        libc.malloc_trim(0)
