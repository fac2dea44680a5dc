"""Two random views of a batch of images, made on the device that holds the batch."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.images import augment
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sections import Augmentation, ImageViewsConfig
from macl.modalities.protocols import Views

RGB = 3
"""Channels that have colors to be jittered and turned to gray; others keep their colors."""

CROP_ATTEMPTS = 10
"""How often a crop that does not fit is drawn again before the central one is taken."""

CACHE_ELEMENTS = 2**20
"""Floats per slice of work on a CPU: what stays in cache between one operation and the next."""


class Draw(NamedTuple):
    """The random parameters of one view of a batch of B images.

    `boxes`, (B, 4) int64, are (top, left, height, width) of the crops; `factors`, (B, 4), those of
    brightness, contrast, saturation, hue, (1, 1, 1, 0) where nothing is jittered, and `order`,
    (B, 4) int64, says in which order; `sigma`, (B,), is the blur's standard deviation in pixels of
    the output. `flip`, `gray` and `blur`, (B,) bool, say which images are changed so.
    """

    boxes: Tensor
    flip: Tensor
    factors: Tensor
    order: Tensor
    gray: Tensor
    blur: Tensor
    sigma: Tensor


def draw_boxes(sizes: Tensor, scale: tuple[float, float], ratio: tuple[float, float]) -> Tensor:
    """Random crops as torchvision's `RandomResizedCrop` draws them: (B, 2) → (B, 4) int64.

    Area uniform in `scale`, width over height log-uniform in `ratio`, drawn until the crop fits;
    after ten failures, the largest central crop whose ratio is allowed.
    """
    count, device = len(sizes), sizes.device
    full = sizes.float()
    area = full.prod(dim=1, keepdim=True) * _uniform((count, CROP_ATTEMPTS), scale, device)
    log_ratio = (math.log(ratio[0]), math.log(ratio[1]))
    aspect = _uniform((count, CROP_ATTEMPTS), log_ratio, device).exp()
    attempts = torch.stack([(area / aspect).sqrt(), (area * aspect).sqrt()], dim=2).round()
    fits = ((attempts >= 1) & (attempts <= full.unsqueeze(1))).all(dim=2)
    chosen = attempts[torch.arange(count, device=device), fits.int().argmax(dim=1)]

    height, width = full.unbind(dim=1)
    largest = torch.stack([(width / ratio[0]).round(), (height * ratio[1]).round()], dim=1)
    fallback = torch.minimum(full, largest.clamp(min=1))

    any_fits = fits.any(dim=1, keepdim=True)
    extent = torch.where(any_fits, chosen, fallback)
    free = full - extent
    anywhere = (torch.rand(count, 2, device=device) * (free + 1)).floor().minimum(free)
    corner = torch.where(any_fits, anywhere, (free / 2).floor())
    return torch.cat([corner, extent], dim=1).long()


def draw_view(sizes: Tensor, settings: Augmentation) -> Draw:
    """Draw the parameters of one view of images of the given true sizes, (B, 2)."""
    count, device = len(sizes), sizes.device
    ranges = [(max(0.0, 1 - strength), 1 + strength) for strength in settings.jitter[:3]]
    ranges.append((-settings.jitter[3], settings.jitter[3]))
    factors = torch.stack([_uniform((count,), limits, device) for limits in ranges], dim=1)
    unchanged = augment.constant((1.0, 1.0, 1.0, 0.0), device)
    jittered = _chance(count, settings.jitter_p, device).view(-1, 1)
    return Draw(
        boxes=draw_boxes(sizes, settings.crop_scale, settings.crop_ratio),
        flip=_chance(count, settings.flip, device),
        factors=torch.where(jittered, factors, unchanged),
        order=torch.rand(count, 4, device=device).argsort(dim=1),
        gray=_chance(count, settings.gray_p, device),
        blur=_chance(count, settings.blur_p, device),
        sigma=_uniform((count,), settings.blur_sigma, device),
    )


class ImageViews(Views):
    """SimCLR's augmentations for whole batches; float32, normalized, (B, C, size, size)."""

    def __init__(
        self, config: ImageViewsConfig, transform: Callable[[Tensor], Tensor] | None = None
    ) -> None:
        self.settings = config.resolve()
        self.config, self.transform = config, transform
        self.cubic = self.settings.interpolation == "bicubic"
        self._checked: set[tuple[int, ...]] = set()

    def by(self, transform: Callable[..., Any]) -> ImageViews:
        """Views by a transform of torchvision or albumentations, or a function, image by image.

        It takes (C, h, w) uint8; uint8 that it returns is normalized, floats are kept.
        """
        albumentations = hasattr(transform, "set_random_seed")
        return ImageViews(self.config, _seeded(transform) if albumentations else transform)

    def __call__(self, inputs: ImageBatch) -> tuple[Tensor, Tensor]:
        """Two views of every image, drawn independently of each other and of other images."""
        one, two = self.draw(inputs, 2)
        return one, two

    def draw(self, inputs: ImageBatch, count: int) -> list[Tensor]:
        """`count` independent random views of every image."""
        if self.transform is not None:
            return [self._transformed(inputs, self.transform) for _ in range(count)]
        size = self._output_size(inputs)
        draws = [draw_view(inputs.sizes, self.settings) for _ in range(count)]

        def view(draw: Draw, x: Tensor, rows: slice) -> Tensor:
            return self.apply(x, Draw(*(each[rows] for each in draw)), size)

        return _in_slices(inputs, size, [partial(view, draw) for draw in draws])

    def plain(self, inputs: ImageBatch) -> Tensor:
        """The view for evaluation: the whole image, or its center where `crop` is set."""
        size, sizes = self._output_size(inputs), inputs.sizes
        resized = torch.full_like(sizes, size)
        if self.settings.crop != "whole":
            short = short_side(size, self.settings.crop)
            resized = short * sizes // sizes.amin(dim=1, keepdim=True)
        boxes = torch.cat([torch.zeros_like(sizes), sizes], dim=1)

        def view(x: Tensor, rows: slice) -> Tensor:
            x = augment.resized_crop(x, boxes[rows], size, None, self.cubic, resized[rows])
            return self._normalize(x.clamp_(0, 1).mT).mT

        return _in_slices(inputs, size, [view])[0]

    def light(self, inputs: ImageBatch) -> Tensor:
        """One random crop of each image, 8% to all of its area, flipped as views are."""
        crops = {"crop_scale": (0.08, 1.0), "crop_ratio": (3 / 4, 4 / 3)}
        colors = {"jitter_p": 0.0, "gray_p": 0.0, "blur_p": 0.0}
        (view,) = ImageViews(self.config.model_copy(update={**crops, **colors})).draw(inputs, 1)
        return view

    def apply(self, x: Tensor, draw: Draw, size: int) -> Tensor:
        """One view, (B, C, size, size), of (B, C, H, W) in [0, 1], by parameters already drawn."""
        # The crop comes out column by column. Colors and a round blur do not care, so the
        # view is turned back only when it is written to its place.
        x = augment.resized_crop(x, draw.boxes, size, draw.flip, self.cubic).mT
        if self.cubic:  # it overshoots
            x = x.clamp_(0, 1)
        if self.settings.jitter_p > 0 and x.shape[1] == RGB:
            x = augment.jitter_colors(x, draw.factors, draw.order)
        # Blur mixes pixels with weights that sum to one, so it commutes with the color map that
        # turns to gray and normalizes; the two are thus one product.
        x = self._normalize(x, draw.gray)
        if self.settings.blur_p == 0:
            return x.mT
        if x.device.type != "cpu":  # which ones is not read from the device: all of them
            blurred = augment.gaussian_blur(x, draw.sigma, blur_kernel(size))
            return torch.where(draw.blur.view(-1, 1, 1, 1), blurred, x).mT
        rows = draw.blur.nonzero().squeeze(1)
        if len(rows):
            blurred = augment.gaussian_blur(
                x.index_select(0, rows), draw.sigma[rows], blur_kernel(size)
            )
            x.index_copy_(0, rows, blurred)
        return x.mT

    def _normalize(self, x: Tensor, gray: Tensor | None = None) -> Tensor:
        std = augment.constant(self.settings.std, x.device)
        bias = -augment.constant(self.settings.mean, x.device) / std
        mixed = torch.eye(x.shape[1], device=x.device)
        if gray is not None and x.shape[1] == RGB:
            mixed = augment.gray_matrix(gray.float())
        matrix = (mixed / std.view(-1, 1)).expand(len(x), -1, -1)
        return augment.color_map(x, matrix, bias.expand(len(x), -1))

    def _transformed(self, inputs: ImageBatch, transform: Callable[[Tensor], Tensor]) -> Tensor:
        rows = zip(inputs.pixels, inputs.sizes.tolist(), strict=True)
        views = [transform(pixels[:, :height, :width]) for pixels, (height, width) in rows]
        shapes = {tuple(view.shape) for view in views}
        if len(shapes) > 1:
            raise UserError(f"the transform gives views of several shapes: {sorted(shapes)[:2]}.")
        x = torch.stack(views)
        if x.is_floating_point():
            return x
        with torch.autocast(x.device.type, enabled=False):
            return self._normalize(x.float().div_(255))

    def _output_size(self, inputs: ImageBatch) -> int:
        channels, expected = inputs.pixels.shape[1], len(self.settings.mean)
        if channels != expected:
            raise UserError(
                f"the images have {channels} channels, and views.mean has {expected} values: give "
                "views.mean and views.std one value for each channel."
            )
        if self.settings.size is not None:
            return self.settings.size
        height, width = shape = tuple(inputs.pixels.shape[-2:])
        # Reading from a device makes it wait, so it is done for the first batch of a shape there.
        if inputs.sizes.device.type != "cpu" and shape in self._checked:
            return height
        self._checked.add(shape)
        if height != width or bool((inputs.sizes != height).any()):
            raise UserError(
                "The images are not all squares of one size, so the views need a size of their "
                "own: set views.size, for example views.size=32."
            )
        return int(height)


