"""MoleculeNet files, the scores of the protocols, and the modality end to end."""

from __future__ import annotations

import gzip
import statistics
from pathlib import Path

import pandas as pd
import pytest
import torch
from torch import Tensor

from macl import modalities
from macl.core.errors import UserError
from macl.modalities.molecules.data import MoleculeDataConfig, load_molecules
from macl.modalities.molecules.encoders import MoleculeGIN
from macl.modalities.molecules.modality import MODALITY
from macl.modalities.molecules.moleculenet import FILES, SetName, load_set
from macl.modalities.molecules.sections import (
    FineTuneConfig,
    MoleculeEncoderConfig,
    MoleculeEvaluationConfig,
)
from macl.modalities.protocols import Dataset, Embed


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def chains() -> pd.DataFrame:
    """Rings of 3 to 22 atoms, each with an amine and an alcohol: 20 scaffold sets of two."""
    rings = ["C1" + "C" * n + "C1" for n in range(1, 21)]
    smiles = [f"{end}{ring}" for ring in rings for end in ("N", "O")]
    return pd.DataFrame({"smiles": smiles, "yes": [1, 0] * 20})


def small_encoder() -> MoleculeGIN:
    torch.manual_seed(0)
    return MoleculeGIN(layers=2, hidden=16)


def embedding(encoder: MoleculeGIN) -> Embed:
    def embed(dataset: Dataset) -> Tensor:
        with torch.inference_mode():
            features: Tensor = encoder.eval()(
                dataset.collate([dataset[i] for i in range(len(dataset))])
            )
            return features

    return embed


@pytest.mark.parametrize("place", ["", "clintox/raw"])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_sets_are_found_where_pyg_puts_them(tmp_path: Path, place: str, ending: str) -> None:
    folder = tmp_path / place
    folder.mkdir(parents=True, exist_ok=True)
    text = "smiles,FDA_APPROVED,CT_TOX\n*C,1,0\nCCO,,1\nbad,1,1\n"
    content = gzip.compress(text.encode()) if ending else text.encode()
    (folder / f"clintox.csv{ending}").write_bytes(content)
    with pytest.warns(UserWarning, match="1 of 3"):
        dataset = load_set("ClinTox", tmp_path)
    assert dataset.names == ["*C", "CCO"]
    assert dataset.targets.dtype == torch.float32
    torch.testing.assert_close(
        dataset.targets, torch.tensor([[1, 0], [torch.nan, 1]]), equal_nan=True
    )


@pytest.mark.parametrize(
    ("name", "text", "tasks"),
    [
        ("BBBP", "num,name,p_np,smiles\n1,x,1,CC\n", 1),
        ("BACE", "mol,CID,Class,Model\nCC,BACE_1,1,Train\n", 1),
        ("HIV", "smiles,activity,HIV_active\nCC,CI,1\n", 1),
        ("MUV", "MUV-1,MUV-2,mol_id,smiles\n1,,CID1,CC\n", 2),
    ],
)
def test_tasks_of_the_sets(tmp_path: Path, name: SetName, text: str, tasks: int) -> None:
    (tmp_path / FILES[name]).write_text(text)
    dataset = load_set(name, tmp_path)
    assert dataset.targets.shape == (1, tasks)
    assert dataset.targets[0, 0] == 1


@pytest.mark.parametrize(("label", "message"), [("2", "2"), ("yes", "'yes'"), ("0.5", "0.5")])
def test_labels_must_be_zero_or_one(tmp_path: Path, label: str, message: str) -> None:
    (tmp_path / "clintox.csv").write_text(f"smiles,a,b\nCC,0,1\nCO,1,{label}\n")
    with pytest.raises(UserError, match=rf"{message}.*row 2, column 'b'"):
        load_set("ClinTox", tmp_path)


def test_missing_files_and_columns(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"neither BBBP\.csv nor BBBP\.csv\.gz"):
        load_set("BBBP", tmp_path)
    (tmp_path / "BBBP.csv").write_text("smiles,label\nCC,1\n")
    with pytest.raises(UserError, match="no column 'p_np'"):
        load_set("BBBP", tmp_path)


