"""Files of `torch.save` and networks from files, within the limits of `core.limits`."""

from __future__ import annotations

import io
import math
import mmap
import pickletools
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

from macl.core.errors import UserError
from macl.core.limits import check_limit, check_unpacked, limit, refuse_bomb

LEGACY_PICKLES = 4
"""Pickles at the start of a file in torch's format before zip: the fourth has the values."""


def load_torch(path: Path) -> Any:
    """The tensors and plain values of a file of `torch.save` within the limits; no code is run."""
    refuse_bomb(path)
    _check_pickles(path)
    stored = torch.load(path, map_location="cpu", weights_only=True)
    _check_values(stored, path)
    return stored


def _check_pickles(path: Path) -> None:
    """Count what the pickles would do: torch takes a microsecond or more for each step."""
    operations = chain.from_iterable(map(pickletools.genops, _pickles(path)))
    # The limit is looked up once, and one more step shows that there are too many.
    steps = sum(1 for _ in islice(operations, limit("steps") + 1))
    check_limit("steps", steps, f"{path}: the steps of its pickle")


def _pickles(path: Path) -> Iterator[Any]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            check_limit("tensors", len(archive.infolist()), f"{path}: members")
            for member in archive.infolist():
                if member.filename.endswith("data.pkl"):
                    yield io.BytesIO(archive.read(member))
        return
    # Mapped: reading a claimed length from a file would allocate it first.
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        for _ in range(LEGACY_PICKLES):
            yield content


def _check_values(stored: Any, path: Path) -> None:
    """Count values and bytes of tensors as often as they are reached: references multiply."""
    size, values, unpacked = path.stat().st_size, 0, 0
    most, deepest = limit("values"), limit("depth")
    stack = [(stored, 0)]
    while stack:
        value, depth = stack.pop()
        values += 1
        if values > most or depth > deepest:
            check_limit("values", values, f"{path}: its values")
            check_limit("depth", depth, f"{path}: the nesting of its values")
        if isinstance(value, Tensor):
            # Strides of 0 let a few bytes be a tensor of any size.
            unpacked += value.numel() * value.element_size()
            check_unpacked(unpacked, size, path, "its tensors would unpack")
        elif isinstance(value, Mapping):
            stack += [(each, depth + 1) for pair in value.items() for each in pair]
        elif isinstance(value, list | tuple | set | frozenset):
            stack += [(each, depth + 1) for each in value]


@contextmanager
def within(weights: Path) -> Iterator[None]:
    """Let networks built inside have as many numbers as the file or folder `weights` has bytes."""
    files = weights.rglob("*") if weights.is_dir() else [weights]
    stored = sum(file.stat().st_size for file in files if file.is_file())
    with _Counted(stored, weights):
        yield


class _Counted(TorchFunctionMode):
    """Counts the tensors that are created, and their numbers."""

    CREATE = frozenset(
        {torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn, torch.arange}
    )

    def __init__(self, stored: int, path: Path) -> None:
        super().__init__()
        self.stored, self.path = stored, path
        self.numbers = self.tensors = 0

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in self.CREATE:
            self.tensors += 1
            given = args[0] if args and isinstance(args[0], tuple | list) else args
            sizes = kwargs.get("size", given)
            self.numbers += abs(math.prod(size for size in sizes if isinstance(size, int)))
            check_limit("tensors", self.tensors, f"the network of {self.path}: tensors")
            if self.numbers > self.stored + limit("numbers"):
                raise UserError(
                    f"{self.path} has {self.stored:,} bytes, and the network that its settings "
                    f"describe has more than {self.numbers:,} numbers: they do not belong "
                    f"together. If you trust it, set MACL_LIMIT_NUMBERS={self.numbers}."
                )
        return func(*args, **kwargs)
