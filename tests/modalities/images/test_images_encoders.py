"""Image encoders: the same networks and names as torchvision's, and errors that help."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch import nn
from torchvision import models

from macl.core.errors import UserError
from macl.core.weights import load_weights, save_weights
from macl.modalities.images.encoders import (
    ImageEncoderConfig,
    ResNetEncoder,
    build_image_encoder,
)


def build(name: str, **options: object) -> nn.Module:
    return build_image_encoder(ImageEncoderConfig.model_validate({"name": name, **options}))


TORCHVISION = models.list_models(models, include=["resnet*", "resnext*", "wide_resnet*"])


@pytest.mark.parametrize("name", TORCHVISION)
def test_layout_is_torchvisions(name: str) -> None:
    with torch.device("meta"):
        reference = models.get_model(name).state_dict()
        encoder = build(name, stem="imagenet")
    state = encoder.state_dict()
    assert encoder.out_dim == reference["fc.weight"].shape[1]
    expected = {key: value.shape for key, value in reference.items() if key[:3] != "fc."}
    assert {key: value.shape for key, value in state.items()} == expected
    assert list(state) == list(expected)


@pytest.mark.parametrize("name", ["resnet18", "resnet50"])
def test_features_are_torchvisions_and_weights_go_back(tmp_path: Path, name: str) -> None:
    torch.manual_seed(0)
    encoder = build(name, stem="imagenet").eval()
    save_weights(encoder, tmp_path / "encoder.safetensors", {"name": name})
    reference = models.get_model(name)
    outcome = reference.load_state_dict(load_file(tmp_path / "encoder.safetensors"), strict=False)
    assert outcome.missing_keys == ["fc.weight", "fc.bias"]
    assert outcome.unexpected_keys == []
    reference.fc = nn.Identity()
    images = torch.rand(2, 3, 64, 48)
    with torch.no_grad():
        torch.testing.assert_close(encoder(images), reference.eval()(images), rtol=1e-4, atol=1e-4)


def test_initialization_is_torchvisions() -> None:
    torch.manual_seed(0)
    encoder = build("resnet18", stem="imagenet")
    torch.manual_seed(0)
    reference = models.resnet18()
    for key, value in encoder.state_dict().items():
        expected = reference.state_dict()[key]
        assert value.float().std(correction=0) == pytest.approx(
            expected.float().std(correction=0).item(), rel=0.1
        ), key
        assert value.float().mean() == pytest.approx(expected.float().mean().item(), abs=0.01), key


def test_cifar_stem_keeps_the_resolution() -> None:
    encoder = build("resnet18", stem="cifar")
    assert isinstance(encoder, ResNetEncoder)
    assert encoder.conv1.weight.shape == (64, 3, 3, 3)
    assert encoder.conv1.stride == (1, 1)
    sizes = []
    encoder.layer1.register_forward_hook(lambda _m, _i, output: sizes.append(output.shape))
    assert encoder(torch.rand(2, 3, 32, 32)).shape == (2, 512)
    assert sizes == [(2, 64, 32, 32)]


@pytest.mark.parametrize(("name", "layers"), [("resnet8", 7), ("resnet14", 13), ("resnet20", 19)])
def test_small_resnets(name: str, layers: int) -> None:
    encoder = build(name)
    assert encoder.out_dim == 64
    assert encoder(torch.rand(2, 3, 8, 8)).shape == (2, 64)
    # The depth in the name counts the classifier, and not the 1×1 shortcuts.
    convolutions = [m for m in encoder.modules() if isinstance(m, nn.Conv2d)]
    assert sum(m.kernel_size == (3, 3) for m in convolutions) == layers
    # torchvision's names: those of a ResNet-34, whose first stage alone has no shortcut.
    with torch.device("meta"):
        assert set(encoder.state_dict()) <= set(models.resnet34().state_dict())


def test_width() -> None:
    assert build("resnet8", width=4).out_dim == 16
    assert build("resnet18", width=8).out_dim == 64
    encoder = build("resnet50", width=4)
    assert encoder.out_dim == 128
    assert encoder(torch.rand(2, 3, 16, 16)).shape == (2, 128)


@pytest.mark.parametrize(("name", "norm"), [("resnet8", "bn2"), ("resnet50", "bn3")])
def test_zero_init_residual(name: str, norm: str) -> None:
    for zero in (False, True):
        state = build(name, width=4, zero_init_residual=zero).state_dict()
        last = [value for key, value in state.items() if key.endswith(f".{norm}.weight")]
        assert last
        assert all(bool((value == (0 if zero else 1)).all()) for value in last)
    assert (state["layer1.0.bn1.weight"] == 1).all()


def test_convolutions_are_channels_last_and_saved_plain(tmp_path: Path) -> None:
    encoder = build("resnet8")
    assert encoder.layer2[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)
    save_weights(encoder, tmp_path / "x.safetensors", {})
    assert load_file(tmp_path / "x.safetensors")["layer2.0.conv1.weight"].is_contiguous()


def test_unknown_name() -> None:
    with pytest.raises(UserError, match=r"'resnet19'.* Did you mean 'resnet1.*resnet8.*timm:NAME"):
        build("resnet19")


# timm


def test_timm() -> None:
    pytest.importorskip("timm")
    # Its num_features (960) is not the width of what it gives (1280 in this variant).
    encoder = build("timm:mobilenetv3_large_100")
    with torch.no_grad():
        assert encoder.eval()(torch.rand(2, 3, 32, 32)).shape == (2, encoder.out_dim)
    assert build("timm:vit_tiny_patch16_224").out_dim == 192
    with pytest.raises(UserError, match=r"no model 'resnet18x'. Nearest: resnet18"):
        build("timm:resnet18x")
    with pytest.raises(UserError, match="no model 'hf-hub:timm/resnet18'"):
        build("timm:hf-hub:timm/resnet18")
    with pytest.raises(UserError, match="width is for ResNets"):
        build("timm:resnet18", width=8)


def test_timm_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)
    with pytest.raises(UserError, match=r"macl\[adapt\]"):
        build("timm:resnet18")


# A user's own


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    (tmp_path / "own_encoders.py").write_text(
        "from pathlib import Path\n"
        "from torch import nn\n"
        "Path(__file__).with_name('imported').touch()\n"
        "def bare(): return nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(3, 7))\n"
        "class Told(nn.Module):\n"
        "    out_dim = 5\n"
        "    def forward(self, x): raise RuntimeError('must not be probed')\n"
        "def maps(): return nn.Conv2d(3, 4, 1)\n"
        "def picky(): return nn.Sequential(nn.Flatten(), nn.Linear(3 * 10 * 10, 2))\n"
        "def nothing(): return 3\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "own_encoders", raising=False)
    return "own_encoders"


def test_import_needs_permission(own: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"encoder\.allow_import=true"):
        build(f"{own}:bare")
    assert not (tmp_path / "imported").exists()


def test_imported_encoders(own: str) -> None:
    bare = build(f"{own}:bare", allow_import=True)
    assert bare.out_dim == 7
    assert bare.training
    assert build(f"{own}:Told", allow_import=True).out_dim == 5


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("own_encoders:absent", "absent"),
        ("own_absent:bare", "No module named 'own_absent'"),
        ("own_encoders:maps", r"gives \(2, 4, 32, 32\)"),
        ("own_encoders:picky", "attribute out_dim"),
        ("own_encoders:nothing", "made a int"),
    ],
)
def test_imports_that_fail(own: str, name: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        build(name, allow_import=True)


# Weights


def test_save_and_start_from_weights(tmp_path: Path) -> None:
    path = tmp_path / "encoder.safetensors"
    encoder = build("resnet8")
    encoder(torch.rand(4, 3, 8, 8))  # moves the running statistics
    save_weights(encoder, path, {"name": "resnet8", "stem": "cifar"})
    with safe_open(path, framework="pt") as file:
        assert file.metadata() == {"format": "pt", "name": "resnet8", "stem": "cifar"}
    assert [p.name for p in tmp_path.iterdir()] == ["encoder.safetensors"]
    again = build("resnet8", weights=path)
    for key, value in encoder.state_dict().items():
        assert torch.equal(again.state_dict()[key], value), key
    assert again.layer1[0].conv1.weight.is_contiguous(memory_format=torch.channels_last)


def test_tied_weights_can_be_saved(tmp_path: Path) -> None:
    tied = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    tied["b"].weight = tied["a"].weight
    save_weights(tied, tmp_path / "x.safetensors", {})
    load_weights(tied, tmp_path / "x.safetensors")


def test_a_classifier_in_the_file_is_left_aside(tmp_path: Path) -> None:
    reference = models.resnet18()
    save_file(reference.state_dict(), tmp_path / "x.safetensors")
    encoder = build("resnet18", stem="imagenet", weights=tmp_path / "x.safetensors")
    assert torch.equal(encoder.layer4[1].conv2.weight, reference.layer4[1].conv2.weight)


def test_an_encoder_may_call_its_own_layer_fc(tmp_path: Path) -> None:
    saved, loaded = (nn.ModuleDict({"fc": nn.Linear(3, 2)}) for _ in range(2))
    save_weights(saved, tmp_path / "x.safetensors", {})
    load_weights(loaded, tmp_path / "x.safetensors")
    assert torch.equal(loaded["fc"].weight, saved["fc"].weight)
    save_weights(nn.Linear(3, 2), tmp_path / "y.safetensors", {})
    with pytest.raises(UserError, match=r"fc\.weight is missing"):
        load_weights(loaded, tmp_path / "y.safetensors")


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.safetensors"
    save_weights(build("resnet8"), path, {"name": "resnet8", "stem": "cifar"})
    with pytest.raises(
        UserError,
        match=r"(?s)in 1 places:.*conv1\.weight is \(16, 3, 3, 3\) in the"
        r" file, \(16, 3, 7, 7\) in the encoder.*made with: name=resnet8, stem=cifar",
    ):
        build("resnet8", stem="imagenet", weights=path)
    with pytest.raises(UserError, match=r"layer1\.1\.conv1\.weight is missing from the file"):
        build("resnet14", weights=path)
    encoder = build("resnet8", width=8)
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    with pytest.raises(UserError, match="do not fit"):
        load_weights(encoder, path)
    assert all(torch.equal(before[key], value) for key, value in encoder.state_dict().items())


def test_weights_that_are_not_there(tmp_path: Path) -> None:
    for name in ("nowhere.pth", "nowhere.safetensors"):
        with pytest.raises(UserError, match=rf"{name} cannot be read"):
            build("resnet8", weights=tmp_path / name)


def test_gradients_reach_every_weight() -> None:
    encoder = build("resnet8")
    encoder(torch.rand(4, 3, 8, 8)).square().sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in encoder.parameters())