def test_finetune_scores_name_both_epochs(tmp_path: Path) -> None:
    chains().rename(columns={"yes": "p_np"}).to_csv(tmp_path / "BBBP.csv", index=False)
    chains().rename(columns={"yes": "Class"}).to_csv(tmp_path / "bace.csv", index=False)
    config = MoleculeEvaluationConfig(
        protocols=("finetune",),
        finetune=FineTuneConfig(path=tmp_path, sets=("BBBP", "BACE"), epochs=2, seeds=2),
    )
    encoder = small_encoder()
    before = {key: value.clone() for key, value in encoder.state_dict().items()}
    scores = MODALITY.evaluate(config, MoleculeDataConfig(), embedding(encoder), encoder, seed=7)
    assert [(score.task, score.metric) for score in scores] == [
        ("BBBP", "roc-auc"),
        ("BBBP", "roc-auc-best-validation"),
        ("BACE", "roc-auc"),
        ("BACE", "roc-auc-best-validation"),
    ]
    for score in scores:
        assert score.protocol == "finetune"
        assert score.split == "test"
        assert score.details["seeds"] == [7, 8]
        assert score.value == pytest.approx(statistics.mean(score.details["values"]))
        assert score.details["std"] == pytest.approx(statistics.pstdev(score.details["values"]))
        sizes = [score.details[f"n_{part}"] for part in ("train", "validation", "test")]
        assert sizes == [32, 4, 4]
    last, best = scores[:2]
    assert (last.details["which"], last.details["epoch"]) == ("last", 2)
    assert best.details["which"] == "best validation"
    assert all(1 <= epoch <= 2 for epoch in best.details["epoch"])
    assert all(torch.equal(value, before[key]) for key, value in encoder.state_dict().items())


def test_finetune_without_files_is_explained(tmp_path: Path) -> None:
    config = MoleculeEvaluationConfig(protocols=("finetune",))
    encoder = small_encoder()
    with pytest.raises(UserError, match=r"evaluation\.finetune\.path.*BBBP\.csv"):
        MODALITY.evaluate(config, MoleculeDataConfig(), embedding(encoder), encoder, seed=0)
    chains().assign(p_np=1).to_csv(tmp_path / "BBBP.csv", index=False)
    tuning = FineTuneConfig(path=tmp_path, sets=("BBBP",), epochs=1)
    config = MoleculeEvaluationConfig(protocols=("finetune",), finetune=tuning)
    with pytest.raises(UserError, match="BBBP: no task has both classes"):
        MODALITY.evaluate(config, MoleculeDataConfig(), embedding(encoder), encoder, seed=0)


def test_frozen_protocols_on_the_embedded_set() -> None:
    encoder = small_encoder()
    config = MoleculeEvaluationConfig(protocols=("logistic", "knn"), folds=3, inner_folds=2)
    scores = MODALITY.evaluate(config, MoleculeDataConfig(), embedding(encoder), encoder, seed=0)
    assert [score.protocol for score in scores] == ["logistic", "knn"]
    for score in scores:
        assert score.metric == "accuracy"
        assert 58 < score.value < 95  # chance is 50


def test_frozen_protocols_need_labels(tmp_path: Path) -> None:
    chains().to_csv(tmp_path / "a.csv", index=False)
    encoder = small_encoder()
    with pytest.raises(UserError, match="no labels"):
        MODALITY.evaluate(
            MoleculeEvaluationConfig(),
            MoleculeDataConfig(path=tmp_path / "a.csv"),
            embedding(encoder),
            encoder,
            seed=0,
        )


def test_the_front_door(tmp_path: Path) -> None:
    assert modalities.get("molecules") is MODALITY
    (tmp_path / "a.smi").write_text("CCO\nCCN\n")
    config = MoleculeEncoderConfig(layers=2, hidden=8)
    train = MODALITY.load(MoleculeDataConfig(limit=50), "train")
    encoder = MODALITY.build_encoder(config, train)
    views = MODALITY.build_views(MODALITY.sections["views"](), encoder)
    opened = MODALITY.open(MoleculeDataConfig(), tmp_path / "a.smi")
    batch = views.plain(opened.collate([opened[0], opened[1]]))
    encoder(views(train.collate([train[i] for i in range(50)]))[0])  # moves the batch statistics
    MODALITY.save_encoder(encoder, tmp_path, {})
    loaded = MODALITY.load_encoder(config, tmp_path)
    assert torch.equal(loaded.eval()(batch), encoder.eval()(batch))
    with pytest.raises(UserError, match="do not fit"):
        MODALITY.load_encoder(MoleculeEncoderConfig(), tmp_path)


def test_the_monitor_looks_at_labels() -> None:
    encoder = small_encoder()
    look = MODALITY.monitor(MoleculeEvaluationConfig(), load_molecules(MoleculeDataConfig()))
    assert look is not None
    score = look(embedding(encoder))
    assert score is not None
    assert score.value > 50
