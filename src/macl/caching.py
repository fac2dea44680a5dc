"""Batches larger than memory: encode in chunks, loss on the whole, encode again for the gradient.

Gradient caching (Gao et al. 2021, "Scaling deep contrastive learning batch size under memory
limited setup"), at the cost of one more forward pass; in training and in `macl.cached` alike.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.nn.parallel import DistributedDataParallel
from torch.utils.checkpoint import checkpoint

from macl.core import batching

Call = Callable[[nn.Module, Any], Tensor]
T = TypeVar("T")
SHARE = 0.8
"""Of the free memory that a plan fills; the rest is for what it does not count."""


def encode_in_chunks(
    encode: Callable[..., tuple[Tensor, ...]],
    views: Sequence[Any],
    chunk: int | None,
    module: nn.Module,
) -> tuple[Tensor, ...]:
    """`encode(*views)`, with activations of `chunk` samples in memory; None: of all.

    `encode` applies `module`. Each chunk is encoded a second time in the backward pass, from the
    same random state and under the same autocast. Batch normalization sees one chunk at a time and
    updates its running statistics once per chunk. It is one backward pass for autograd, so that
    DistributedDataParallel exchanges gradients once per step.
    """
    rows = batching.size(views[0])
    if chunk is None or rows <= chunk:
        return encode(*views)

    def encode_part(at: Tensor) -> tuple[Tensor, ...]:
        return encode(*(batching.take(view, at) for view in views))

    # On the device of the weights: its generator is one of those that `checkpoint` restores.
    first = next(module.parameters(), None)
    positions = torch.arange(rows, device=None if first is None else first.device)
    # Batch normalization needs two samples, so no chunk is left with one.
    parts = positions.tensor_split(max(1, min(-(-rows // chunk), rows // 2)))
    encoded = [computed_again(module, encode_part, part) for part in parts]
    return tuple(map(torch.cat, zip(*encoded, strict=True)))


def computed_again(module: nn.Module, function: Callable[..., T], *args: Any, **given: Any) -> T:
    """`function(...)`, which applies `module`, computed a second time for the gradient."""

    def contexts() -> tuple[Any, Any]:
        return nullcontext(), statistics_kept(module)

    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **given)


@contextmanager
def statistics_kept(module: nn.Module) -> Iterator[None]:
    """Batch normalization updates copies of its running statistics inside."""
    norms = [part for part in module.modules() if isinstance(part, _BatchNorm)]
    kept = [(m, name, b) for m in norms for name, b in m.named_buffers(recurse=False)]
    for norm, name, buffer in kept:
        setattr(norm, name, buffer.clone())
    try:
        yield
    finally:
        for norm, name, buffer in kept:
            setattr(norm, name, buffer)


class CachedStep(nn.Module):
    """A step that encodes a batch in chunks and takes the loss of the whole: gradient caching.

        step = macl.cached(encoder, MACL(), chunk=32)
        step(view1, view2).backward()

    Loss and gradients are those of the plain step, with the activations of one chunk in memory, at
    the cost of one more forward pass. Dropout draws the same masks when a chunk is encoded again.
    Autocast, a GradScaler and a learned temperature need nothing special. For several processes
    wrap the step, not the encoder, in DistributedDataParallel: there is one exchange per step.

    Args:
        encoder: treats samples independently of each other, except in batch normalization, which
            sees a chunk at a time; or one encoder for each view.
        criterion: any loss of `macl`, or another function of the embeddings.
        chunk: most samples that are encoded at a time; see `plan`.
        call: (encoder, part of a view) → (n, D) embeddings, where that is not `encoder(part)`, such
            as `lambda bert, tokens: bert(**tokens).last_hidden_state[:, 0]`.
    """

    def __init__(
        self,
        encoder: nn.Module | Sequence[nn.Module],
        criterion: Callable[..., Tensor],
        chunk: int = 32,
        *,
        call: Call | None = None,
    ) -> None:
        super().__init__()
        towers = [encoder] if isinstance(encoder, nn.Module) else list(encoder)
        for tower in towers:
            if not isinstance(tower, nn.Module):
                raise TypeError(
                    f"encoder is a torch module, or one for each view; got {type(tower).__name__}. "
                    "Say with call=… how a module is applied."
                )
            if any(isinstance(part, DistributedDataParallel) for part in tower.modules()):
                raise ValueError(
                    "give the encoder itself and wrap the step: "
                    "DistributedDataParallel(cached(encoder, criterion))."
                )
        if not towers or chunk < 1:
            raise ValueError(f"cached takes an encoder and a chunk of 1 or more; got {chunk}.")
        self.towers, self.criterion, self.chunk = nn.ModuleList(towers), criterion, chunk
        self._call = call or _apply

    def forward(self, *views: Any, **options: Any) -> Tensor:
        """The loss of a batch.

        `views` are anchors, positives, and any number of views of hard negatives: tensors, mappings
        or tuples of tensors whose first dimension counts samples. The last encoder takes the views
        that have none of their own. `options` go to the criterion, such as `groups`.
        """
        one, two, *hard = (self._embeddings(k, view) for k, view in enumerate(views))
        if hard:
            options["hard"] = torch.cat(hard)
        return self.criterion(one, two, **options)

    def _embeddings(self, number: int, view: Any) -> Tensor:
        tower = self.towers[min(number, len(self.towers) - 1)]

        def encode(part: Any) -> tuple[Tensor]:
            output = self._call(tower, part)
            if not isinstance(output, Tensor) or output.ndim != 2:
                raise TypeError(
                    f"an encoder returns (n, D) embeddings, got {type(output).__name__}: say with "
                    "call=… how they are taken from it."
                )
            return (output,)

        return encode_in_chunks(encode, (view,), self.chunk, tower)[0]


cached = CachedStep


def _apply(module: nn.Module, view: Any) -> Tensor:
    embeddings: Tensor = module(*view) if isinstance(view, tuple) else module(view)
    return embeddings


class StepPlan(NamedTuple):
    """What `plan` found; printing it shows all of it."""

    chunk: int | None
    """For `cached`; None where the batch fits at once."""
    batch: int
    plain_bytes: int
    """That a plain step needs, beside the weights."""
    cached_bytes: int
    """That a step in such chunks needs."""
    free_bytes: int
    """That there are."""
    extra_compute: float
    """Share of further computation in a step with chunks."""

    def __str__(self) -> str:
        plain, needed, free = (
            f"{n / 2**20:,.0f} MB" for n in (self.plain_bytes, self.cached_bytes, self.free_bytes)
        )
        if self.chunk is None:
            return f"a batch of {self.batch} needs {plain} of {free}: no chunks."
        return (
            f"chunk={self.chunk}: a batch of {self.batch} needs {needed} of {free}, in place of "
            f"{plain}, and {self.extra_compute:.0%} more computation."
        )


def plan(
    encoder: nn.Module,
    sample: Any,
    batch: int,
    *,
    views: int = 2,
    memory: int | None = None,
    call: Call | None = None,
) -> StepPlan:
    """The largest chunk for `cached` that fits in memory, and what it costs.

        print(macl.plan(encoder, images[:8], batch=2048))

    What a forward pass keeps for the backward pass is counted on the sample and on half of it, and
    extrapolated; gradients and two averages of the optimizer are added. `ValueError` where not even
    a chunk of 2 fits.

    Args:
        encoder: on the device and in the mode of training; run it under the same autocast.
        sample: a view of two samples or more, as large as they come.
        batch: samples of a step on this device.
        views: how many of each sample are encoded.
        memory: bytes that may be used; by default 80% of those that are free now.
        call: as for `cached`.
    """
    from torch.utils.flop_counter import FlopCounterMode

    size = batching.size(sample)
    if size < 2 or batch < 2:
        raise ValueError(f"plan takes a sample and a batch of 2 or more; got {size} and {batch}.")
    weights = list(encoder.parameters())
    trained = [w for w in weights if w.requires_grad]
    part = batching.take(sample, torch.arange(size // 2))
    counter = FlopCounterMode(display=False)
    with torch.random.fork_rng(), statistics_kept(encoder), counter:
        half, _, _ = _kept(encoder, part, call or _apply)
        whole, given, embeddings = _kept(encoder, sample, call or _apply)
        forward = counter.get_total_flops()
        torch.autograd.grad(embeddings.sum(), trained, allow_unused=True)
        total = counter.get_total_flops()
    each = (whole - half) / (size - size // 2)
    fixed = 3 * sum(w.nbytes for w in trained) + whole - each * size
    # Inputs; embeddings, their unit rows, and the gradients of both.
    fixed += views * batch * (given + 4 * embeddings.nbytes) / size
    plain = int(fixed + views * batch * each)
    free = int(SHARE * _free(weights)) if memory is None else memory
    # The sample's forward, of two that were counted; without countable operations, as usual.
    once = forward * size / (size + size // 2)
    extra = once / (once + total - forward) if total > forward else 1 / 3
    if plain <= free:
        return StepPlan(None, batch, plain, plain, free, 0.0)
    chunk = min(batch // 2, int((free - fixed) / max(each, 1)))
    if chunk < 2:
        raise ValueError(
            f"a batch of {batch} needs {fixed / 2**20:,.2f} MB for inputs, embeddings and "
            f"gradients and {2 * each / 2**20:,.2f} MB for a chunk of 2; {free / 2**20:,.2f} MB "
            "are free. Take a smaller batch, or more devices."
        )
    return StepPlan(chunk, batch, plain, int(fixed + chunk * each), free, extra)


def _kept(encoder: nn.Module, view: Any, call: Call) -> tuple[int, int, Tensor]:
    """Bytes that a forward pass keeps, without weights and inputs; bytes of the inputs; result."""
    inputs = _tensors(view)
    own = {t.untyped_storage().data_ptr() for t in (*encoder.parameters(), *inputs)}
    seen: dict[int, Tensor] = {}

    def pack(tensor: Tensor) -> Tensor:
        seen.setdefault(tensor.untyped_storage().data_ptr(), tensor)
        return tensor

    with torch.enable_grad(), torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        output = call(encoder, view)
    kept = sum(t.untyped_storage().nbytes() for at, t in seen.items() if at not in own)
    return kept, sum(t.nbytes for t in inputs), output


def _tensors(view: Any) -> list[Tensor]:
    if isinstance(view, Tensor):
        return [view]
    parts = view.values() if isinstance(view, Mapping) else view if isinstance(view, tuple) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _free(weights: Sequence[Tensor]) -> int:
    """Bytes that are free on the device of the weights."""
    device = weights[0].device if weights else torch.device("cpu")
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[0]
    known = Path("/proc/meminfo")
    if device.type != "cpu" or not known.exists():
        raise ValueError(f"the free memory of {device.type} is not known here: give memory=….")
    lines = dict(line.split(":") for line in known.read_text(encoding="utf-8").splitlines())
    return int(lines["MemAvailable"].split()[0]) * 1024
