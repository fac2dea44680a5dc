"""A transformers CLIP folder: loaded, evaluated, trained, written again."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import recipe_texts
from macl.core.errors import UserError
from macl.evaluation.score import recognize, score_encoder
from macl.modalities.image_text.clip import clip_views, load_clip
from macl.modalities.images.decode import ImageBatch
from macl.modalities.images.sections import ImageViewsConfig
from macl.modalities.images.views import ImageViews
from macl.runs.export import export_run
from macl.training.fit import train
from small_clip import tiny_clip
from small_pairs import color_pairs
from tiny import HERE

transformers = pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_clip(tmp_path_factory.mktemp("clip") / "model")


def test_towers_give_the_model_s_own_features(folder: Path) -> None:
    model = transformers.CLIPModel.from_pretrained(folder).eval()
    towers = load_clip(folder).eval()
    tokens = towers.text.tokenize(["a red square", "blue"])
    pictures = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        found = model(pixel_values=pictures, **tokens)
        mine, texts = towers(pictures), towers(tokens)
    normalize = torch.nn.functional.normalize
    torch.testing.assert_close(normalize(mine, dim=1), found.image_embeds)
    torch.testing.assert_close(normalize(texts, dim=1), found.text_embeds)


def test_a_folder_is_recognized_and_evaluated(folder: Path, tmp_path: Path) -> None:
    assert recognize(str(folder)).name == "image-text"
    scores = score_encoder(str(folder), data=color_pairs(tmp_path))
    metrics = {score.metric: score.value for score in scores}
    assert 0 <= metrics["image-to-text R@1"] <= 100
    with pytest.raises(UserError, match="holds no CLIP"):
        load_clip(tmp_path)


@pytest.mark.parametrize("with_tokenizer", [False, True])
def test_images_are_prepared_as_the_folder_says(with_tokenizer: bool, tmp_path: Path) -> None:
    """A central crop and bicubic interpolation, which are not those of the preset."""
    folder = tiny_clip(tmp_path / "model")
    processor = transformers.CLIPImageProcessor(
        size={"shortest_edge": 20}, crop_size=16, image_mean=[0.5] * 3, image_std=[0.25] * 3
    )
    if with_tokenizer:  # one file for both
        (folder / "preprocessor_config.json").unlink()
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        processor = transformers.CLIPProcessor(processor, tokenizer)
    processor.save_pretrained(folder)
    wide = (torch.rand(3, 40, 60, generator=torch.Generator().manual_seed(0)) * 255).byte()
    theirs = transformers.AutoImageProcessor.from_pretrained(folder)(wide, return_tensors="pt")
    views = ImageViews(ImageViewsConfig.model_validate(clip_views(folder)))
    ours = views.plain(ImageBatch.of([wide]))
    torch.testing.assert_close(ours, theirs["pixel_values"], atol=0.05, rtol=0)


def test_without_preprocessing_the_size_is_the_model_s(tmp_path: Path) -> None:
    folder = tiny_clip(tmp_path / "model")
    (folder / "preprocessor_config.json").unlink()
    assert clip_views(folder) == {"preset": "clip", "size": 16}


def test_fine_tuned_and_exported_again(folder: Path, tmp_path: Path) -> None:
    made = recipe_texts.load(
        "clip-small",
        [
            f"data.path={color_pairs(tmp_path)}", f"encoder.pretrained={folder}",
            "views.image.size=16", "batch_size=10", "epochs=1", "monitor_every=0",
        ],
    )  # fmt: skip
    run = train(made, tmp_path / "run", compute=HERE)
    export_run(run, tmp_path / "out", onnx=False, layouts=["huggingface"])
    model = transformers.AutoModel.from_pretrained(tmp_path / "out" / "huggingface").eval()
    before = transformers.CLIPModel.from_pretrained(folder)
    assert torch.equal(model.logit_scale, before.logit_scale)
    assert not torch.equal(model.visual_projection.weight, before.visual_projection.weight)
    again = load_clip(tmp_path / "out" / "huggingface")
    for name, value in run.encoder.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])


def test_other_towers_have_no_such_layout(tmp_path: Path) -> None:
    made = recipe_texts.load("digits-captions", ["epochs=0"])
    run = train(made, tmp_path / "run", compute=HERE)
    with pytest.raises(UserError, match="no model of these towers"):
        export_run(run, tmp_path / "out", onnx=False, layouts=["huggingface"])
    written = export_run(run, tmp_path / "out", onnx=False)
    assert written[0].startswith("encoder.safetensors")
    assert recognize(str(tmp_path / "out")).name == "image-text"
