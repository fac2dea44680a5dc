"""Pretrained networks of three libraries: their preprocessing, and the way there and back."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torchvision import models
from torchvision.transforms import v2

import macl
from macl.core.errors import UserError
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.encoders import build_image_encoder
from macl.modalities.images.modality import MODALITY
from macl.modalities.images.preprocessing import completed
from macl.modalities.images.sections import ImageEncoderConfig, ImageViewsConfig
from macl.modalities.images.views import ImageViews
from macl.runs.elsewhere import Elsewhere

SMOOTH = np.stack([np.add.outer(np.arange(90), np.arange(120)) // 2 + 20 * c for c in range(3)], 2)


def picture() -> Image.Image:
    return Image.fromarray(SMOOTH.astype("uint8"))


def plain(views: ImageViewsConfig) -> Tensor:
    pixels = torch.from_numpy(SMOOTH.astype("uint8")).permute(2, 0, 1)
    return ImageViews(views).plain(ImageBatch.of([pixels]))


def timm_model(name: str, path: Path, **options: Any) -> nn.Module:
    timm = pytest.importorskip("timm")
    torch.manual_seed(0)
    model: nn.Module = timm.create_model(name, num_classes=10, **options)
    torch.save(model.state_dict(), path)
    return model.eval()


@pytest.mark.parametrize(
    ("name", "size"),
    [("vit_tiny_patch16_224", 64), ("vit_small_patch14_dinov2", 56), ("tf_efficientnet_lite0", 64)],
)
def test_timm_s_own_configuration_is_used_and_exported(
    name: str, size: int, tmp_path: Path
) -> None:
    import timm

    timm_model(name, tmp_path / "w.pth")
    given = ImageEncoderConfig(name=f"timm:{name}", weights=tmp_path / "w.pth")
    config, views = completed(given, ImageViewsConfig(preset="imagenet", size=size))
    own = timm.get_pretrained_cfg(name).to_dict()
    assert views.mean == own["mean"]
    assert (views.crop, views.interpolation) == (own["crop_pct"], own["interpolation"])
    encoder = build_image_encoder(config).eval()
    MODALITY.export(encoder, views, tmp_path / "out", {})
    opened = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    theirs = timm.data.create_transform(**timm.data.resolve_model_data_config(opened))(picture())
    x = plain(views)
    assert (theirs - x[0]).abs().max() < 0.02  # Pillow rounds to whole numbers between its passes
    with torch.no_grad():
        torch.testing.assert_close(opened(x), encoder(x), atol=1e-5, rtol=1e-5)
    again = Elsewhere.open(str(tmp_path / "out"))
    assert (
        again.sections.views.resolve()
        == ImageViewsConfig(
            preset="cifar", **views.model_dump(exclude={"preset"}, exclude_none=True)
        ).resolve()
    )
    with torch.no_grad():
        torch.testing.assert_close(again.encoder(x), encoder(x), atol=1e-5, rtol=1e-5)


def test_statistics_that_differ_are_an_error_that_names_both(tmp_path: Path) -> None:
    timm_model("tf_efficientnet_lite0", tmp_path / "w.pth")
    given = ImageEncoderConfig(name="timm:tf_efficientnet_lite0", weights=tmp_path / "w.pth")
    views = ImageViewsConfig(mean=(0.485, 0.456, 0.406))
    with pytest.raises(UserError, match=r"0\.485.*trained with \[0\.5, 0\.5, 0\.5\]"):
        completed(given, views)


def test_weights_that_lack_layers_are_refused(tmp_path: Path) -> None:
    model = timm_model("vit_tiny_patch16_224", tmp_path / "w.pth")
    state = {n: v for n, v in model.state_dict().items() if not n.startswith("blocks.3.")}
    torch.save(state, tmp_path / "w.pth")
    config = ImageEncoderConfig(
        name="timm:vit_tiny_patch16_224", weights=tmp_path / "w.pth", img_size=64
    )
    with pytest.raises(UserError, match=r"blocks\.3"):
        build_image_encoder(config)


def test_weights_that_are_not_here_are_not_fetched() -> None:
    pytest.importorskip("timm")
    for name in ("timm:vit_tiny_patch16_224", "torchvision:resnet18"):
        with pytest.raises(UserError, match="not on this machine"):
            build_image_encoder(ImageEncoderConfig(name=name, pretrained=True))


@pytest.mark.parametrize("name", ["resnet18", "efficientnet_b0"])
def test_torchvision_s_networks(name: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.get_model(name, weights=None).eval()
    torch.save(model.state_dict(), tmp_path / "w.pth")
    given = ImageEncoderConfig(name=f"torchvision:{name}", weights=tmp_path / "w.pth")
    config, views = completed(given, ImageViewsConfig(preset="imagenet"))
    transform = models.get_model_weights(name).DEFAULT.transforms()
    assert views.size == transform.crop_size[0]
    x = plain(views)
    assert (transform(picture()) - x[0]).abs().max() < 0.02
    encoder = build_image_encoder(config).eval()
    features = encoder(x)
    head = model.fc if name == "resnet18" else model.classifier
    torch.testing.assert_close(head(features), model(x), atol=1e-5, rtol=1e-5)


def vision_folder(kind: str, folder: Path) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    patches = {"image_size": 32, "patch_size": 8, "intermediate_size": 64}
    if kind == "vit":
        model = transformers.ViTModel(transformers.ViTConfig(**small, **patches))
    elif kind == "dinov2":
        sizes = {"image_size": 32, "patch_size": 8}
        model = transformers.Dinov2Model(transformers.Dinov2Config(**small, **sizes))
    elif kind == "siglip":
        text = {**small, "intermediate_size": 64, "vocab_size": 50}
        config = transformers.SiglipConfig(text_config=text, vision_config={**small, **patches})
        model = transformers.SiglipModel(config)
    elif kind == "clip":
        text = {**small, "intermediate_size": 64, "vocab_size": 50}
        config = transformers.CLIPConfig(text_config=text, vision_config={**small, **patches})
        model = transformers.CLIPModel(config)
    else:
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        if kind == "convnext":
            stages = {"hidden_sizes": [8, 16, 16, 32], "depths": [1, 1, 1, 1]}
            model = transformers.ConvNextModel(transformers.ConvNextConfig(**stages))
        else:
            model = transformers.ResNetModel(transformers.ResNetConfig(**sizes))
    model.eval().save_pretrained(folder)
    transformers.CLIPImageProcessor(
        size={"shortest_edge": 40}, crop_size={"height": 32, "width": 32}
    ).save_pretrained(folder)
    return model


@pytest.mark.parametrize("kind", ["vit", "dinov2", "convnext", "resnet", "clip", "siglip"])
def test_folders_of_transformers_and_back(kind: str, tmp_path: Path) -> None:
    model = vision_folder(kind, tmp_path / "in")
    transformers = pytest.importorskip("transformers")
    opened = Elsewhere.open(str(tmp_path / "in"), modality="images")
    views = opened.sections.views
    assert (views.size, views.crop, views.interpolation) == (32, 32 / 40, "bicubic")
    x = plain(views)
    prepare = transformers.AutoImageProcessor.from_pretrained(tmp_path / "in")
    theirs = prepare(picture(), return_tensors="pt")["pixel_values"]
    assert (theirs - x).abs().max() < 0.05
    run = adapted_by_nothing(tmp_path, {"encoder.name": str(tmp_path / "in")})
    run.export(tmp_path / "out", onnx=False)
    again = transformers.AutoModel.from_pretrained(tmp_path / "out").eval()
    with torch.no_grad():
        vision = model.vision_model if kind in ("clip", "siglip") else model
        expected = vision(x).pooler_output.flatten(1)
        torch.testing.assert_close(opened.encoder(x), expected, atol=1e-5, rtol=1e-5)
        got = again(x).pooler_output.flatten(1)
    torch.testing.assert_close(got, expected, atol=1e-5, rtol=1e-5)
    prepared = transformers.AutoImageProcessor.from_pretrained(tmp_path / "out")
    torch.testing.assert_close(
        prepared(picture(), return_tensors="pt")["pixel_values"], theirs, atol=1e-4, rtol=0
    )


def adapted_by_nothing(
    folder: Path, overrides: dict[str, Any], channels: int = 3, **options: Any
) -> macl.Run:
    """A run of one step at rate 0 on eight random pictures."""
    pixels = np.random.default_rng(0).integers(0, 256, (8, 40, 40, channels), dtype=np.uint8)
    np.savez(folder / "pictures.npz", images=pixels)
    zero = {
        "epochs": 1, "batch_size": 8, "optimizer.lr": 0.0, "optimizer.head_lr": 0.0, "workers": 0,
    }  # fmt: skip
    return macl.train(
        "adapt-images",
        data=folder / "pictures.npz",
        out=folder / "run",
        overrides=zero | overrides,
        **options,
    )


@pytest.mark.parametrize("name", ["test_efficientnet", "test_vit"])
@pytest.mark.parametrize("channels", [1, 3, 5])
def test_a_model_of_timm_and_back(name: str, channels: int, tmp_path: Path) -> None:
    """Of gray pictures three equal channels are made; for five timm widens the first layer."""
    timm = pytest.importorskip("timm")
    original = timm_model(name, tmp_path / "w.pth")
    start = {
        "encoder.name": f"timm:{name}",
        "encoder.weights": tmp_path / "w.pth",
        "views.size": 64,
    }
    if channels == 5:
        start |= {"views.mean": (0.5,) * 5, "views.std": (0.2,) * 5}
    run = adapted_by_nothing(tmp_path, start, channels)
    taken = 3 if channels == 1 else channels
    assert run.recipe.encoder.channels == taken
    state = {n: v for n, v in original.state_dict().items() if not n.startswith(("head.", "clas"))}
    model = timm.create_model(
        name,
        num_classes=0,
        in_chans=taken,
        pretrained=True,
        pretrained_cfg_overlay={"state_dict": state, "source": ""},
        **({"img_size": 64} if name == "test_vit" else {}),
    ).eval()
    run.export(tmp_path / "out", onnx=False)
    again = timm.create_model(f"local-dir:{tmp_path / 'out'}", pretrained=True).eval()
    x = torch.randn(2, taken, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(again(x), model(x), atol=1e-5, rtol=1e-5)
    assert macl.embed(tmp_path / "out", tmp_path / "pictures.npz").values.shape[0] == 8


def test_low_rank_matrices_may_be_kept_apart(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    model = timm_model("test_vit", tmp_path / "w.pth", img_size=64)
    model.head = nn.Identity()
    start = {"encoder.name": "timm:test_vit", "encoder.weights": tmp_path / "w.pth",
             "views.size": 64, "optimizer.lr": 1e-2}  # fmt: skip
    run = adapted_by_nothing(tmp_path, start | {"encoder.lora": {"rank": 2, "apart": True}})
    x = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        before = model(x)
        beside = peft.PeftModel.from_pretrained(model, tmp_path / "run" / "adapter").eval()
        assert not torch.allclose(beside(x), before, atol=1e-4)
        torch.testing.assert_close(beside(x), run.encoder.eval()(x), atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("suffix", [".pth", ".safetensors"])
def test_a_model_of_torchvision_and_back(suffix: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = models.resnet18().eval()
    file = tmp_path / f"w{suffix}"
    torch.save(model.state_dict(), file) if suffix == ".pth" else save_file(
        model.state_dict(), file
    )
    start = {"encoder.name": "torchvision:resnet18", "encoder.weights": file, "views.size": 32}
    adapted_by_nothing(tmp_path, start).export(tmp_path / "out", onnx=False)
    again = models.resnet18()
    again.load_state_dict(load_file(tmp_path / "out" / "encoder.safetensors"), strict=False)
    again.fc, model.fc = nn.Identity(), nn.Identity()
    x = torch.randn(2, 3, 32, 32)
    with torch.no_grad():
        torch.testing.assert_close(again.eval()(x), model(x), atol=1e-5, rtol=1e-5)


def test_sizes_and_channels_that_do_not_fit_name_both(tmp_path: Path) -> None:
    timm_model("test_vit", tmp_path / "w.pth")
    given = ImageEncoderConfig(name="timm:test_vit", weights=tmp_path / "w.pth", img_size=96)
    with pytest.raises(UserError, match=r"img_size=96, but views\.size=64"):
        completed(given, ImageViewsConfig(size=64))
    start = {"encoder.name": "timm:test_vit", "encoder.weights": tmp_path / "w.pth"}
    with pytest.raises(UserError, match=r"5 channels, and views\.mean has 3 values"):
        adapted_by_nothing(tmp_path, start | {"views.size": 64}, channels=5)
    with pytest.raises(UserError, match="takes images of 3 channels"):
        build_image_encoder(ImageEncoderConfig(name="torchvision:resnet18", channels=4))
    with pytest.raises(ValueError, match="mean has 5 values and std 3"):
        ImageViewsConfig(mean=(0.5,) * 5)


@pytest.mark.parametrize("library", ["torchvision", "albumentations"])
def test_views_by_a_transform_of_a_library(library: str) -> None:
    if library == "torchvision":
        transform: Any = v2.Compose([v2.RandomResizedCrop(16), v2.ColorJitter(0.4)])
    else:
        albumentations = pytest.importorskip("albumentations")
        transform = albumentations.Compose([albumentations.RandomResizedCrop((16, 16))])
    pixels = torch.from_numpy(SMOOTH.astype("uint8")).permute(2, 0, 1)
    batch = ImageBatch.of([pixels, pixels[:, :50, :60]])
    config = ImageViewsConfig(size=16, mean=(0.5,) * 3, std=(0.5,) * 3)
    views = ImageViews(config).by(transform)
    pairs = []
    for seed in (0, 0, 1):
        torch.manual_seed(seed)
        pairs.append(views(batch))
    assert pairs[0][0].shape == (2, 3, 16, 16)
    assert pairs[0][0].abs().max() <= 1  # normalized here
    assert torch.equal(pairs[0][0], pairs[1][0])
    assert not torch.equal(pairs[0][0], pairs[0][1])
    assert not torch.equal(pairs[0][0], pairs[2][0])
    assert torch.equal(views.plain(batch), ImageViews(config).plain(batch))
    floats = ImageViews(config).by(lambda x: torch.full((3, 4, 4), 7.0))
    assert floats(batch)[0].unique().item() == 7  # as they are
    with pytest.raises(UserError, match="several shapes"):
        ImageViews(config).by(lambda x: x)(batch)


def test_training_with_a_transform_object(tmp_path: Path) -> None:
    seen = []

    def transform(pixels: Tensor) -> Tensor:
        seen.append(pixels.shape)
        return pixels[:, :32, :32]

    start = {"encoder.name": "resnet8", "views.size": 32}
    adapted_by_nothing(tmp_path, start, transform=transform)
    assert seen == [(3, 40, 40)] * 16


def test_a_run_and_its_export_give_the_same_vectors(tmp_path: Path) -> None:
    """An exported folder is embedded with, evaluated and trained from, and needs no other file."""
    vision_folder("vit", tmp_path / "in")
    (tmp_path / "photos").mkdir()
    for i in range(8):
        Image.fromarray(np.roll(SMOOTH, 9 * i, 1).astype("uint8")).save(
            tmp_path / "photos" / f"{i}.png"
        )
    for source, run in (("in", "run"), ("out", "run2")):
        trained = macl.train(
            "imagenette-small",
            data=tmp_path / "photos",
            out=tmp_path / run,
            overrides={
                "encoder.name": str(tmp_path / source), "epochs": 1, "batch_size": 4,
                "views.size": None, "workers": 0, "schedule.warmup_epochs": 0, "optimizer.lr": 1e-5,
            },
        )  # fmt: skip
        assert trained.recipe.views.size == 32
        assert trained.recipe.views.mean == pytest.approx((0.48145466, 0.4578275, 0.40821073))
        if source == "in":
            trained.export(tmp_path / "out", onnx=False)
    (tmp_path / "in").rename(tmp_path / "gone")
    one = macl.embed(tmp_path / "run", tmp_path / "photos")
    two = macl.embed(tmp_path / "out", tmp_path / "photos")
    torch.testing.assert_close(one.values, two.values, atol=1e-4, rtol=1e-4)
    scores = macl.evaluate(encoder=tmp_path / "out", protocols=["geometry"],
                           data=tmp_path / "photos", overrides={"data.holdout": 0.5})  # fmt: skip
    assert {s.metric for s in scores} >= {"uniformity"}
