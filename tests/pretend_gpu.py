"""A GPU for tests without one: tensors that say they are on cuda:0 and are computed on the CPU.

Every operator, copy and read is seen by a dispatch mode, which refuses what a GPU refuses (operands
on two devices) and records what would make it wait.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map

GPU = torch.device("cuda:0")
READS = {
    "_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "equal",
    "unique_consecutive", "bincount",
}  # fmt: skip
"""Operators whose result, or its shape, has to come back to the host."""


class OnGPU(Tensor):
    """A tensor that says it is on the GPU, and holds its numbers on the CPU."""

    held: Tensor

    @staticmethod
    def __new__(cls, held: Tensor) -> OnGPU:
        made: OnGPU = Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls,
            held.size(),
            strides=held.stride(),
            storage_offset=held.storage_offset(),
            dtype=held.dtype,
            device=GPU,
        )
        made.held = held
        return made

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError(f"{func} was called on a pretended GPU outside of `pretended_gpu`")


class Recorder(TorchDispatchMode):
    """Runs operators on the CPU and records those that a stream would wait for."""

    def __init__(self) -> None:
        super().__init__()
        self.operators = 0
        """Operators on the GPU."""
        self.reads: list[str] = []
        """Reads by the host."""
        self.copies_in: list[tuple[tuple[int, ...], bool]] = []
        """Shape of what was copied to the GPU, and whether the host waited."""
        self.copies_out: list[tuple[int, ...]] = []
        """Shape of what was copied from it."""
        self.places: list[str] = []
        """Where in the code the host waited for a copy to it."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if func.overloadpacket.__name__ == "to":  # reaches a mode as it is in inference mode
            with self:
                return func.decompose(*args, **kwargs)
        given = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        there = [leaf for leaf in given if isinstance(leaf, OnGPU)]
        name = func.overloadpacket.__name__
        wanted = kwargs.get("device")
        goes_there = bool(there) if wanted is None else torch.device(wanted).type == GPU.type
        if wanted is not None:
            kwargs["device"] = torch.device("cpu")
        copies = name in ("_to_copy", "copy_")
        if there and not copies and name not in ("index", "index_put", "index_put_"):
            # A scalar of the host may take part; so may an index.
            strange = [x for x in given if not isinstance(x, OnGPU) and x.dim() > 0]
            assert not strange, f"{func}: operands on cuda:0 and on the CPU"
        counts = name == "repeat_interleave" and kwargs.get("output_size") is None
        if there and (name in READS or counts):
            self.reads.append(_place(name))
        if name == "_to_copy" and bool(there) != goes_there:
            self._note(args[0], goes_there, bool(kwargs.get("non_blocking")))
        if name == "copy_" and isinstance(args[0], OnGPU) != isinstance(args[1], OnGPU):
            self._note(args[1], isinstance(args[0], OnGPU), len(args) > 2 and args[2])
        elif name in ("index", "index_put", "index_put_") and isinstance(args[0], OnGPU):
            for index in args[1]:
                if isinstance(index, Tensor) and not isinstance(index, OnGPU) and index.dim():
                    self._note(index, True, False)
                if isinstance(index, Tensor) and index.dtype == torch.bool and name == "index":
                    self.reads.append(_place("mask"))  # how many are selected
        self.operators += bool(there)

        def unwrap(leaf: Any) -> Any:
            return leaf.held if isinstance(leaf, OnGPU) else leaf

        known = {id(leaf.held): leaf for leaf in there}

        def wrap(leaf: Any) -> Any:
            if not isinstance(leaf, Tensor) or not goes_there:
                return leaf
            # An operator in place returns its operand.
            return known[id(leaf)] if id(leaf) in known else OnGPU(leaf)

        # A tensor of the other mode cannot be wrapped.
        with torch.inference_mode(mode=False), torch.no_grad():
            result = func(*tree_map(unwrap, args), **tree_map(unwrap, kwargs))
            return tree_map(wrap, result)

    def _note(self, moved: Tensor, to_gpu: bool, non_blocking: bool) -> None:
        if to_gpu:
            self.copies_in.append((tuple(moved.shape), not non_blocking))
            if not non_blocking:
                self.places.append(_place("copy"))
        else:
            self.copies_out.append(tuple(moved.shape))

    def clear(self) -> None:
        """Forget what was recorded."""
        self.operators = 0
        for found in (self.reads, self.copies_in, self.copies_out, self.places):
            found.clear()


def _place(what: str) -> str:
    """`what`, and the last line of this library that led to it."""
    stack = traceback.extract_stack()
    if any("/transformers/" in frame.filename for frame in stack):
        return f"{what} in transformers"
    ours = [f"{Path(f.filename).name}:{f.lineno}" for f in stack if "/macl/" in f.filename]
    return f"{what} at {ours[-1]}" if ours else what


@contextmanager
def pretended_gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    """torch finds one GPU inside."""
    for name, value in {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "is_bf16_supported": True,
        "get_device_name": "Pretended GPU",
        "mem_get_info": (1 << 30, 1 << 30),
        "get_device_capability": (7, 0),
        "get_device_properties": SimpleNamespace(total_memory=1 << 34, L2_cache_size=1 << 25),
        "get_rng_state": None,
        "set_rng_state": None,
    }.items():
        monkeypatch.setattr(torch.cuda, name, lambda *a, value=value, **k: value)
    monkeypatch.setattr(torch.backends.cudnn, "enabled", False)
    # There is no pinned memory without a driver; autocast asks for the driver itself.
    monkeypatch.setattr(Tensor, "pin_memory", lambda self, *a: self)
    overwrite = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)
    torch._C._ensureCUDADeviceGuardSet()  # does nothing where there is a GPU
    try:
        with Recorder() as recorder:
            yield recorder
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrite)
