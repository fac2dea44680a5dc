"""Commands encode where there is a GPU: everything but the result stays there."""

from __future__ import annotations

import os
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader
from torchvision.transforms.functional import to_pil_image

import macl
from macl.api.objects import Run
from macl.core.devices import Placement, place
from macl.core.errors import UserError
from macl.evaluation import diagnose
from macl.experiments import executors
from macl.modalities.images import augment
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sections import ImageViewsConfig
from macl.modalities.images.views import ImageViews
from pretend_gpu import GPU, OnGPU, Recorder, pretended_gpu
from tiny import HERE, recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    from macl.training.fit import train

    folder = tmp_path_factory.mktemp("run") / "digits"
    return Run(train(recipe("epochs=1"), folder, compute=HERE).folder)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Iterator[Recorder]:
    augment.constant.cache_clear()
    with warnings.catch_warnings(), pretended_gpu(monkeypatch) as recorder:
        warnings.simplefilter("ignore")  # torch: autocast on CUDA without its driver
        yield recorder
    augment.constant.cache_clear()


def test_auto_is_the_cpu_where_there_is_no_gpu() -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert place() == Placement(torch.device("cpu"), "32")
    assert str(place()) == "cpu, precision 32"
    assert place("cpu", "bf16").precision == "bf16"


@pytest.mark.parametrize("name", ["cuda:7", "gpu", "meta"])
def test_a_device_that_is_not_there_is_named(name: str) -> None:
    with pytest.raises(UserError, match=f"device {name}: there is none here"):
        place(name)
    with pytest.raises(UserError, match="precision half: there are auto"):
        place("cpu", "half")


def test_auto_is_a_gpu_in_bf16(gpu: Recorder) -> None:
    assert str(place()) == "cuda (Pretended GPU), precision bf16"
    assert place("cpu") == Placement(torch.device("cpu"), "32")
    assert place("cuda:0", "32") == Placement(GPU, "32")


