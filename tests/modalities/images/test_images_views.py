"""Batched views beside torchvision's, one image at a time."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
import torchvision.transforms.v2 as T
import torchvision.transforms.v2.functional as TF
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor

from macl.core.errors import UserError
from macl.modalities.images import augment
from macl.modalities.images import views as views_module
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sections import PRESETS
from macl.modalities.images.views import (
    Draw,
    ImageViews,
    ImageViewsConfig,
    blur_kernel,
    draw_boxes,
    draw_view,
)
from macl.modalities.protocols import Views

ADJUST = (TF.adjust_brightness, TF.adjust_contrast, TF.adjust_saturation, TF.adjust_hue)


def images(*sizes: tuple[int, int], seed: int = 0) -> list[Tensor]:
    """Smooth color images with some noise: neither flat nor white noise."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for height, width in sizes:
        coarse = torch.rand(1, 3, 3, 3, generator=generator)
        smooth = torch.nn.functional.interpolate(coarse, (height, width), mode="bilinear")[0]
        noise = 0.2 * torch.rand(3, height, width, generator=generator)
        made.append(((smooth + noise) / 1.2 * 255).round().to(torch.uint8))
    return made


def squares(count: int, side: int = 32, seed: int = 0) -> ImageBatch:
    return ImageBatch.of(images(*[(side, side)] * count, seed=seed))


def one_view(image: Tensor, draw: Draw, row: int, preset: str, size: int) -> Tensor:
    """The whole pipeline for one image, written with torchvision alone."""
    chosen = PRESETS[preset]
    top, left, height, width = draw.boxes[row].tolist()
    x = TF.resized_crop(image / 255, top, left, height, width, [size, size], antialias=True)
    if draw.flip[row]:
        x = TF.horizontal_flip(x)
    for operation in draw.order[row].tolist():
        x = ADJUST[operation](x, draw.factors[row, operation].item())
    if draw.gray[row]:
        x = TF.rgb_to_grayscale(x, num_output_channels=3)
    if draw.blur[row]:
        x = TF.gaussian_blur(x, [blur_kernel(size)] * 2, [draw.sigma[row].item()] * 2)
    return TF.normalize(x, list(chosen.mean), list(chosen.std))


# --- operations -----------------------------------------------------------------------------------


@st.composite
def crops(draw: st.DrawFn) -> tuple[int, int, list[int], int, bool]:
    height, width = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    h, w = draw(st.integers(1, height)), draw(st.integers(1, width))
    top, left = draw(st.integers(0, height - h)), draw(st.integers(0, width - w))
    return height, width, [top, left, h, w], draw(st.integers(1, 24)), draw(st.booleans())


@settings(max_examples=150, deadline=None)
@given(crops())
def test_resized_crop_is_torchvisions(case: tuple[int, int, list[int], int, bool]) -> None:
    height, width, box, size, flip = case
    x = images((height, width))[0] / 255
    expected = TF.resized_crop(x, *box, [size, size], antialias=True)
    if flip:
        expected = TF.horizontal_flip(expected)
    actual = augment.resized_crop(x[None], torch.tensor([box]), size, torch.tensor([flip]))
    torch.testing.assert_close(actual[0], expected, atol=1e-5, rtol=0)


def test_resized_crop_at_photograph_size() -> None:
    x = images((375, 500))[0] / 255
    box = [13, 40, 301, 222]
    actual = augment.resized_crop(x[None], torch.tensor([box]), 224, torch.tensor([False]))
    expected = TF.resized_crop(x, *box, [224, 224], antialias=True)
    torch.testing.assert_close(actual[0], expected, atol=1e-4, rtol=0)
    assert (actual[0] - expected).abs().mean() < 1e-6


def test_weighted_rows_is_the_obvious_loop() -> None:
    x = torch.rand(2, 3, 5, 4)
    taps = augment.Taps(torch.randint(0, 5, (2, 6, 3)), torch.rand(2, 6, 3))
    expected = torch.zeros(2, 3, 6, 4)
    for b in range(2):
        for s in range(6):
            for k in range(3):
                expected[b, :, s] += taps.weight[b, s, k] * x[b, :, taps.source[b, s, k]]
    torch.testing.assert_close(augment.weighted_rows(x, taps), expected)


