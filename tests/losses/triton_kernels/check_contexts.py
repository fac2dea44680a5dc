"""The self-check in every context in which a loss may ask for it: a process of its own.

    TRITON_INTERPRET=1 XDG_CACHE_HOME=FOLDER python check_contexts.py

prints one line of JSON: context → reason, which is empty if the kernels agree.
"""

from __future__ import annotations

import contextlib
import json
from typing import Any

import torch
from torch import Tensor

from macl.losses.ops.triton import check

CPU = torch.device("cpu")


class Inside(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        asked.append(fresh())
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        asked.append(fresh())
        return gradient


@torch.library.custom_op("macl_test::asks", mutates_args=())
def operator(x: Tensor) -> Tensor:
    asked.append(fresh())
    return x.clone()


@operator.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


asked: list[str] = []


def fresh() -> str:
    """The answer of a process that has not checked yet."""
    check._reasons.clear()
    check._marker(CPU).unlink(missing_ok=True)
    return check.unavailable(CPU)


def main() -> None:
    torch.set_num_threads(1)
    answers = {"plain": fresh()}
    check.SHAPES = ((20, 30, 16, False), (20, 30, 16, True))  # type: ignore[assignment]
    contexts: dict[str, contextlib.AbstractContextManager[Any]] = {
        "no_grad": torch.no_grad(),
        "inference_mode": torch.inference_mode(),
        "autocast": torch.autocast("cpu", torch.bfloat16),
    }
    for name, context in contexts.items():
        with context:
            answers[name] = fresh()
    x = torch.ones(2, requires_grad=True)
    Inside.apply(x).sum().backward()
    operator(x.detach())
    torch.compile(lambda x: operator(x) + 1, backend="eager", fullgraph=True)(x.detach())
    names = ("Function.forward", "Function.backward", "custom_op", "compiled custom_op")
    answers |= dict(zip(names, asked, strict=True))
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
