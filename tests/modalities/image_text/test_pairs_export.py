"""Both towers for other libraries: ONNX, sentence-transformers, SigLIP of transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F

import recipe_texts
from macl.core.errors import UserError
from macl.evaluation.score import recognize, score_encoder
from macl.modalities.image_text.clip import load_clip
from macl.runs import Run
from macl.runs.export import export_run
from macl.training.fit import train
from small_clip import tiny_clip, tiny_siglip
from small_pairs import color_pairs
from tiny import HERE

transformers = pytest.importorskip("transformers")

SMALL = (
    "batch_size=10", "epochs=1", "monitor_every=0", "views.image.size=16", "encoder.image.width=8",
    "encoder.text.width=16", "encoder.text.layers=1", "encoder.text.heads=2",
    "encoder.text.vocabulary=100", "encoder.dim=16", "encoder.hidden=[12]",
)  # fmt: skip
TEXTS = ["a red square", "blue", "one two three four five six seven"]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    folder = tmp_path_factory.mktemp("export")
    table = color_pairs(folder)
    made = recipe_texts.load("clip-small", [f"data.path={table}", *SMALL])
    return train(made, folder / "run", compute=HERE)


def tuned(model: Path, folder: Path) -> Run:
    """A fine-tuned run of a folder with both towers."""
    made = recipe_texts.load(
        "clip-small",
        [
            f"data.path={color_pairs(folder)}", f"encoder.pretrained={model}",
            "views.image.size=16", "batch_size=10", "epochs=1", "monitor_every=0",
        ],
    )  # fmt: skip
    return train(made, folder / "run", compute=HERE)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["small towers", "clip", "siglip"])
def test_both_towers_in_onnx_runtime(kind: str, run: Run, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime")
    if kind != "small towers":
        made = {"clip": tiny_clip, "siglip": tiny_siglip}[kind](tmp_path / "model")
        run = tuned(made, tmp_path)
    written = export_run(run, tmp_path / "out")
    names = [line.partition(":")[0] for line in written]
    assert names == ["encoder.safetensors", "image.onnx", "text.onnx", "README.md"]
    towers = run.encoder.eval()
    tokens = towers.text.tokenize(TEXTS)
    pixels = torch.randn(1, 3, 16, 16)
    for file, view, given in (
        ("image.onnx", pixels, {"pixels": pixels}),
        ("text.onnx", tokens, dict(tokens)),
    ):
        session = onnxruntime.InferenceSession(tmp_path / "out" / file)
        (got,) = session.run(None, {name: value.numpy() for name, value in given.items()})
        with torch.no_grad():
            torch.testing.assert_close(torch.from_numpy(got), towers(view), rtol=1e-4, atol=1e-5)


def test_sentence_transformers_open_the_text_side(run: Run, tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers")
    export_run(run, tmp_path / "out", onnx=False, layouts=["sentence-transformers"])
    model = library.SentenceTransformer(
        str(tmp_path / "out" / "sentence-transformers"), device="cpu", local_files_only=True
    )
    towers = run.encoder.eval()
    with torch.no_grad():
        expected = F.normalize(towers(towers.text.tokenize(TEXTS)), dim=1)
    torch.testing.assert_close(torch.as_tensor(model.encode(TEXTS)), expected, rtol=0, atol=1e-5)


def test_a_clip_s_text_side_is_in_its_own_folder(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    run = tuned(tiny_clip(tmp_path / "model"), tmp_path)
    with pytest.raises(UserError, match="`layouts=huggingface`"):
        export_run(run, tmp_path / "out", onnx=False, layouts=["sentence-transformers"])


def test_a_siglip_is_loaded_judged_tuned_and_written_again(tmp_path: Path) -> None:
    folder = tiny_siglip(tmp_path / "model")
    model = transformers.SiglipModel.from_pretrained(folder).eval()
    towers = load_clip(folder).eval()
    tokens = towers.text.tokenize(TEXTS)
    pictures = torch.randn(3, 3, 16, 16)
    with torch.no_grad():
        found = model(pixel_values=pictures, **tokens)
        torch.testing.assert_close(F.normalize(towers(pictures), dim=1), found.image_embeds)
        torch.testing.assert_close(F.normalize(towers(tokens), dim=1), found.text_embeds)
    assert recognize(str(folder)).name == "image-text"
    (tmp_path / "data").mkdir()
    scores = score_encoder(str(folder), data=color_pairs(tmp_path / "data"))
    assert {"image-to-text R@1", "text-to-image R@10"} <= {score.metric for score in scores}
    run = tuned(folder, tmp_path)
    export_run(run, tmp_path / "out", onnx=False, layouts=["huggingface"])
    again = transformers.AutoModel.from_pretrained(tmp_path / "out" / "huggingface").eval()
    assert isinstance(again, transformers.SiglipModel)
    assert torch.equal(again.logit_bias, model.logit_bias)
    with torch.no_grad():
        vectors = again(pixel_values=pictures, **tokens).text_embeds
        mine = F.normalize(run.encoder.eval()(tokens), dim=1)
    torch.testing.assert_close(vectors, mine)
    assert not torch.equal(mine, found.text_embeds)


def test_an_exported_folder_has_our_preprocessing(tmp_path: Path) -> None:
    run = tuned(tiny_clip(tmp_path / "model"), tmp_path)
    export_run(run, tmp_path / "out", onnx=False, layouts=["huggingface"])
    processor = transformers.AutoImageProcessor.from_pretrained(
        tmp_path / "out" / "huggingface", use_fast=True
    )
    data = run.modality.load(run.recipe.data, "test")
    ours = run.views.plain(data.collate([data[0], data[1]]))
    theirs = processor([data[0][0], data[1][0]], return_tensors="pt")["pixel_values"]
    torch.testing.assert_close(ours, theirs, atol=0.05, rtol=0)