@pytest.mark.parametrize("operation", range(4))
def test_each_color_adjustment_is_torchvisions(operation: int) -> None:
    x = torch.stack(images(*[(9, 7)] * 6)) / 255
    x[0] = x[0, :1]  # gray
    x[1] = 0
    x[2] = (x[2] * 2).round() / 2  # ties between channels
    values = torch.tensor([0.0, 0.3, 1.7, 1.0, 0.9, 1.2])
    if operation == augment.HUE:
        values = torch.tensor([0.5, -0.5, 0.2, 0.0, -0.13, 0.31])
    factors = torch.tensor([1.0, 1.0, 1.0, 0.0]).repeat(6, 1)
    factors[:, operation] = values
    actual = augment.jitter_colors(x.clone(), factors, torch.arange(4).repeat(6, 1))
    for row in range(6):
        expected = ADJUST[operation](x[row], values[row].item())
        torch.testing.assert_close(actual[row], expected, atol=3e-6, rtol=0)


@settings(max_examples=20, deadline=None)
@given(st.integers(0, 2**31))
def test_jitter_in_every_order_is_torchvisions(seed: int) -> None:
    torch.manual_seed(seed)
    x = torch.rand(24, 3, 6, 5)
    order = torch.tensor([[a, b, c, 6 - a - b - c] for a in range(4) for b in range(4) if b != a
                          for c in range(4) if c not in (a, b)])  # fmt: skip
    assert len(order) == 24
    factors = torch.cat([torch.rand(24, 3) * 2, torch.rand(24, 1) - 0.5], dim=1)
    factors[::5, augment.HUE] = 0
    given_x = x.clone()
    actual = augment.jitter_colors(x, factors, order)
    assert torch.equal(x, given_x)
    for row in range(24):
        expected = x[row]
        for operation in order[row].tolist():
            expected = ADJUST[operation](expected, factors[row, operation].item())
        torch.testing.assert_close(actual[row], expected, atol=1e-5, rtol=0)


def test_gray_matrix_is_torchvisions_grayscale() -> None:
    x = torch.rand(2, 3, 4, 4)
    actual = augment.color_map(x, augment.gray_matrix(torch.tensor([1.0, 0.0])), torch.zeros(2, 3))
    torch.testing.assert_close(actual[0], TF.rgb_to_grayscale(x[0], num_output_channels=3))
    torch.testing.assert_close(actual[1], x[1])


@pytest.mark.parametrize(("size", "kernel"), [(8, 1), (16, 5), (33, 3), (64, 23)])
def test_gaussian_blur_is_torchvisions(size: int, kernel: int) -> None:
    x = torch.rand(3, 3, size, size)
    sigma = torch.tensor([0.1, 0.9, 2.0])
    actual = augment.gaussian_blur(x, sigma, kernel)
    for row in range(3):
        expected = TF.gaussian_blur(x[row], [kernel] * 2, [sigma[row].item()] * 2)
        torch.testing.assert_close(actual[row], expected, atol=4e-6, rtol=0)


@pytest.mark.parametrize(("side", "kernel"), [(224, 23), (32, 3), (8, 1)])
def test_blur_kernel_is_a_tenth_of_the_side(side: int, kernel: int) -> None:
    assert blur_kernel(side) == kernel


# --- the whole view -------------------------------------------------------------------------------


@pytest.mark.parametrize(("preset", "size"), [("cifar", 32), ("imagenet", 40), ("digits", 24)])
def test_view_is_the_same_pipeline_in_torchvision(preset: str, size: int) -> None:
    shapes = [(32, 32), (50, 31), (20, 44), (64, 64), (33, 90)] * 4
    pictures = images(*shapes)
    batch = ImageBatch.of(pictures)
    make = ImageViews(ImageViewsConfig(preset=preset, size=size))
    torch.manual_seed(3)
    drawn = [draw_view(batch.sizes, make.settings) for _ in range(2)]
    torch.manual_seed(3)
    made = make(batch)
    for view, draw in zip(made, drawn, strict=True):
        assert view.shape == (20, 3, size, size)
        assert view.dtype == torch.float32
        for row, picture in enumerate(pictures):
            expected = one_view(picture, draw, row, preset, size)
            torch.testing.assert_close(view[row], expected, atol=2e-4, rtol=0)


def test_views_differ_from_each_other_and_between_equal_images() -> None:
    picture = images((32, 32))[0]
    one, two = ImageViews(ImageViewsConfig())(ImageBatch.of([picture] * 16))
    everything = torch.cat([one, two]).flatten(1)
    distance = torch.cdist(everything, everything) + 1e9 * torch.eye(32)
    assert distance.min() > 0.1


