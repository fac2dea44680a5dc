"""SimCLR views per second: macl beside torchvision, lightly and kornia, in one interleaved run.

All make two normalized views of every image from uint8 images that are already decoded, with the
same settings: CIFAR's at 32 pixels, ImageNet's with blur at 224. torchvision and lightly work image
by image, kornia and macl on the batch.

    python benchmarks/views.py [--repeats 7] [--threads 2] [--operations]
"""

from __future__ import annotations

import argparse
import importlib.metadata
import time
from collections.abc import Callable
from statistics import median

import torch
import torchvision.transforms as v1
import torchvision.transforms.v2 as v2
from torch import Tensor

from macl.modalities.images import augment
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sections import Augmentation
from macl.modalities.images.views import ImageViews, ImageViewsConfig, blur_kernel, draw_view

Job = Callable[[], object]
CASES = {"32 px": ("cifar", 32, 128), "224 px": ("imagenet", 224, 16)}


def torchvision_steps(module: object, chosen: Augmentation, size: int) -> list[object]:
    """The transforms that torchvision's two generations share."""
    steps = [
        module.RandomResizedCrop(size, chosen.crop_scale, chosen.crop_ratio),
        module.RandomHorizontalFlip(chosen.flip),
        module.RandomApply([module.ColorJitter(*chosen.jitter)], chosen.jitter_p),
        module.RandomGrayscale(chosen.gray_p),
    ]
    if chosen.blur_p:
        blur = module.GaussianBlur(blur_kernel(size), chosen.blur_sigma)
        steps.append(module.RandomApply([blur], chosen.blur_p))
    return steps


def ours(pixels: Tensor, preset: str, size: int) -> Job:
    make = ImageViews(ImageViewsConfig(preset=preset, size=size))
    batch = ImageBatch.of(list(pixels))
    return lambda: make(batch)


def torchvision_pil(pixels: Tensor, preset: str, size: int) -> Job:
    chosen = ImageViewsConfig(preset=preset).resolve()
    last = [v1.ToTensor(), v1.Normalize(chosen.mean, chosen.std)]
    transform = v1.Compose([*torchvision_steps(v1, chosen, size), *last])
    pictures = [v1.ToPILImage()(image) for image in pixels]
    return lambda: [torch.stack([transform(p) for p in pictures]) for _ in range(2)]


def torchvision_v2(pixels: Tensor, preset: str, size: int) -> Job:
    chosen = ImageViewsConfig(preset=preset).resolve()
    last = [v2.ToDtype(torch.float32, scale=True), v2.Normalize(chosen.mean, chosen.std)]
    transform = v2.Compose([*torchvision_steps(v2, chosen, size), *last])
    return lambda: [torch.stack([transform(image) for image in pixels]) for _ in range(2)]


def lightly(pixels: Tensor, preset: str, size: int) -> Job:
    from lightly.transforms import SimCLRTransform

    chosen = ImageViewsConfig(preset=preset).resolve()
    bright, contrast, saturation, hue = chosen.jitter
    transform = SimCLRTransform(
        input_size=size,
        cj_prob=chosen.jitter_p,
        cj_bright=bright,
        cj_contrast=contrast,
        cj_sat=saturation,
        cj_hue=hue,
        min_scale=chosen.crop_scale[0],
        random_gray_scale=chosen.gray_p,
        gaussian_blur=chosen.blur_p,
        sigmas=chosen.blur_sigma,
        hf_prob=chosen.flip,
        normalize={"mean": list(chosen.mean), "std": list(chosen.std)},
    )
    pictures = [v1.ToPILImage()(image) for image in pixels]
    return lambda: [torch.stack(v) for v in zip(*(transform(p) for p in pictures), strict=True)]


