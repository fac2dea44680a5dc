"""A step of MoCo with 65,536 keys: ours against lightly's, and what it adds to the memory.

    python benchmarks/moco.py [--batch 256] [--keys 65536] [--dim 128] [--width 16] [--steps 6]

Same encoder, heads of the same widths, batch, momentum, temperature, precision (float32) and
optimizer; views are random images of 32 px, made beforehand. lightly: `NTXentLoss` with a memory
bank, `update_momentum`, `batch_shuffle`, as in its MoCo example; on one device the shuffled keys
still share one batch normalization, so ours is measured like that, and in the parts that it encodes
by default. Each has a process of its own and they
take turns; both keep freed memory (`training/compute.py`), so that allocation is not what is
compared. "loss" is the loss with its backward pass on given embeddings; its memory is the peak
above what was resident before, with every key in the queue.
"""

from __future__ import annotations

import argparse
import copy
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from macl import InfoNCE
from macl.methods import MoCo
from macl.methods.heads import build_head
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.recipes.methods import HeadConfig
from macl.training.compute import kept_memory
from turns import in_turns, reset_peak, resident_peak, serve

SIDE, TAU, MOMENTUM = 32, 0.2, 0.999
Views = tuple[Tensor, Tensor]
Step = Callable[[Views], None]
Loss = Callable[[Tensor, Tensor], Tensor]


def encoder(width: int) -> nn.Module:
    return build_image_encoder(ImageEncoderConfig(name="resnet8", stem="cifar", width=width))


def ours(given: argparse.Namespace, splits: int) -> tuple[Step, Loss]:
    network = encoder(given.width)
    dim = int(network.out_dim)
    projector = build_head(HeadConfig(widths=(dim, given.dim)), dim)
    method = MoCo(
        network, projector, InfoNCE(TAU, symmetric=False), given.dim,
        queue_size=given.keys, momentum=MOMENTUM, splits=splits,
    )  # fmt: skip
    optimizer = torch.optim.SGD(method.parameters(), lr=0.03, momentum=0.9)

    def step(views: Views) -> None:
        loss = method(*views).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    def loss(query: Tensor, key: Tensor) -> Tensor:
        method.queue.flush()
        return method.step(query, key).loss

    return step, loss


def lightly(given: argparse.Namespace) -> tuple[Step, Loss]:
    from lightly.loss import NTXentLoss
    from lightly.models.modules.heads import MoCoProjectionHead
    from lightly.models.utils import (
        batch_shuffle,
        batch_unshuffle,
        deactivate_requires_grad,
        update_momentum,
    )

    network = encoder(given.width)
    dim = int(network.out_dim)
    head = MoCoProjectionHead(dim, dim, given.dim)
    key_network, key_head = copy.deepcopy(network), copy.deepcopy(head)
    for module in (key_network, key_head):
        deactivate_requires_grad(module)
    criterion = NTXentLoss(TAU, memory_bank_size=(given.keys, given.dim))
    parameters = [*network.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=0.03, momentum=0.9)

    def step(views: Views) -> None:
        update_momentum(network, key_network, m=MOMENTUM)
        update_momentum(head, key_head, m=MOMENTUM)
        query = head(network(views[0]))
        with torch.no_grad():
            shuffled, order = batch_shuffle(views[1])
            key = batch_unshuffle(key_head(key_network(shuffled)), order)
        loss = criterion(query, key)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step, criterion


CONTENDERS = {
    "macl": partial(ours, splits=1),
    "macl, keys in 8 shuffled parts (its default)": partial(ours, splits=8),
    "lightly": lightly,
}


def contend(name: str, given: argparse.Namespace) -> None:
    """Blocks of one contender, on request."""
    torch.manual_seed(0)
    step, loss = CONTENDERS[name](given)
    views = (torch.randn(given.batch, 3, SIDE, SIDE), torch.randn(given.batch, 3, SIDE, SIDE))

    def lossy() -> None:
        query, key = torch.randn(2, given.batch, given.dim)
        loss(query.requires_grad_(), key).backward()

    lossy()  # libraries are loaded
    before = reset_peak()
    lossy()
    added = resident_peak() - before

    def block() -> dict[str, Any]:
        step(views)
        return {
            "step": [seconds(lambda: step(views)) for _ in range(given.steps)],
            "loss": [seconds(lossy) for _ in range(2 * given.steps)],
            "added": added,
        }

    with kept_memory():
        serve(block)


def seconds(call: Callable[[], None]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--keys", type=int, default=65536)
    parser.add_argument("--dim", type=int, default=128)
    parser.add_argument("--width", type=int, default=16)
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--only", choices=list(CONTENDERS), help=argparse.SUPPRESS)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    if given.only:
        contend(given.only, given)
        return
    found = in_turns(list(CONTENDERS), given.rounds)
    medians = {
        name: {
            part: statistics.median([s for block in blocks for s in block[part]])
            for part in ("step", "loss")
        }
        for name, blocks in found.items()
    }
    print(
        f"resnet8 width {given.width}, {SIDE} px, batch {given.batch}, {given.keys:,} keys of "
        f"{given.dim}, float32, torch {torch.__version__}, {given.threads} threads; medians of "
        f"{given.rounds} blocks of {given.steps} steps\n\n"
        "| | step, ms | macl is faster by | loss, ms | macl is faster by | the loss adds, MB |\n"
        "|---|---|---|---|---|---|"
    )
    base = medians["macl"]
    for name, own in medians.items():
        print(
            f"| {name} | {own['step'] * 1e3:.0f} | {own['step'] / base['step']:.2f}× "
            f"| {own['loss'] * 1e3:.0f} | {own['loss'] / base['loss']:.2f}× "
            f"| {found[name][0]['added']:.0f} |"
        )


if __name__ == "__main__":
    main()