def test_the_seed_of_torch_decides() -> None:
    make, batch = ImageViews(ImageViewsConfig(preset="imagenet", size=24)), squares(8)
    torch.manual_seed(5)
    first = make(batch)
    torch.manual_seed(5)
    again = make(batch)
    other = make(batch)
    assert torch.equal(first[0], again[0])
    assert torch.equal(first[1], again[1])
    assert not torch.equal(first[0], other[0])


def test_slices_do_not_change_the_views(monkeypatch: pytest.MonkeyPatch) -> None:
    make, batch = ImageViews(ImageViewsConfig(preset="imagenet", size=24)), squares(9)
    torch.manual_seed(1)
    whole = make(batch)
    plain = make.plain(batch)
    monkeypatch.setattr(views_module, "CACHE_ELEMENTS", 2 * 3 * 32 * 32)
    torch.manual_seed(1)
    sliced = make(batch)
    for a, b in zip(whole, sliced, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=0)
    torch.testing.assert_close(make.plain(batch), plain, atol=1e-5, rtol=0)


def test_a_sample_does_not_see_its_neighbors() -> None:
    make = ImageViews(ImageViewsConfig(preset="imagenet", size=24))
    batch, changed = squares(8), squares(8, seed=1)
    mixed = ImageBatch(batch.pixels.clone(), batch.sizes)
    mixed.pixels[1:] = changed.pixels[1:]
    torch.manual_seed(2)
    one, _ = make(batch)
    torch.manual_seed(2)
    other, _ = make(mixed)
    torch.testing.assert_close(one[0], other[0], atol=1e-5, rtol=0)
    assert not torch.allclose(one[1], other[1])


@pytest.mark.parametrize("preset", ["cifar", "imagenet"])
def test_padding_never_leaks(preset: str) -> None:
    make = ImageViews(ImageViewsConfig(preset=preset, size=16))
    batch = ImageBatch.of(images((20, 30), (31, 18), (40, 40)))
    noisy = ImageBatch(batch.pixels.clone(), batch.sizes)
    for row, (height, width) in zip(noisy.pixels, noisy.sizes.tolist(), strict=True):
        row[:, height:] = 255
        row[:, :, width:] = 255
    assert not torch.equal(noisy.pixels, batch.pixels)
    for _ in range(20):
        state = torch.get_rng_state()
        clean = make(batch)
        torch.set_rng_state(state)
        for a, b in zip(clean, make(noisy), strict=True):
            assert torch.equal(a, b)
    assert torch.equal(make.plain(batch), make.plain(noisy))


def test_autocast_and_gradients_leave_views_alone() -> None:
    make, batch = ImageViews(ImageViewsConfig()), squares(4)
    torch.manual_seed(0)
    expected, _ = make(batch)
    torch.manual_seed(0)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual, _ = make(batch)
    assert torch.equal(actual, expected)
    assert not actual.requires_grad


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives() -> None:
    make = ImageViews(ImageViewsConfig(preset="imagenet", size=24))
    batch = ImageBatch.of(images((32, 40), (50, 31)))
    moved = ImageBatch(*(part.cuda() for part in batch))
    draw = draw_view(batch.sizes, make.settings)
    x = batch.pixels / 255
    expected = make.apply(x, draw, 24)
    actual = make.apply(x.cuda(), Draw(*(part.cuda() for part in draw)), 24)
    torch.testing.assert_close(actual.cpu(), expected, atol=1e-4, rtol=0)
    assert all(view.is_cuda for view in make(moved))


# --- the plain view -------------------------------------------------------------------------------


def test_plain_keeps_native_size_and_only_normalizes() -> None:
    batch, chosen = squares(3), PRESETS["cifar"]
    expected = TF.normalize(batch.pixels / 255, list(chosen.mean), list(chosen.std))
    make = ImageViews(ImageViewsConfig())
    torch.testing.assert_close(make.plain(batch), expected, atol=1e-5, rtol=0)


def test_plain_resizes_whole_images_of_unequal_sizes() -> None:
    pictures, chosen = images((20, 30), (48, 48), (9, 9)), PRESETS["cifar"]
    actual = ImageViews(ImageViewsConfig(size=24)).plain(ImageBatch.of(pictures))
    for row, picture in zip(actual, pictures, strict=True):
        x = TF.resize(picture / 255, [24, 24], antialias=True)
        expected = TF.normalize(x, list(chosen.mean), list(chosen.std))
        torch.testing.assert_close(row, expected, atol=3e-5, rtol=0)


