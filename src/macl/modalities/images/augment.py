"""Image operations on a whole batch, each sample with its own parameters.

Every function is deterministic and agrees with `torchvision.transforms.v2.functional` on float
images. Two observations make them fast without a loop over samples:

- crop, resize, flip and blur are weighted sums of rows followed by weighted sums of columns, and a
  weighted sum of rows is what `embedding_bag` computes;
- brightness, contrast, saturation, grayscale and normalization are affine maps of the color of a
  pixel, so each is one product with a 3×3 matrix.
"""

from __future__ import annotations

import math
from functools import cache
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

GRAY = (0.2989, 0.587, 0.114)
"""Luma weights of red, green and blue, as in torchvision."""

BRIGHTNESS, CONTRAST, SATURATION, HUE = range(4)
"""What `order` and the columns of `factors` mean in `jitter_colors`."""


@cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a device, copied there once: every copy from the host makes it wait."""
    with torch.inference_mode(mode=False):
        return torch.tensor(values, device=device)


class Taps(NamedTuple):
    """Which K rows (or columns) of an image each of S outputs reads, and how much of each.

    Both are (B, S, K), the sources int64, the weights float32; a row of weights sums to one.
    """

    source: Tensor
    weight: Tensor


def weighted_rows(x: Tensor, taps: Taps) -> Tensor:
    """Row s of the result is Σ_k weight[s, k] · x[source[s, k]]: (B, C, H, W) → (B, C, S, W)."""
    batch, channels, height, width = x.shape
    planes = torch.arange(batch * channels, device=x.device).view(batch, channels, 1, 1)
    index = taps.source.unsqueeze(1) + planes * height
    weight = taps.weight.unsqueeze(1).expand_as(index).flatten(0, 2)
    lines = x.contiguous().view(-1, width)
    rows = F.embedding_bag(index.flatten(0, 2), lines, per_sample_weights=weight, mode="sum")
    return rows.view(batch, channels, -1, width)


def separable(x: Tensor, vertical: Taps, horizontal: Taps) -> Tensor:
    """Filter the rows, then the columns: (B, C, H, W) → (B, C, S, S'), with a contiguous `.mT`."""
    return weighted_rows(weighted_rows(x, vertical).mT, horizontal).mT


def resize_taps(
    start: Tensor, length: Tensor, steps: Tensor, size: int, side: int, cubic: bool = False
) -> Taps:
    """Antialiased bilinear or bicubic interpolation along one side, windowed.

    The interval [start, start + length) of a side is resized to `steps` pixels, of which the
    central `size` are kept. With c the center of an output pixel in the input and
    s = max(length / steps, 1), pixel j has weight max(0, 1 − |j + ½ − c| / s), or that of the cubic
    kernel (a = −½) of the same distance, normalized over the interval: nothing outside it is ever
    read. `start`, `length` and `steps` are (B,) int64, steps ≥ size; `side`, that of the padded
    batch, bounds the taps.
    """
    start, length, steps = (each.view(-1, 1, 1) for each in (start, length, steps))
    scale = length / steps
    support = scale.clamp(min=1)
    offset = ((steps - size) / 2).round()
    center = (torch.arange(size, device=start.device).view(1, -1, 1) + offset + 0.5) * scale
    reach = 2 if cubic else 1
    first = (center - reach * support + 0.5).floor()
    taps = torch.arange(math.ceil(2 * reach * max(side / size, 1)), device=start.device)
    position = first + taps
    inside = (position >= 0) & (position < length)
    distance = (position + 0.5 - center).abs() / support
    weight = (1 - distance).clamp_(min=0)
    if cubic:  # Keys' kernel, as Pillow and torchvision have it where they antialias
        near = (1.5 * distance - 2.5) * distance**2 + 1
        far = ((-0.5 * distance + 2.5) * distance - 4) * distance + 2
        weight = torch.where(distance < 1, near, torch.where(distance < 2, far, 0.0))
    weight = weight * inside
    return Taps(position.long() * inside + start, weight / weight.sum(dim=-1, keepdim=True))


def resized_crop(
    x: Tensor,
    boxes: Tensor,
    size: int,
    flip: Tensor | None,
    cubic: bool = False,
    resized: Tensor | None = None,
) -> Tensor:
    """Cut a box out of each image, resize it, keep size×size in the middle, mirror it.

    (B, C, H, W) → (B, C, size, size), whose `.mT` is contiguous. `boxes`, (B, 4) int64, are (top,
    left, height, width) inside the image; `resized`, (B, 2) int64, is what they are resized to, at
    least `size` and by default just that; `flip`, (B,) bool, says which are mirrored.
    """
    start, length = boxes.split(2, dim=1)
    steps = torch.full_like(length, size) if resized is None else resized
    vertical, horizontal = (
        resize_taps(start[:, i], length[:, i], steps[:, i], size, x.shape[2 + i], cubic)
        for i in range(2)
    )
    if flip is not None:
        mirror = flip.view(-1, 1, 1)
        horizontal = Taps(*(torch.where(mirror, part.flip(1), part) for part in horizontal))
    return separable(x, vertical, horizontal)


def gaussian_blur(x: Tensor, sigma: Tensor, kernel: int) -> Tensor:
    """Gaussian blur of standard deviation sigma, (B,), over `kernel` (odd) pixels; edges reflect.

    (B, C, S, S) → the same shape; its `.mT` is contiguous.
    """
    size, radius = x.shape[-1], kernel // 2
    distance = torch.arange(-radius, radius + 1, device=x.device)
    weight = torch.softmax(-0.5 * (distance / sigma.view(-1, 1)) ** 2, dim=1)
    position = (torch.arange(size, device=x.device).view(-1, 1) + distance).abs()
    index = size - 1 - (size - 1 - position).abs()
    taps = Taps(index.expand(len(x), -1, -1), weight.unsqueeze(1).expand(-1, size, -1))
    return separable(x, taps, taps)


def color_map(x: Tensor, matrix: Tensor, bias: Tensor) -> Tensor:
    """pixel ← matrix · pixel + bias, with matrix (B, 3, 3) and bias (B, 3): (B, 3, H, W) → same."""
    return torch.baddbmm(bias.unsqueeze(-1), matrix, x.flatten(2)).view(x.shape)


def gray_matrix(gray: Tensor) -> Tensor:
    """(B,) → (B, 3, 3): at 0 the identity, at 1 the map from a color to its gray, or between."""
    share = gray.view(-1, 1, 1)
    luma = constant(GRAY, gray.device).expand(3, 3)
    return (1 - share) * torch.eye(3, device=gray.device) + share * luma


def blend(x: Tensor, operation: Tensor, factor: Tensor) -> Tensor:
    """factor · x + (1 − factor) · target, clamped to [0, 1]; x is (B, 3, H, W) in [0, 1].

    Of `operation`, (B,) int64, the target of BRIGHTNESS is black, that of CONTRAST the image's mean
    gray, and that of SATURATION each pixel's own gray.
    """
    rest = 1 - factor
    saturation = gray_matrix(rest)
    scaling = factor.view(-1, 1, 1) * torch.eye(3, device=x.device)
    matrix = torch.where((operation == SATURATION).view(-1, 1, 1), saturation, scaling)
    mean_gray = x.mean(dim=(2, 3)) @ constant(GRAY, x.device)
    bias = rest * mean_gray * (operation == CONTRAST)
    return color_map(x, matrix, bias.view(-1, 1).expand(-1, 3)).clamp_(0, 1)


def shift_hue_(x: Tensor, shift: Tensor) -> Tensor:
    """Turn the hue of (B, 3, H, W) in [0, 1] in place by `shift`, (B,), of the color circle.

    HSV and back, in closed form. On the circle of circumference 6 with red at 0, green at 2 and
    blue at 4, and with chroma c = max − min, a color lies 1 + (g + b − r − min)/c away from red,
    on the side of green if g > b. A channel is at its highest within 1 of its own place, at its
    lowest within 1 of the opposite place, and linear between.
    """
    red, green, blue = x.unbind(dim=1)
    lowest, highest = x.amin(dim=1), x.amax(dim=1)
    chroma = highest - lowest
    # Where chroma is 0 the numerator is 0 too, and any hue gives the same gray.
    hue = (green + blue).sub_(red).sub_(lowest).div_(chroma.clamp(min=torch.finfo(x.dtype).tiny))
    hue = hue.add_(1).copysign_(green - blue).add_(6 * shift.view(-1, 1, 1))
    hue -= (hue / 6).floor_().mul_(6)

    def beyond(place: int) -> Tensor:
        """0 within 1 of a place on the circle, 1 from 2 on, linear between."""
        return (hue - place).abs_().sub_(1).clamp_(0, 1)

    torch.addcmul(lowest, chroma, beyond(3), out=red)
    torch.addcmul(highest, chroma, beyond(2), value=-1, out=green)
    torch.addcmul(highest, chroma, beyond(4), value=-1, out=blue)
    return x


def jitter_colors(x: Tensor, factors: Tensor, order: Tensor) -> Tensor:
    """Adjust the colors of x, (B, 3, H, W) in [0, 1], in an order of each sample's own.

    `factors`, (B, 4), are of BRIGHTNESS, CONTRAST, SATURATION, HUE, and (1, 1, 1, 0) changes
    nothing; a row of `order`, (B, 4) int64, is a permutation of the four.
    """
    shift = factors[:, HUE]
    place = (order == HUE).int().argmax(dim=1, keepdim=True)
    others = torch.arange(3, device=x.device)
    blends = order.gather(1, others + (others >= place))
    own = factors.gather(1, blends)
    turn = torch.where(shift != 0, place.squeeze(1), 4)
    if x.device.type != "cpu":
        return _jitter_at_once(x, blends, own, shift, turn)
    # Blends cost little and mix freely within one product. Hue is costly, so it is done for the
    # samples whose turn it is alone.
    x = x.clone()
    for step in range(4):
        rows = (turn == step).nonzero().squeeze(1)
        if len(rows):
            x.index_copy_(0, rows, shift_hue_(x.index_select(0, rows), shift[rows]))
        if step < 3:
            x = blend(x, blends[:, step], own[:, step])
    return x


def _jitter_at_once(x: Tensor, blends: Tensor, own: Tensor, shift: Tensor, turn: Tensor) -> Tensor:
    """As `jitter_colors`, without reading from the device how many samples have which turn.

    Hue once for all, the three blends before it and after it; each leaves alone the samples that
    have it on the other side: `turn` of them come before hue, and 4 where hue does not change.
    """
    steps = torch.arange(3, device=x.device)
    for is_before in (True, False):
        active = (steps < turn.unsqueeze(1)) == is_before
        for operation, factor in zip(blends.T, torch.where(active, own, 1.0).T, strict=True):
            x = blend(x, operation, factor)
        if is_before:
            shifted = shift_hue_(x.clone(), shift)
            x = torch.where((turn < 4).view(-1, 1, 1, 1), shifted, x)
    return x
