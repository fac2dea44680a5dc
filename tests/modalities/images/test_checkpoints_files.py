"""Weights files of several libraries are read, and no code in a file is run."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn
from torchvision import models

from macl.core.errors import UserError
from macl.modalities.images.checkpoints import (
    export_detectron2,
    load_checkpoint,
    read_checkpoint,
    require_equal,
)
from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder
from macl.modalities.images.pretrained import export_huggingface
from macl.modalities.images.sections import PRESETS, ImageViewsConfig
from payload import Payload


def build(name: str = "resnet18", **options: object) -> nn.Module:
    settings = {"name": name, "stem": "imagenet", "width": 8, **options}
    encoder = build_image_encoder(ImageEncoderConfig.model_validate(settings))
    encoder(torch.randn(4, 3, 64, 64))  # moves the batch statistics, which then matter
    return encoder.eval()


def assert_loads(path: Path, expected: nn.Module) -> None:
    encoder = build()
    load_checkpoint(encoder, path)
    assert_same(encoder, expected)


def assert_same(one: nn.Module, two: nn.Module) -> None:
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(one.eval()(images), two.eval()(images), rtol=1e-5, atol=1e-5)


def test_mocos_checkpoint(tmp_path: Path) -> None:
    encoder = build()
    state = {f"module.encoder_q.{n}": v for n, v in encoder.state_dict().items()}
    state |= {f"module.encoder_k.{n}": v for n, v in build().state_dict().items()}
    optimizer = torch.optim.SGD(encoder.parameters(), lr=0.1, momentum=0.9)
    stored = {
        "epoch": 3,
        "arch": "resnet18",
        "state_dict": state,
        "optimizer": optimizer.state_dict(),
    }
    torch.save(stored, tmp_path / "checkpoint_0003.pth.tar")
    assert_loads(tmp_path / "checkpoint_0003.pth.tar", encoder)


def test_lightlys_checkpoint(tmp_path: Path) -> None:
    encoder = build()
    backbone = nn.Sequential(*list(encoder.children())[:-1])
    state = {f"backbone.{n}": v for n, v in backbone.state_dict().items()}
    state |= {"projection_head.layers.0.weight": torch.zeros(3, 3)}
    torch.save({"epoch": 1, "state_dict": state, "loops": {}}, tmp_path / "last.ckpt")
    assert_loads(tmp_path / "last.ckpt", encoder)


def test_torchvisions_file_and_a_bare_state(tmp_path: Path) -> None:
    encoder = build(width=None)
    reference = models.resnet18()
    torch.save(reference.state_dict(), tmp_path / "resnet18.pth")
    load_checkpoint(encoder, tmp_path / "resnet18.pth")
    reference.fc = nn.Identity()
    assert_same(encoder, reference)
    again = build_image_encoder(
        ImageEncoderConfig(stem="imagenet", weights=tmp_path / "resnet18.pth")
    )
    assert_same(again, reference)


def test_timm_opens_our_weights_and_we_theirs(tmp_path: Path) -> None:
    timm = pytest.importorskip("timm")
    theirs = timm.create_model("resnet18", num_classes=0)
    theirs(torch.randn(4, 3, 64, 64))
    torch.save(theirs.state_dict(), tmp_path / "timm.pth")
    encoder = build(width=None)
    load_checkpoint(encoder, tmp_path / "timm.pth")
    assert_same(encoder, theirs)
    fresh = timm.create_model("resnet18", num_classes=0)
    fresh.load_state_dict(encoder.state_dict())
    assert_same(fresh, theirs)


def test_other_networks_keep_their_own_names(tmp_path: Path) -> None:
    pytest.importorskip("timm")
    config = ImageEncoderConfig(name="timm:mobilenetv3_small_050")
    encoder = build_image_encoder(config)
    save_file(encoder.state_dict(), tmp_path / "x.safetensors")
    again = build_image_encoder(config.model_copy(update={"weights": tmp_path / "x.safetensors"}))
    assert_same(again, encoder)


def test_detectron2(tmp_path: Path) -> None:
    for name in ("resnet18", "resnet50"):
        encoder = build(name)
        export_detectron2(encoder, tmp_path / "d2.pth")
        stored = torch.load(tmp_path / "d2.pth", weights_only=True)
        assert stored.keys() == {"model"}
        assert "res2.0.conv1.norm.weight" in stored["model"]
        again = build(name)
        load_checkpoint(again, tmp_path / "d2.pth")
        assert_same(again, encoder)


@pytest.mark.parametrize("name", ["resnet18", "resnet50", "resnet14"])
def test_hugging_face(tmp_path: Path, name: str) -> None:
    transformers = pytest.importorskip("transformers")
    encoder = build(name, width=16)
    export_huggingface(encoder, tmp_path, ImageViewsConfig(preset="imagenet"), {})
    model = transformers.AutoModel.from_pretrained(tmp_path, local_files_only=True).eval()
    # In double precision: fifty layers of random weights blow up the last bits of float32.
    images = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        features = model.double()(images).pooler_output.flatten(1)
        torch.testing.assert_close(features, encoder.double()(images), rtol=1e-5, atol=1e-5)
    processor = transformers.AutoImageProcessor.from_pretrained(tmp_path, local_files_only=True)
    assert processor.image_mean == pytest.approx(list(PRESETS["imagenet"].mean))
    again = build(name, width=16)
    load_checkpoint(again, tmp_path)
    assert_same(again, encoder.float())


def test_encoders_that_other_libraries_lack(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    with pytest.raises(UserError, match="7×7 stem"):
        export_huggingface(build(stem="cifar"), tmp_path / "x", ImageViewsConfig(), {})
    with pytest.raises(UserError, match="layout detectron2 is for ResNets"):
        export_detectron2(nn.Sequential(nn.Conv2d(3, 3, 1)), tmp_path / "x.pth")
    assert not list(tmp_path.iterdir())


def test_a_different_network_is_noticed() -> None:
    with pytest.raises(UserError, match="the copy differs from the encoder by"):
        require_equal(build(), build(), "the copy")


def test_code_in_a_file_is_not_run(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    stored = {"state_dict": build().state_dict(), "arguments": Payload(mark)}
    torch.save(stored, tmp_path / "evil.pth")
    with pytest.raises(UserError, match="could run code"):
        read_checkpoint(tmp_path / "evil.pth")
    (tmp_path / "evil.pkl").write_bytes(pickle.dumps({"model": Payload(mark)}))
    with pytest.raises(UserError, match="is a pickle, which can run code"):
        read_checkpoint(tmp_path / "evil.pkl")
    (tmp_path / "disguised.pth").write_bytes((tmp_path / "evil.pkl").read_bytes())
    with pytest.raises(UserError, match="could run code"):
        read_checkpoint(tmp_path / "disguised.pth")
    assert not mark.exists()


@pytest.mark.parametrize("content", [b"", b"nothing", b"PK\x03\x04broken"])
def test_a_damaged_file_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.pth").write_bytes(content)
    with pytest.raises(UserError, match=r"x\.pth is damaged"):
        read_checkpoint(tmp_path / "x.pth")


@pytest.mark.parametrize("suffix", [".pth", ".pt", ".tar", ".ckpt", ".bin", ".safetensors"])
def test_short_files_that_are_no_weights_are_refused(tmp_path: Path, suffix: str) -> None:
    """The text hi used to raise KeyError: 105 from inside torch's reader."""
    generator = np.random.default_rng(0)
    contents = [b"hi", b"", b"}", b"PK\x03\x04", *(bytes([byte]) for byte in range(256))]
    contents += [generator.bytes(int(generator.integers(2, 30))) for _ in range(200)]
    for content in contents:
        (tmp_path / f"x{suffix}").write_bytes(content)
        with pytest.raises(UserError, match=rf"x\{suffix}"):
            read_checkpoint(tmp_path / f"x{suffix}")


@pytest.mark.parametrize("stored", [{"state_dict": {}}, {"epoch": 3}, [torch.zeros(1)], 3])
def test_a_file_without_weights_is_named(tmp_path: Path, stored: object) -> None:
    torch.save(stored, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"x\.pth holds no weights by name"):
        read_checkpoint(tmp_path / "x.pth")


def test_weights_of_another_network_are_compared(tmp_path: Path) -> None:
    state: dict[str, Tensor] = {
        f"backbone.{n}": v for n, v in build("resnet34").state_dict().items()
    }
    torch.save(state, tmp_path / "x.pth")
    with pytest.raises(UserError, match=r"layer1\.2\.conv1\.weight is not in the encoder"):
        load_checkpoint(build(), tmp_path / "x.pth")