@settings(max_examples=60, deadline=None)
@given(st.integers(8, 90), st.integers(8, 90), st.sampled_from([14, 21, 28, 56]))
def test_plain_imagenet_is_resize_and_center_crop(height: int, width: int, size: int) -> None:
    picture, chosen = images((height, width))[0], PRESETS["imagenet"]
    actual = ImageViews(ImageViewsConfig(preset="imagenet", size=size)).plain(
        ImageBatch.of([picture, images((95, 95))[0]])
    )
    x = TF.resize(picture / 255, [round(size * 256 / 224)], antialias=True)
    x = TF.center_crop(x, [size, size])
    expected = TF.normalize(x, list(chosen.mean), list(chosen.std))
    torch.testing.assert_close(actual[0], expected, atol=1e-4, rtol=0)


def test_native_size_needs_equal_squares() -> None:
    make = ImageViews(ImageViewsConfig())
    for shapes in ([(8, 8), (9, 9)], [(8, 9), (8, 9)]):
        with pytest.raises(UserError, match=r"views\.size"):
            make(ImageBatch.of(images(*shapes)))


# --- what is drawn --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("size", "scale", "ratio"),
    [
        ((32, 32), (0.08, 1.0), (3 / 4, 4 / 3)),
        ((300, 100), (0.3, 1.0), (3 / 4, 4 / 3)),  # most attempts fail
        ((100, 300), (0.99, 1.0), (3 / 4, 4 / 3)),  # every attempt fails: fallback, wide
        ((300, 100), (0.99, 1.0), (3 / 4, 4 / 3)),  # fallback, tall
    ],
)
def test_boxes_are_distributed_as_torchvisions(
    size: tuple[int, int], scale: tuple[float, float], ratio: tuple[float, float]
) -> None:
    count = 4000
    torch.manual_seed(0)
    boxes = draw_boxes(torch.tensor([size]).repeat(count, 1), scale, ratio)
    assert (boxes[:, :2] >= 0).all()
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= torch.tensor(size)).all()

    reference = T.RandomResizedCrop(8, scale, ratio)
    empty = torch.empty(3, *size)
    drawn = [reference.make_params([empty]) for _ in range(count)]
    expected = torch.tensor([[d["top"], d["left"], d["height"], d["width"]] for d in drawn])
    for column in range(4):
        ours, theirs = boxes[:, column].double(), expected[:, column].double()
        # Two samples of one distribution: the Kolmogorov-Smirnov distance exceeds this once in 10⁵.
        grid = torch.cat([ours, theirs]).unique()
        cumulative = [(part[:, None] <= grid).double().mean(dim=0) for part in (ours, theirs)]
        limit = math.sqrt(-math.log(1e-5 / 2) / count)
        assert (cumulative[0] - cumulative[1]).abs().max() < limit


def test_boxes_of_tiny_images_stay_inside() -> None:
    sizes = torch.tensor([[1, 1], [1, 9], [9, 1], [2, 3]]).repeat(50, 1)
    boxes = draw_boxes(sizes, (0.01, 1.0), (3 / 4, 4 / 3))
    assert (boxes[:, 2:] >= 1).all()
    assert (boxes[:, :2] + boxes[:, 2:] <= sizes).all()


def test_parameters_follow_the_preset() -> None:
    count, chosen = 20_000, PRESETS["imagenet"]
    torch.manual_seed(0)
    draw = draw_view(torch.full((count, 2), 224), chosen)
    jittered = (draw.factors != torch.tensor([1.0, 1.0, 1.0, 0.0])).any(dim=1)
    shares = {"flip": draw.flip, "jitter_p": jittered, "gray_p": draw.gray, "blur_p": draw.blur}
    for name, share in shares.items():
        p = getattr(chosen, name)
        assert abs(share.double().mean() - p) < 5 * math.sqrt(p * (1 - p) / count), name
    factors = draw.factors[jittered]
    low, high = torch.tensor([0.2, 0.2, 0.2, -0.2]), torch.tensor([1.8, 1.8, 1.8, 0.2])
    middle = (factors - low) / (high - low)  # uniform on [0, 1]
    assert (middle >= 0).all()
    assert (middle <= 1).all()
    deviation = 1 / math.sqrt(12 * len(factors))
    assert ((middle.mean(dim=0) - 0.5).abs() < 5 * deviation).all()
    assert torch.corrcoef(middle.T).fill_diagonal_(0).abs().max() < 5 / math.sqrt(len(factors))
    orders = Counter(map(tuple, draw.order.tolist()))
    assert len(orders) == 24
    expected = count / 24
    assert max(abs(n - expected) for n in orders.values()) < 5 * math.sqrt(expected)
    sigma = (draw.sigma - 0.1) / 1.9
    assert sigma.min() >= 0
    assert sigma.max() <= 1
    assert abs(sigma.mean() - 0.5) < 5 / math.sqrt(12 * count)