def short_side(size: int, crop: float) -> int:
    """What the short side is resized to before the central crop, rounded as timm does."""
    return max(size, math.floor(size / crop + 1e-6))


def blur_kernel(size: int) -> int:
    """SimCLR's rule: a tenth of the image's side, made odd."""
    return 2 * (size // 20) + 1


def _in_slices(
    inputs: ImageBatch, size: int, makers: Sequence[Callable[[Tensor, slice], Tensor]]
) -> list[Tensor]:
    """The views that functions make of slices of the batch, as float in [0, 1], and their rows.

    Slices are small on a CPU; on an accelerator there is one.
    """
    pixels = inputs.pixels
    count = len(pixels)
    if pixels.device.type == "cpu":
        largest = pixels.shape[1] * max(pixels.shape[-1] * pixels.shape[-2], size * size)
        count = max(1, CACHE_ELEMENTS // largest)
    shape = (*pixels.shape[:2], size, size)
    views = [pixels.new_empty(shape, dtype=torch.float32) for _ in makers]
    # Autocast would take the color products for layers.
    with torch.no_grad(), torch.autocast(pixels.device.type, enabled=False):
        for start in range(0, len(pixels), count):
            rows = slice(start, start + count)
            x = pixels[rows].float().div_(255)
            for view, make in zip(views, makers, strict=True):
                view[rows] = make(x, rows)
    return views


def _seeded(transform: Callable[..., Any]) -> Callable[[Tensor], Tensor]:
    """A transform of albumentations, which has a generator of its own, by torch's."""

    def apply(pixels: Tensor) -> Tensor:
        transform.set_random_seed(int(torch.randint(2**31, ())))  # type: ignore[attr-defined]
        image = transform(image=pixels.permute(1, 2, 0).contiguous().cpu().numpy())["image"]
        changed = image if isinstance(image, Tensor) else torch.from_numpy(image).permute(2, 0, 1)
        return changed.to(pixels.device)

    return apply


def _uniform(shape: tuple[int, ...], limits: tuple[float, float], device: torch.device) -> Tensor:
    low, high = limits
    return low + (high - low) * torch.rand(shape, device=device)


def _chance(count: int, probability: float, device: torch.device) -> Tensor:
    return torch.rand(count, device=device) < probability
