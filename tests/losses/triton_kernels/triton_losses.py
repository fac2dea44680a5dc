"""Every loss on the Triton kernels, interpreted, against the tiled loop: a process of its own.

    TRITON_INTERPRET=1 python triton_losses.py

prints one line of JSON: "loss form" → [largest error of value and gradients, number of launches].
"""

from __future__ import annotations

import json
from typing import Any

import every_loss
import torch

from macl.losses.ops.triton.launch import Launch

N, EXTRA, D = 6, 9, 5


def difference(found: list[torch.Tensor], expected: list[torch.Tensor]) -> float:
    """The largest, relative to the largest entry of each tensor, at least 1."""
    errors = [
        float((a - b).abs().max() / b.abs().max().clamp(min=1))
        for a, b in zip(found, expected, strict=True)
    ]
    return max(errors)


def main() -> None:
    torch.set_num_threads(1)
    run, launched = Launch.run, []

    def count(self: Launch, **outputs: Any) -> None:
        launched.append(self.kernel)
        run(self, **outputs)

    Launch.run = count  # type: ignore[method-assign]
    generator = torch.Generator().manual_seed(0)
    z1, z2, more = (
        torch.randn(rows, D, generator=generator).requires_grad_() for rows in (N, N, EXTRA)
    )
    results = {}
    for name in every_loss.LOSSES:
        for form in every_loss.FORMS:
            call = every_loss.keywords(form, more, torch.arange(N) % 4, torch.arange(EXTRA) % 5)
            values = []
            launched.clear()
            for kernel in ("triton", "tiled"):
                criterion = every_loss.build(name, form, N, kernel=kernel)
                leaves = [z1, z2, *([more] if form in ("bank", "hard") else [])]
                leaves += list(criterion.parameters())
                value = criterion(z1, z2, **call)
                gradients = torch.autograd.grad(value, leaves, allow_unused=True)
                values.append([value.detach(), *(g for g in gradients if g is not None)])
            results[f"{name} {form}"] = [difference(*values), len(launched)]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
