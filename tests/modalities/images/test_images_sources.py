"""Stored arrays: .npz, CIFAR and the embedded digits, and every way they may be wrong."""

from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest
import torch
from pydantic import ValidationError
from sklearn.datasets import load_digits

from macl.core.errors import UserError
from macl.modalities.images import sources
from macl.modalities.images.data import ImageDataConfig, load_images
from macl.modalities.images.sources import ImageTensors
from payload import Payload


def config(path: Path | None = None, **options: object) -> ImageDataConfig:
    return ImageDataConfig.model_validate({"path": path, **options})


def save_npz(path: Path, count: int = 5, **arrays: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    images = np.arange(count * 4 * 6 * 3, dtype=np.uint64).reshape(count, 4, 6, 3).astype(np.uint8)
    contents: dict[str, object] = {"images": images, "labels": np.arange(count) % 2, **arrays}
    np.savez(path, **{k: np.asarray(v) for k, v in contents.items() if v is not None})
    return path


def test_npz_by_file_and_by_folder(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "train.npz", classes=["cat", "dog"])
    save_npz(tmp_path / "test.npz", 3)
    stored = np.load(path)["images"]
    for given_path in (path, tmp_path):
        train = load_images(config(given_path), "train")
        test = load_images(config(given_path), "test")
        assert isinstance(train, ImageTensors)
        assert train.names[:2] == ["train/000000", "train/000001"]
        assert test.names[-1] == "test/000002"
        assert train.classes == ["cat", "dog"]
        assert train.labels is not None
        assert train.labels.tolist() == [0, 1, 0, 1, 0]
        for i in range(5):
            assert np.array_equal(train[i].permute(1, 2, 0).numpy(), stored[i])


@pytest.mark.parametrize("shape", [(5, 4, 6), (5, 4, 6, 1)])
def test_gray_npz(tmp_path: Path, shape: tuple[int, ...]) -> None:
    gray = np.arange(5 * 4 * 6, dtype=np.uint8).reshape(shape)
    images = load_images(config(save_npz(tmp_path / "x.npz", images=gray, labels=None)), "train")
    assert images.labels is None
    for i in range(5):
        assert images[i].tolist() == [gray[i].reshape(4, 6).tolist()] * 3
    assert images.collate([images[0], images[1]]).pixels.shape == (2, 3, 4, 6)


def test_npz_test_path_and_shrinking(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "a" / "mine.npz")
    other = save_npz(tmp_path / "b" / "other.npz", 2)
    options = config(path, test_path=other, max_side=2)
    assert load_images(options, "train")[0].shape == (3, 2, 3)
    assert len(load_images(options, "test")) == 2
    with pytest.raises(UserError, match="no test split"):
        load_images(config(path), "test")


def test_test_data_are_never_trained_on(tmp_path: Path) -> None:
    path = save_npz(tmp_path / "test.npz")
    with pytest.raises(UserError, match="both train and test"):
        load_images(config(path), "train")


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"images": None}, "needs an array called images; it holds: labels"),
        ({"images": np.zeros((5, 4, 6, 3))}, r"float64 \(5, 4, 6, 3\); they must be uint8"),
        ({"images": np.zeros((5, 4, 6, 4, 1), dtype=np.uint8)}, r"\(5, 4, 6, 4, 1\)"),
        ({"images": np.zeros((5, 4), dtype=np.uint8)}, r"\(5, 4\)"),
        ({"images": np.zeros((0, 4, 6, 3), dtype=np.uint8)}, r"\(0, 4, 6, 3\)"),
        ({"labels": [0, 1]}, "one for each of the 5 images"),
        ({"labels": [0.0] * 5}, "float64"),
        ({"labels": [-1] * 5}, "class numbers from 0"),
        ({"labels": [0, 1, 2, 0, 1], "classes": ["a", "b"]}, "go up to 2"),
    ],
)
def test_wrong_npz(tmp_path: Path, arrays: dict[str, object], message: str) -> None:
    path = save_npz(tmp_path / "x.npz", **arrays)
    with pytest.raises(UserError, match=message):
        load_images(config(path), "train")


def test_what_is_no_npz_is_named(tmp_path: Path) -> None:
    (tmp_path / "a.npz").write_bytes(b"nothing of the kind")
    np.save(tmp_path / "b.npy", np.zeros(3))
    (tmp_path / "b.npy").rename(tmp_path / "b.npz")
    for name in "ab":
        with pytest.raises(UserError, match=rf"{name}\.npz cannot be read as \.npz"):
            load_images(config(tmp_path / f"{name}.npz"), "train")


def test_digits_are_the_default() -> None:
    train, test = (load_images(ImageDataConfig(), split) for split in ("train", "test"))
    assert (len(train), len(test)) == (1437, 360)
    assert train.labels is not None
    assert test.labels is not None
    assert (torch.bincount(test.labels) - 36).abs().max() <= 1
    assert train[0].shape == (3, 8, 8)
    # Together they are exactly the stored set, 0..16 scaled to 0..255.
    seen = sorted(tuple(d[i][0].flatten().tolist()) for d in (train, test) for i in range(len(d)))
    stored = np.rint(load_digits().data * 255 / 16).astype(int)
    assert seen == sorted(map(tuple, stored.tolist()))


def test_source_and_path_must_agree(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="source=auto"):
        config(tmp_path, source="digits")
    with pytest.raises(ValidationError, match="needs path"):
        config(None, source="cifar10")


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_is_not_downloaded_unasked(tmp_path: Path, name: str) -> None:
    with pytest.raises(UserError, match=r"data\.download=true"):
        load_images(config(tmp_path, source=name), "train")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["cifar10", "cifar100"])
def test_cifar_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    kind = sources.CIFAR[name]
    coarse = "labels" if name == "cifar10" else "fine_labels"
    folder = tmp_path / kind.base_folder
    folder.mkdir()
    rows = np.arange(4 * 3072, dtype=np.uint64).reshape(4, 3072).astype(np.uint8)

    def write(file: str, content: object) -> str:
        import hashlib

        (folder / file).write_bytes(pickle.dumps(content))
        return hashlib.md5((folder / file).read_bytes()).hexdigest()

    train = [["a", write("a", {"data": rows, coarse: [0, 1, 1, 0]})]]
    test = [["b", write("b", {"data": rows[:2], coarse: [1, 0]})]]
    meta = {**kind.meta, "md5": write(kind.meta["filename"], {kind.meta["key"]: ["cat", "dog"]})}
    for key, value in {"train_list": train, "test_list": test, "meta": meta}.items():
        monkeypatch.setattr(kind, key, value)
    images = load_images(config(tmp_path), "train")  # found by auto
    assert images.labels is not None
    assert images.labels.tolist() == [0, 1, 1, 0]
    assert torch.equal(images[3], torch.from_numpy(rows[3].reshape(3, 32, 32)))
    assert len(load_images(config(tmp_path, max_side=16), "test")) == 2
    assert load_images(config(tmp_path, max_side=16), "test")[0].shape == (3, 16, 16)
    # A changed file is refused before it is unpickled.
    trace = tmp_path / "trace"
    (folder / "a").write_bytes(pickle.dumps(Payload(trace)))
    with pytest.raises(UserError, match="corrupted"):
        load_images(config(tmp_path), "train")
    assert not trace.exists()
