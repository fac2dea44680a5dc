"""Run with TRITON_INTERPRET=1: losses on the Triton kernels against the CPU loop."""

from __future__ import annotations

import every_loss
import torch

from macl.losses.kernels.triton_launch import Launch

CASES = [
    ("MACL", "both"),
    ("learned", "cross"),
    ("per-anchor", "hard"),
    ("dystress", "one-direction"),
    ("HCL", "bank"),
]
WHOLE = ("InfoNCE", "NTXent", "DCL", "FlatNCE", "MACL", "MACL-no-reweight")
"""Losses whose every part is in the kernels; see `macl.losses.fused`."""


def main() -> None:
    """Raise where value or gradients differ."""
    n, extra = 6, 9
    generator = torch.Generator().manual_seed(0)
    z1, z2, more = (
        torch.randn(rows, 5, generator=generator).requires_grad_() for rows in (n, n, extra)
    )
    for name, form in CASES:
        groups, more_groups = torch.arange(n) % 4, torch.arange(extra) % 5
        call = every_loss.keywords(form, more, groups, more_groups)
        found = []
        for kernel in ("auto", "triton"):
            criterion = every_loss.build(name, form, n, kernel=kernel)
            leaves = [
                z1,
                z2,
                *([more] if form in ("bank", "hard") else []),
                *criterion.parameters(),
            ]
            value = criterion(z1, z2, **call)
            found.append((value, *torch.autograd.grad(value, leaves)))
        torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-5)
        print(name, form, "agree")
    for name in every_loss.LOSSES:
        count = launches(name)
        # Forward and backward; one τ per row has a backward for each side; the dual temperature a
        # second forward; HCL two logsumexps. A whole loss has three kernels more, and no others.
        expected = {"per-anchor": 3, "DualTemperature": 3, "HCL": 4, "per-anchor-hcl": 6}
        expected |= dict.fromkeys(WHOLE, 5)
        assert count == expected.get(name, 2), (name, count)
        print(name, "launches", count)


def launches(name: str) -> int:
    """Triton kernels of a step on both views, forward and backward."""
    run, kernels = Launch.run, []

    def count(self: Launch) -> None:
        kernels.append(self.kernel)
        run(self)

    criterion = every_loss.build(name, "both", 3, kernel="triton")
    z1, z2 = (torch.randn(3, 4).requires_grad_() for _ in range(2))
    Launch.run = count  # type: ignore[method-assign]
    try:
        criterion(z1, z2).backward()
    finally:
        Launch.run = run  # type: ignore[method-assign]
    return len(kernels)


if __name__ == "__main__":
    main()
