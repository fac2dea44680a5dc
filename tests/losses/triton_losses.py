"""Run with TRITON_INTERPRET=1: losses on the Triton kernels against the CPU loop."""

from __future__ import annotations

import every_loss
import torch

CASES = [
    ("MACL", "both"),
    ("learned", "cross"),
    ("per-anchor", "hard"),
    ("dystress", "one-direction"),
    ("HCL", "bank"),
]


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


if __name__ == "__main__":
    main()
