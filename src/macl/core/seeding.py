"""Seeds derived from several numbers, and seeding of a device's generators."""

from __future__ import annotations

import torch


def reseed(device: torch.device, *numbers: int) -> None:
    """Seed the generators of the CPU and of `device` with `mix(*numbers)`."""
    if device.type == "cpu":
        # torch.manual_seed also visits absent device types, which takes a millisecond per step.
        torch.default_generator.manual_seed(mix(*numbers))
    else:
        torch.manual_seed(mix(*numbers))


def mix(*numbers: int) -> int:
    """One well-spread 63-bit seed from several small numbers (a splitmix64 chain)."""
    mask, state = (1 << 64) - 1, 0
    for number in numbers:
        state = (state ^ (number & mask)) + 0x9E3779B97F4A7C15 & mask
        state = (state ^ state >> 30) * 0xBF58476D1CE4E5B9 & mask
        state = (state ^ state >> 27) * 0x94D049BB133111EB & mask
        state ^= state >> 31
    return state >> 1
