"""VOC folders as they are distributed, and as they go wrong."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from small_voc import make_voc, object_xml

from macl.core.errors import UserError
from macl.modalities.images.detection.data import (
    CLASSES,
    find_devkit,
    read_objects,
    read_voc,
)


def annotation(tmp_path: Path, objects: str) -> Path:
    file = tmp_path / "000001.xml"
    file.write_text(f"<annotation><size><width>100</width></size>{objects}</annotation>")
    return file


def test_classes_are_vocs() -> None:
    assert len(CLASSES) == 20
    assert list(CLASSES) == sorted(CLASSES)


def test_an_annotation(tmp_path: Path) -> None:
    """Boxes count from 0; difficult and truncated may be missing; parts of a body do not count."""
    part = "<part><name>head</name><bndbox><xmin>1</xmin></bndbox></part>"
    file = annotation(
        tmp_path,
        object_xml("dog", (1, 1, 10, 20), "<truncated>1</truncated><difficult>1</difficult>")
        + object_xml("person", (3.5, 4, 30, 40), f"<difficult>0</difficult>{part}")
        + object_xml("car", (5, 6, 7, 8)),
    )
    objects = read_objects(file)
    expected = [[0, 0, 10, 20], [2.5, 3, 30, 40], [4, 5, 7, 8]]
    assert torch.equal(objects.boxes, torch.tensor(expected))
    assert [CLASSES[label - 1] for label in objects.labels] == ["dog", "person", "car"]
    assert objects.difficult.tolist() == [True, False, False]


def test_an_image_without_objects(tmp_path: Path) -> None:
    objects = read_objects(annotation(tmp_path, ""))
    assert objects.boxes.shape == (0, 4)
    assert objects.labels.shape == objects.difficult.shape == (0,)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (object_xml("dgo", (1, 1, 2, 2)), r"'dgo'. Did you mean 'dog'\?"),
        ("<object><name>dog</name></object>", "a dog has no bndbox"),
        (object_xml("dog", (1, 1, 2, "")), "could not convert"),
        (object_xml("dog", (5, 1, 3, 2)), "box of a dog is empty"),
        (object_xml("dog", (1, 1, float("nan"), 2)), "box of a dog is empty"),
        ("<object>", "mismatched tag"),
    ],
)
def test_a_broken_annotation_is_named(tmp_path: Path, content: str, message: str) -> None:
    with pytest.raises(UserError, match=rf"000001\.xml is not a VOC annotation: .*{message}"):
        read_objects(annotation(tmp_path, content))


def test_sets_are_joined_in_order(tmp_path: Path) -> None:
    devkit = make_voc(tmp_path, {"2007/trainval": 3, "2012/trainval": 2, "2007/test": 1})
    images = read_voc(devkit, ["2007/trainval", "2012/trainval"])
    assert images.names == [
        "2007/000001", "2007/000002", "2007/000003", "2012/000004", "2012/000005",
    ]  # fmt: skip
    pixels, objects = images[4]
    assert pixels.shape == (3, 72, 96)
    assert pixels.dtype == torch.uint8
    left, top, right, bottom = objects.boxes[0].int().tolist()
    inside = pixels[:, top + 2 : bottom - 2, left + 2 : right - 2].float()
    assert inside.std(dim=(1, 2)).max() < 10  # the box is the drawn rectangle
    assert pixels.float().std() > 20


def test_folders_above_and_below_are_understood(tmp_path: Path) -> None:
    devkit = make_voc(tmp_path, {"2007/train": 1})
    for path in (devkit, tmp_path, devkit / "VOC2007"):
        assert find_devkit(path) == devkit
    assert find_devkit(devkit / "VOC2007" / "JPEGImages") is None


def test_what_is_missing_is_told(tmp_path: Path) -> None:
    devkit = make_voc(tmp_path, {"2007/train": 2})
    (tmp_path / "empty").mkdir()
    (tmp_path / "empty" / "inside").mkdir()
    for wrong in (tmp_path / "empty" / "inside", tmp_path / "nowhere" / "x"):
        assert find_devkit(wrong) is None
        with pytest.raises(UserError, match="holds no VOC: give the folder VOCdevkit"):
            read_voc(wrong, ["2007/train"])
    with pytest.raises(UserError, match=r"no VOC2012, only 2007.*evaluation\.detection\.train"):
        read_voc(devkit, ["2012/train"])
    with pytest.raises(UserError, match=r"no set 'trian'. Did you mean 'train'\?"):
        read_voc(devkit, ["2007/trian"])
    (devkit / "VOC2007" / "Annotations" / "000002.xml").unlink()
    with pytest.raises(UserError, match=r"000002\.xml is not there"):
        read_voc(devkit, ["2007/train"])
    (devkit / "VOC2007" / "JPEGImages" / "000002.jpg").unlink()
    with pytest.raises(UserError, match=r"1 of 2 images of 2007/train are not there"):
        read_voc(devkit, ["2007/train"])
    (devkit / "VOC2007" / "ImageSets" / "Main" / "train.txt").write_text("")
    with pytest.raises(UserError, match=r"train\.txt is empty"):
        read_voc(devkit, ["2007/train"])