def kornia(pixels: Tensor, preset: str, size: int) -> Job:
    import kornia.augmentation as K

    chosen = ImageViewsConfig(preset=preset).resolve()
    steps = [
        K.RandomResizedCrop((size, size), chosen.crop_scale, chosen.crop_ratio),
        K.RandomHorizontalFlip(p=chosen.flip),
        K.ColorJitter(*chosen.jitter, p=chosen.jitter_p),
        K.RandomGrayscale(p=chosen.gray_p),
    ]
    if chosen.blur_p:
        kernel = (blur_kernel(size),) * 2
        steps.append(K.RandomGaussianBlur(kernel, chosen.blur_sigma, p=chosen.blur_p))
    normalize = K.Normalize(torch.tensor(chosen.mean), torch.tensor(chosen.std))
    transform = torch.nn.Sequential(*steps, normalize)

    def run() -> object:
        with torch.no_grad():
            x = pixels.float() / 255
            return transform(x), transform(x)

    return run


PEERS = {
    "macl": ours,
    "kornia, batched": kornia,
    "torchvision v1 on PIL": torchvision_pil,
    "torchvision v2 on tensors": torchvision_v2,
    "lightly SimCLRTransform": lightly,
}


def seconds(job: Job) -> float:
    start = time.perf_counter()
    job()
    return time.perf_counter() - start


def interleaved(jobs: dict[str, Job], repeats: int) -> dict[str, list[float]]:
    """Time every job in turn, over and over, so that a busy moment hits all of them alike."""
    for job in jobs.values():
        job()
    times: dict[str, list[float]] = {name: [] for name in jobs}
    for _ in range(repeats):
        for name, job in jobs.items():
            times[name].append(seconds(job))
    return times


def compare(label: str, repeats: int) -> None:
    preset, size, count = CASES[label]
    pixels = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
    jobs = {}
    for name, build in PEERS.items():
        try:
            jobs[name] = build(pixels, preset, size)
        except ImportError as error:
            print(f"{label}: {name} skipped, {error.name} is not installed")
    times = interleaved(jobs, repeats)
    print(f"\n{label}, {preset} settings, batch {count}: views per second, median of {repeats}")
    print(f"{'':28}{'median':>10}{'best':>10}{'times slower than macl':>26}")
    for name, spent in times.items():
        ratio = median(a / b for a, b in zip(spent, times["macl"], strict=True))
        rates = (2 * count / median(spent), 2 * count / min(spent))
        print(f"{name:28}{rates[0]:10,.0f}{rates[1]:10,.0f}{ratio:26.2f}")


def operations(label: str, repeats: int) -> None:
    """What each of our own operations costs when it is done to every image."""
    preset, size, _ = CASES[label]
    count = max(1, 2**20 // (3 * size * size))  # one slice, as ImageViews works on a CPU
    chosen = ImageViewsConfig(preset=preset).resolve()
    x = torch.rand(count, 3, size, size)
    sizes = torch.full((count, 2), size)
    draw = draw_view(sizes, chosen)
    eye, zero = torch.eye(3).expand(count, 3, 3), torch.zeros(count, 3)
    jobs: dict[str, Job] = {
        "draw parameters": lambda: draw_view(sizes, chosen),
        "crop, resize, flip": lambda: augment.resized_crop(x, draw.boxes, size, draw.flip),
        "one blend": lambda: augment.blend(x, draw.order[:, 0].clamp(max=2), draw.factors[:, 0]),
        "hue": lambda: augment.shift_hue_(x, draw.factors[:, 3]),
        "jitter (3 blends, hue)": lambda: augment.jitter_colors(x, draw.factors, draw.order),
        "gray and normalize": lambda: augment.color_map(x, eye, zero),
        "blur": lambda: augment.gaussian_blur(x, draw.sigma, blur_kernel(size)),
    }
    times = interleaved(jobs, 3 * repeats)
    print(f"\n{label}: microseconds per image, median (best) of {3 * repeats}, slices of {count}")
    for name, spent in times.items():
        print(f"{name:28}{1e6 * median(spent) / count:10.1f}  ({1e6 * min(spent) / count:.1f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repeats", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--operations", action="store_true", help="also cost each operation")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    versions = []
    for package in ("torch", "torchvision", "kornia", "lightly"):
        try:
            versions.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            versions.append(f"{package} absent")
    print(f"{arguments.threads} threads; {', '.join(versions)}")
    for label in CASES:
        compare(label, arguments.repeats)
        if arguments.operations:
            operations(label, arguments.repeats)


if __name__ == "__main__":
    main()
