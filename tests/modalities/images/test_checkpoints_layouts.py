"""Names of ResNet weights: every library's, there and back."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torchvision import models

from macl.modalities.images.checkpoints import LAYOUTS, as_torchvision, renamed, resnet_shape
from macl.modalities.images.encoders import (
    ImageEncoderConfig,
    ResNetEncoder,
    build_image_encoder,
)


def state_of(name: str, **options: object) -> dict[str, Tensor]:
    config = ImageEncoderConfig.model_validate({"name": name, "width": 8, **options})
    return build_image_encoder(config).state_dict()


def assert_equal(one: dict[str, Tensor] | None, two: dict[str, Tensor]) -> None:
    assert one is not None
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in two)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("name", ["resnet8", "resnet18", "resnet50"])
def test_there_and_back(name: str, layout: str) -> None:
    state = state_of(name)
    theirs = renamed(state, layout)
    assert len(theirs) == len(state)
    assert_equal(as_torchvision(theirs), state)


def test_detectron2_s_names() -> None:
    names = set(renamed(state_of("resnet50"), "detectron2"))
    assert {
        "stem.conv1.weight", "stem.conv1.norm.running_var", "res2.0.conv1.weight",
        "res2.0.shortcut.weight", "res2.0.shortcut.norm.bias", "res4.5.conv3.norm.weight",
        "res5.2.conv2.weight",
    } <= names  # fmt: skip
    assert {name.split(".")[0] for name in names} == {"stem", "res2", "res3", "res4", "res5"}


def test_detectron2_s_c4_model_without_batch_counters() -> None:
    state = state_of("resnet50")
    theirs = {
        ("roi_heads." if name.startswith("res5") else "backbone.") + name: value
        for name, value in renamed(state, "detectron2").items()
        if "num_batches" not in name
    }
    theirs["proposal_generator.rpn_head.conv.weight"] = torch.zeros(1)
    assert_equal(as_torchvision(theirs), state)


def test_hugging_face_s_names() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 16, 32, 64], depths=[2, 2, 2, 2], layer_type="basic"
    )
    theirs = transformers.ResNetForImageClassification(config).state_dict()
    ours = as_torchvision(theirs)
    assert ours is not None
    expected = state_of("resnet18", stem="imagenet")
    assert {n: v.shape for n, v in ours.items()} == {n: v.shape for n, v in expected.items()}


def test_timm_s_names() -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("resnet18").state_dict()
    with torch.device("meta"):
        expected = models.resnet18().state_dict()
    assert as_torchvision(theirs).keys() == {n for n in expected if not n.startswith("fc.")}  # type: ignore[union-attr]


def test_mocos_query_encoder_is_taken_and_not_its_key_encoder() -> None:
    query, key = state_of("resnet18"), state_of("resnet18")
    stored = {f"module.encoder_k.{name}": value for name, value in key.items()}
    stored |= {f"module.encoder_q.{name}": value for name, value in query.items()}
    stored |= {"module.encoder_q.fc.0.weight": torch.zeros(2, 2), "module.queue": torch.zeros(4, 4)}
    assert_equal(as_torchvision(stored), query)


def test_lightlys_backbone_is_taken_and_not_its_momentum_copy() -> None:
    resnet = models.resnet18()
    learning = nn.Sequential(*list(resnet.children())[:-1])
    following = nn.Sequential(*list(models.resnet18().children())[:-1])
    modules = {"backbone_momentum": following, "backbone": learning, "head": nn.Linear(2, 2)}
    stored = nn.ModuleDict(modules).state_dict()
    expected = {n: v for n, v in resnet.state_dict().items() if not n.startswith("fc.")}
    assert_equal(as_torchvision(stored), expected)


def test_what_is_no_plain_resnet_is_not_taken_for_one() -> None:
    state = state_of("resnet18")
    assert as_torchvision({}) is None
    assert as_torchvision({"layer1.0.conv1.weight": torch.zeros(1)}) is None
    assert as_torchvision(state | {"layer1.0.se.fc1.weight": torch.zeros(1)}) is None
    assert (
        as_torchvision(
            {"conv1.0.weight" if n == "conv1.weight" else n: v for n, v in state.items()}
        )
        is None
    )
    with pytest.raises(KeyError, match="head"):
        renamed({"head.weight": torch.zeros(1)}, "detectron2")


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("resnet8", {}),
        ("resnet20", {"stem": "imagenet", "width": 12}),
        ("resnet34", {"stem": "imagenet"}),
        ("resnet50", {"width": 16}),
        ("resnext50_32x4d", {"width": None, "stem": "imagenet"}),
        ("wide_resnet50_2", {"width": None, "stem": "imagenet"}),
    ],
)
def test_the_network_is_known_from_its_weights(name: str, options: dict[str, object]) -> None:
    with torch.device("meta"):
        state = state_of(name, **options)
        again = ResNetEncoder(**resnet_shape(state))
    expected = {n: v.shape for n, v in state.items()}
    assert {n: v.shape for n, v in again.state_dict().items()} == expected
    with torch.device("meta"):
        made = build_image_encoder(
            ImageEncoderConfig.model_validate({"name": name, "width": 8, **options})
        )
    assert str(again) == str(made)  # strides, groups and pooling too
