"""Exports of sentences and graphs open elsewhere with the same output."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import recipe_texts
from macl import modalities
from macl.core.errors import UserError
from macl.runs import Run
from macl.runs.export import export_run


def untrained(name: str, folder: Path, *overrides: str) -> Run:
    """A run with an encoder as it is before training."""
    run = Run.create(folder, recipe_texts.load(name, overrides))
    modality = modalities.get(run.recipe.modality)
    torch.manual_seed(0)
    encoder = modality.build_encoder(run.recipe.encoder, modality.load(run.recipe.data, "train"))
    modality.save_encoder(encoder, folder, {})
    return Run.open(folder)


def test_sentence_transformers_opens_text(tmp_path: Path) -> None:
    library = pytest.importorskip("sentence_transformers", reason="needs the text extra")
    small = ("encoder.width=16", "encoder.layers=1", "encoder.vocabulary=200")
    run = untrained("topics", tmp_path / "run", *small)
    sentences = ["Rain.", "It rains, and the run stops reading long before it stops. " * 20]
    (tmp_path / "lines.txt").write_text("\n".join(sentences))
    lines = export_run(run, tmp_path / "out", licence="cc-by-4.0")
    assert lines[0].startswith("model.safetensors: ")
    theirs = library.SentenceTransformer(str(tmp_path / "out"), device="cpu", local_files_only=True)
    got = theirs.encode(sentences, convert_to_tensor=True)
    expected = run.embed(modalities.get("text").open(run.recipe.data, tmp_path / "lines.txt"))
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)
    assert "license: cc-by-4.0" in (tmp_path / "out" / "README.md").read_text()
    with pytest.raises(UserError, match="`layouts=`: text has no further layouts"):
        export_run(run, tmp_path / "more", layouts=["detectron2"])


def test_an_export_that_reads_more_than_the_run_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long texts are where it would show."""
    text = pytest.importorskip("macl.modalities.text.folders", reason="needs the text extra")
    run = untrained("topics", tmp_path / "run", "encoder.width=16", "encoder.vocabulary=200")
    save = text.save_text_encoder
    monkeypatch.setattr(text, "save_text_encoder", lambda encoder, folder, _: save(encoder, folder))
    with pytest.raises(UserError, match="does not give the encoder's own features"):
        export_run(run, tmp_path / "out")


def test_pyg_takes_graphs(tmp_path: Path) -> None:
    pytest.importorskip("torch_geometric", reason="needs the graphs extra")
    pytest.importorskip("networkx", reason="needs the graphs extra")
    from macl.modalities.graphs.encoders import build_graph_encoder

    run = untrained("atlas", tmp_path / "run")
    export_run(run, tmp_path / "out")
    state = load_file(tmp_path / "out" / "encoder.safetensors")
    again = build_graph_encoder(run.recipe.encoder, run.encoder.in_channels)
    again.load_state_dict(state)
    dataset = run.modality.load(run.recipe.data, "train")
    batch = run.views.plain(dataset.collate([dataset[i] for i in range(40, 60)]))
    with torch.inference_mode():
        torch.testing.assert_close(again.eval()(batch), run.encoder(batch), rtol=1e-5, atol=1e-5)
    assert "library_name: pyg" in (tmp_path / "out" / "README.md").read_text()
