"""The C4 detector: its shapes and names against torchvision's ResNet-50."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_voc import quick
from torch import Tensor, nn
from torchvision import models

from macl.core.errors import UserError
from macl.core.weights import save_weights
from macl.modalities.images.detection.c4 import build_detector
from macl.modalities.images.detection.config import DetectionConfig
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder

HERE = Path()


def encoder(name: str, **options: object) -> nn.Module:
    return build_image_encoder(ImageEncoderConfig.model_validate({"name": name, **options}))


def encoder_part(detector: nn.Module) -> dict[str, Tensor]:
    """What of a detector comes from the encoder, under the encoder's names."""
    state = detector.state_dict()
    head = "roi_heads.box_head."
    part = {n.removeprefix("backbone."): v for n, v in state.items() if n.startswith("backbone.")}
    part |= {n.removeprefix(head): v for n, v in state.items() if n.startswith(head + "layer")}
    return part


def test_every_weight_of_a_torchvision_resnet50_is_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    reference = models.resnet50()
    path = tmp_path / "resnet50.pth"
    torch.save(reference.state_dict(), path)
    detector = build_detector(DetectionConfig(), encoder("resnet50", stem="imagenet", weights=path))
    part = encoder_part(detector)
    expected = {n: v for n, v in reference.state_dict().items() if not n.startswith("fc.")}
    assert part.keys() == expected.keys()
    assert all(torch.equal(part[name], expected[name]) for name in expected)
    new = {n.split(".")[0] for n in detector.state_dict()} - {"backbone"}
    assert new == {"rpn", "roi_heads"}

    detector.eval()
    reference.eval()
    image = torch.rand(1, 3, 96, 128)
    x = image
    for name in ("conv1", "bn1", "relu", "maxpool", "layer1", "layer2", "layer3"):
        x = getattr(reference, name)(x)
    with torch.no_grad():
        shared = detector.backbone(image)
    assert shared.shape == (1, 1024, 6, 8)
    torch.testing.assert_close(shared, x, rtol=1e-4, atol=1e-4)
    proposals = [torch.tensor([[0.0, 0.0, 64.0, 64.0], [16.0, 16.0, 80.0, 48.0]])]
    with torch.no_grad():
        rois = detector.roi_heads.box_roi_pool({"0": shared}, proposals, [(96, 128)])
        assert rois.shape == (2, 1024, 14, 14)
        assert detector.roi_heads.box_head(rois).shape == (2, 2048)


def test_the_paper_s_settings() -> None:
    detector = build_detector(DetectionConfig(), encoder("resnet18", stem="imagenet", width=8))
    assert detector.transform.min_size == (480, 512, 544, 576, 608, 640, 672, 704, 736, 768, 800)
    assert detector.transform.max_size == 1333
    assert detector.rpn.anchor_generator.sizes == ((32, 64, 128, 256, 512),)
    assert detector.rpn.head.cls_logits.out_channels == 15
    assert detector.roi_heads.box_roi_pool.output_size == (14, 14)
    assert detector.roi_heads.box_roi_pool.stride == 16
    assert isinstance(detector.roi_heads.box_head.norm, nn.BatchNorm2d)
    assert detector.roi_heads.box_predictor.cls_score.out_features == 21
    config = DetectionConfig()
    assert (config.iterations, config.batch_size, config.lr, config.warmup) == (
        24000,
        16,
        0.02,
        100,
    )
    assert [round(m * config.iterations) for m in config.milestones] == [18000, 22000]


def test_roi_features_of_a_ramp_are_the_ramp() -> None:
    """Feature (x, y) stands for the pixels around stride · (x + ½): no half-pixel shift."""
    detector = build_detector(quick(HERE, HERE), encoder("resnet8", stem="imagenet", width=8))
    pool = detector.roi_heads.box_roi_pool
    assert (pool.output_size, pool.stride) == ((4, 4), 8)
    ramp = (torch.arange(16.0) + 0.5).expand(1, 1, 16, 16) * 8  # the x of each feature's middle
    rois = pool({"0": ramp}, [torch.tensor([[24.0, 24.0, 88.0, 56.0]])], [(128, 128)])
    torch.testing.assert_close(rois[0, 0, 0], torch.tensor([32.0, 48.0, 64.0, 80.0]))


@pytest.mark.parametrize(("name", "stem"), [("resnet8", "cifar"), ("timm:resnet18", "imagenet")])
def test_other_resnets(name: str, stem: str) -> None:
    if name.startswith("timm:"):
        pytest.importorskip("timm")
    made = encoder(name, stem=stem)
    detector = build_detector(quick(HERE, HERE), made).eval()
    assert encoder_part(detector).keys() == made.state_dict().keys()
    with torch.no_grad():
        (seen,) = detector([torch.rand(3, 40, 56)])
    assert seen["boxes"].shape == (len(seen["scores"]), 4)


def test_what_is_no_resnet_is_refused() -> None:
    other = nn.Sequential(nn.Conv2d(3, 4, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    with pytest.raises(UserError, match="needs a ResNet"):
        build_detector(DetectionConfig(), other)


def test_the_encoder_is_copied_and_may_be_forgotten(tmp_path: Path) -> None:
    made = encoder("resnet8", stem="imagenet", width=8)
    before = {name: value.clone() for name, value in made.state_dict().items()}
    detector = build_detector(quick(HERE, HERE), made)
    with torch.no_grad():
        for value in encoder_part(detector).values():
            value.zero_()
    assert all(torch.equal(value, before[name]) for name, value in made.state_dict().items())
    save_weights(detector, tmp_path / "x.safetensors", {})


def test_what_training_froze_is_fine_tuned_all_the_same() -> None:
    """An unfinished run with encoder.freeze gives an encoder whose weights want no gradient."""
    made = encoder("resnet8", stem="imagenet", width=8).requires_grad_(False)
    detector = build_detector(quick(HERE, HERE), made).train()
    assert all(weight.requires_grad for weight in detector.parameters())
    assert all(m.training for m in detector.modules() if isinstance(m, nn.BatchNorm2d))
    assert not any(weight.requires_grad for weight in made.parameters())