def test_embed_brings_back_its_result_alone(
    run: Run, gpu: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaders: list[dict[str, Any]] = []
    init = DataLoader.__init__

    def noted(self: Any, *args: Any, **options: Any) -> None:
        loaders.append(options)
        init(self, *args, **options)

    monkeypatch.setattr(DataLoader, "__init__", noted)
    data = run.modality.load(run.recipe.data, "test")
    found = macl.embed(run.folder, data, precision="32").values
    assert gpu.operators > 100
    assert gpu.copies_out == [tuple(found.shape)]
    assert type(found) is torch.Tensor
    weights = {tuple(p.shape) for p in Run(run.folder, place("cpu")).encoder.state_dict().values()}
    batches = [waits for shape, waits in gpu.copies_in if shape not in weights and len(shape) == 4]
    assert batches
    assert not any(batches)
    assert [options["pin_memory"] for options in loaders] == [True]
    torch.testing.assert_close(found, macl.embed(run.folder, data, device="cpu").values)


def test_probes_run_where_the_features_are(run: Run, gpu: Recorder) -> None:
    before = [score.value for score in run.evaluate(device="cpu", protocols=["knn", "geometry"])]
    gpu.clear()
    after = [score.value for score in run.evaluate(precision="32", protocols=["knn", "geometry"])]
    assert after == pytest.approx(before, rel=1e-4)
    features = [shape for shape in gpu.copies_out if len(shape) == 2]
    assert gpu.operators > 100
    assert not features


def test_diagnose_encodes_and_weighs_on_the_gpu(
    run: Run, gpu: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    def profiled(loss: Any, inputs: Any) -> None:
        """In place of a backward pass, which asks for the driver."""
        tensors = (each for each in inputs if isinstance(each, torch.Tensor))
        raise UserError(" ".join(str(each.device) for each in tensors))

    monkeypatch.setattr(diagnose, "gradient_profile", profiled)
    with pytest.raises(UserError, match=r"^cuda:0 cuda:0 cuda:0$"):
        run.diagnose(items=64)
    assert gpu.copies_out == []


def test_report_and_search_encode_on_the_gpu(run: Run, gpu: Recorder, tmp_path: Path) -> None:
    data = run.modality.load(run.recipe.data, "test")
    stored = macl.embed(run.folder, data, device="cpu")
    gpu.clear()
    run.report(tmp_path / "page.html", points=50)
    assert gpu.operators > 100
    gpu.clear()
    picture = tmp_path / "query.png"
    to_pil_image(data[3]).save(picture)
    assert macl.search(run.folder, picture, stored, k=1, precision="32")[0].row == 3
    assert gpu.operators > 100


def test_double_precision_is_never_halved(run: Run) -> None:
    from macl.modalities.embedding import embed

    data = run.modality.load(run.recipe.data, "test")
    encoder = Run(run.folder, place("cpu")).encoder.double()
    plain = embed(encoder, run.views, data, quiet=True)
    half = embed(encoder, run.views, data, quiet=True, placement=place("cpu", "bf16"))
    assert torch.equal(plain, half)
    single = embed(encoder.float(), run.views, data, quiet=True, placement=place("cpu", "bf16"))
    assert not torch.equal(plain, single)
    torch.testing.assert_close(plain, single, rtol=0.1, atol=0.1)


@pytest.mark.parametrize("preset", ["imagenet", "cifar", "digits"])
def test_views_copy_and_read_nothing(preset: str, gpu: Recorder) -> None:
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(256, (6, 3, 24, 24), generator=generator, dtype=torch.uint8)
    views = ImageViews(ImageViewsConfig(preset=preset, size=None if preset == "digits" else 16))
    batch = ImageBatch(pixels.to(GPU), torch.tensor([[24, 24]] * 6).to(GPU))
    views(batch), views.plain(batch)  # constants are copied once
    gpu.clear()
    one, two = views(batch)
    assert isinstance(one, OnGPU)
    assert isinstance(two, OnGPU)
    views.plain(batch)
    assert (gpu.reads, gpu.copies_in, gpu.copies_out) == ([], [], [])


def test_colors_are_those_of_the_cpu(gpu: Recorder) -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.rand(40, 3, 5, 5, generator=generator)
    factors = 0.4 + 1.2 * torch.rand(40, 4, generator=generator)
    factors[:, augment.HUE] = torch.rand(40, generator=generator) - 0.5
    factors[::5] = torch.tensor([1.0, 1.0, 1.0, 0.0])
    order = torch.rand(40, 4, generator=generator).argsort(dim=1)
    there = augment.jitter_colors(x.to(GPU), factors.to(GPU), order.to(GPU))
    torch.testing.assert_close(there.cpu(), augment.jitter_colors(x, factors, order))


def test_blur_is_that_of_the_cpu(gpu: Recorder) -> None:
    from macl.modalities.images.views import draw_view

    x = torch.rand(12, 3, 40, 40, generator=torch.Generator().manual_seed(2))
    views = ImageViews(ImageViewsConfig(preset="imagenet", size=40))
    draw = draw_view(torch.tensor([[40, 40]] * 12), views.settings)
    assert draw.blur.any()
    assert not draw.blur.all()
    moved = type(draw)(*(part.to(GPU) for part in draw))
    torch.testing.assert_close(views.apply(x.to(GPU), moved, 40).cpu(), views.apply(x, draw, 40))


def gpu_of_worker(_: int) -> str:
    from macl.experiments.executors import VISIBLE

    time.sleep(0.2)  # so that every worker gets one
    return f"{os.getpid()}:{os.environ.get(VISIBLE)}"


@pytest.mark.slow
def test_workers_take_gpus_in_turn(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(executors, "visible_gpus", lambda: ["3", "5"])
    ended = executors.outcomes(gpu_of_worker, range(9), "local", 3, tmp_path)
    found = {each for _, each in ended}
    assert sorted(each.partition(":")[2] for each in found) == ["3", "3", "5"]


def test_jobs_are_as_many_as_gpus_or_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(executors.VISIBLE, raising=False)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    assert executors.count_jobs("auto") == len(os.sched_getaffinity(0))
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert executors.visible_gpus() == ["0", "1"]
    monkeypatch.setenv(executors.VISIBLE, "4, GPU-1f")
    assert executors.visible_gpus() == ["4", "GPU-1f"]
    assert executors.count_jobs("auto") == 2
    assert executors.count_jobs(3) == 3
    with pytest.raises(UserError, match="a number from 1 on, or auto; not 0"):
        executors.count_jobs(0)