def test_strong_jitter_never_gives_a_negative_factor() -> None:
    chosen = ImageViewsConfig(jitter=(2.0, 2.0, 2.0, 0.5)).resolve()
    assert (draw_view(torch.full((500, 2), 8), chosen).factors[:, :3] >= 0).all()


# --- settings -------------------------------------------------------------------------------------


def test_presets_are_the_published_ones() -> None:
    imagenet, cifar = PRESETS["imagenet"], PRESETS["cifar"]
    assert (imagenet.crop_scale, imagenet.jitter) == ((0.08, 1.0), (0.8, 0.8, 0.8, 0.2))
    assert (imagenet.jitter_p, imagenet.gray_p, imagenet.blur_p) == (0.8, 0.2, 0.5)
    assert imagenet.blur_sigma == (0.1, 2.0)
    assert (cifar.jitter, cifar.jitter_p, cifar.gray_p) == ((0.4, 0.4, 0.4, 0.1), 0.8, 0.2)
    assert cifar.blur_p == 0


def test_digits_preset_fits_the_digits() -> None:
    from sklearn.datasets import load_digits

    gray = torch.tensor(load_digits().images) / 16
    chosen = PRESETS["digits"]
    assert abs(gray.mean() - chosen.mean[0]) < 1e-4
    assert abs(gray.std() - chosen.std[0]) < 1e-4
    batch = squares(64, side=8)
    gray_batch = ImageBatch(batch.pixels[:, :1].expand(-1, 3, -1, -1), batch.sizes)
    one, _ = ImageViews(ImageViewsConfig(preset="digits"))(gray_batch)
    torch.testing.assert_close(one[:, 0], one[:, 1])  # no color appears
    draw = draw_view(batch.sizes, chosen)
    assert not draw.flip.any()
    assert (draw.boxes[:, 2:].prod(dim=1) >= 25).all()


def test_overrides_replace_only_what_they_name() -> None:
    config = ImageViewsConfig(preset="imagenet", crop_scale=(0.2, 1.0), blur_p=0)
    resolved = config.resolve()
    assert resolved.crop_scale == (0.2, 1.0)
    assert resolved.blur_p == 0
    assert resolved.jitter == PRESETS["imagenet"].jitter


@pytest.mark.parametrize(
    "wrong",
    [
        {"preset": "svhn"},
        {"size": 0},
        {"crop_scale": (0.5, 0.2)},
        {"crop_scale": (0.0, 1.0)},
        {"crop_ratio": (-1.0, 1.0)},
        {"jitter": (0.4, 0.4, 0.4, 0.6)},
        {"jitter": (0.4, 0.4, 0.4)},
        {"gray_p": 1.5},
        {"blur_sigma": (0.0, 1.0)},
        {"std": (0.0, 1.0, 1.0)},
        {"unknown": 1},
    ],
)
def test_senseless_settings_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        ImageViewsConfig.model_validate(wrong)


def test_image_views_is_a_views() -> None:
    assert isinstance(ImageViews(ImageViewsConfig()), Views)


def test_image_batch_pads_at_the_bottom_and_the_right() -> None:
    pictures = images((4, 6), (5, 3))
    batch = ImageBatch.of(pictures)
    assert batch.pixels.shape == (2, 3, 5, 6)
    assert batch.sizes.tolist() == [[4, 6], [5, 3]]
    assert torch.equal(batch.pixels[1, :, :5, :3], pictures[1])
    assert batch.pixels[0, :, 4:].sum() == 0
    assert batch.pixels[1, :, :, 3:].sum() == 0


def test_a_light_view_is_a_crop_and_a_flip() -> None:
    batch = ImageBatch.of(images((40, 30), (24, 48), (32, 32)))
    views = ImageViews(ImageViewsConfig(preset="imagenet", size=16, crop_scale=(0.5, 0.6)))
    torch.manual_seed(3)
    got = views.light(batch)
    torch.manual_seed(3)
    plain = ImageViewsConfig(preset="imagenet", size=16, jitter_p=0, gray_p=0, blur_p=0)
    draw = draw_view(batch.sizes, plain.resolve())
    for row, image in enumerate(images((40, 30), (24, 48), (32, 32))):
        expected = one_view(image, draw, row, "imagenet", 16)
        torch.testing.assert_close(got[row], expected, rtol=0, atol=2e-6)
