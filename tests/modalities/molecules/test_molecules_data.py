"""Files of SMILES, the cache, the report of invalid ones, and the embedded ChEMBL set."""

from __future__ import annotations

import csv
import gzip
import io
import re
import resource
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file

from macl.core.errors import UserError
from macl.modalities.molecules import cache as cache_module
from macl.modalities.molecules.data import (
    MoleculeDataConfig,
    MoleculeDataset,
    chembl,
    load_molecules,
    open_molecules,
)
from macl.modalities.molecules.features import parse_smiles

SMILES = ["CCO", "c1ccccc1O", "C[C@H](N)C(=O)O", "F/C=C/F"]


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def read(path: Path, **settings: Any) -> MoleculeDataset:
    return load_molecules(MoleculeDataConfig(path=path, **settings))


def table(path: Path, smiles: list[str], column: str = "smiles", **others: Any) -> Path:
    frame = pd.DataFrame({"id": range(len(smiles)), column: smiles, **others})
    if path.suffix == ".parquet":
        frame.to_parquet(path)
    else:
        frame.to_csv(path, index=False, sep="\t" if ".tsv" in path.name else ",")
    return path


@pytest.mark.parametrize("name", ["a.csv", "a.csv.gz", "a.tsv", "a.parquet"])
@pytest.mark.parametrize("column", ["smiles", "SMILES", "mol"])
def test_tables(tmp_path: Path, name: str, column: str) -> None:
    dataset = read(table(tmp_path / name, SMILES, column))
    assert dataset.names == SMILES
    assert dataset.labels is None


@pytest.mark.parametrize("name", ["a.smi", "a.smi.gz"])
@pytest.mark.parametrize("header", ["", "smiles name\n"])
def test_smi_files_take_the_first_word(tmp_path: Path, name: str, header: str) -> None:
    text = header + "CCO ethanol of wine\n\nC#N\nCC\tethane\n"
    opened = gzip.open if name.endswith(".gz") else open
    with opened(tmp_path / name, "wt") as file:
        file.write(text)
    assert read(tmp_path / name).names == ["CCO", "C#N", "CC"]


def test_batches_are_int64_and_equal_the_molecules(tmp_path: Path) -> None:
    dataset = read(table(tmp_path / "a.csv", SMILES))
    batch = dataset.collate([dataset[3], dataset[0]])
    expected = parse_smiles([SMILES[3], SMILES[0]])
    for key in ("x", "edge_index", "edge_attr"):
        assert batch[key].dtype == torch.long
        assert torch.equal(batch[key], getattr(expected, key).long())
    assert batch.ptr.tolist() == [0, 4, 7]
    assert batch.batch.tolist() == [0] * 4 + [1] * 3


def test_a_named_column_and_a_label(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CC"] * 3, kind=["b", "a", "b"], core=["CO", "CN", "CF"])
    dataset = read(path, column="core", label="kind")
    assert dataset.names == ["CO", "CN", "CF"]
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [1, 0, 1]


def test_labels_keep_to_their_molecules_when_some_are_invalid(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CO", "bad", "CN"], kind=[0, 1, 2])
    with pytest.warns(UserWarning, match="1 of 3"):
        dataset = read(path, label="kind")
    assert dataset.names == ["CO", "CN"]
    assert dataset.labels is not None
    assert dataset.labels.tolist() == [0, 1]


def test_opened_files_need_no_label(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", SMILES)
    config = MoleculeDataConfig(path=tmp_path / "gone.csv", label="kind")
    dataset = open_molecules(config, path)
    assert dataset.names == SMILES
    assert len(open_molecules(config.model_copy(update={"limit": 1}), path)) == 1
    assert dataset.labels is None


def test_a_limit_chooses_the_same_molecules_every_time(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["C" * n for n in range(1, 60)])
    torch.manual_seed(1)
    first = read(path, limit=20).names
    torch.manual_seed(2)
    assert read(path, limit=20).names == first
    assert len(set(first)) == 20
    assert first == sorted(first, key=len)
    assert first != ["C" * n for n in range(1, 21)]
    assert len(read(path, limit=1000)) == 59


def test_invalid_smiles_are_counted_listed_and_skipped(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CC", "C(", "", "CO", "C(C)(C)(C)(C)C"])
    for _ in range(2):  # parsed, then from the cache
        with pytest.warns(UserWarning, match="3 of 5 SMILES") as caught:
            dataset = read(path)
        assert dataset.names == ["CC", "CO"]
        match = re.search(r"listed in (.*)\.$", str(caught[0].message))
        assert match is not None
        with Path(match[1]).open(newline="") as file:
            rows = list(csv.DictReader(file))
        assert [(row["row"], row["smiles"]) for row in rows] == [
            ("2", "C("),
            ("3", ""),
            ("5", "C(C)(C)(C)(C)C"),
        ]
        assert "valence" in rows[2]["reason"]
        Path(match[1]).unlink()


def test_rows_of_the_report_are_those_of_the_file(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CC"] * 30 + ["bad"] * 30)
    with pytest.warns(UserWarning, match="listed in"):
        read(path, limit=30)
    (report,) = (tmp_path / "cache" / "macl" / "molecules").glob("a.csv.*.invalid.csv")
    rows = pd.read_csv(report)["row"]
    assert rows.between(31, 60).all()


def test_none_valid_is_an_error(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["bad", "worse"])
    with pytest.raises(UserError, match=r"2 of 2 SMILES cannot be read.*right column"):
        read(path)


def test_the_cache_spares_parsing_and_gives_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = table(tmp_path / "a.csv", SMILES)
    first = read(path, cache=tmp_path / "kept")

    def never(smiles: object) -> None:
        raise AssertionError("parsed again")

    monkeypatch.setattr(cache_module, "parse_smiles", never)
    again = read(path, cache=tmp_path / "kept")
    assert again.names == first.names
    for key in ("x", "edge_index", "edge_attr", "ptr", "batch"):
        assert torch.equal(again.graphs[key], first.graphs[key])
    table(path, [*SMILES, "CC"])
    with pytest.raises(AssertionError, match="parsed again"):
        read(path, cache=tmp_path / "kept")


def test_a_new_version_of_the_features_is_parsed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, kept = table(tmp_path / "a.csv", SMILES), tmp_path / "kept"
    read(path, cache=kept)
    monkeypatch.setattr(cache_module, "VERSION", cache_module.VERSION + 1)
    read(path, cache=kept)
    assert len(list(kept.iterdir())) == 2


def test_foreign_arrays_in_the_cache_are_replaced(tmp_path: Path) -> None:
    path, kept = table(tmp_path / "a.csv", SMILES), tmp_path / "kept"
    read(path, cache=kept)
    (stored,) = kept.iterdir()
    arrays = asdict(parse_smiles(SMILES))
    foreign: list[dict[str, torch.Tensor]] = [
        {"x": arrays["x"]},
        arrays | {"ptr": arrays["ptr"][:-1]},
        arrays | {"ptr": arrays["ptr"] + 1},
        arrays | {"rows": arrays["rows"] + 1},
        arrays | {"edge_index": arrays["edge_index"] + 1},
        arrays | {"x": arrays["x"] + 120},
        arrays | {"edge_attr": arrays["edge_attr"].long()},
        arrays | {"edge_attr": arrays["edge_attr"][:-1]},
    ]
    for number, content in enumerate(foreign):
        save_file(content, stored)
        dataset = read(path, cache=kept)
        for key in ("x", "edge_index", "edge_attr", "ptr"):
            assert torch.equal(dataset.graphs[key], arrays[key]), number


def test_a_cache_that_cannot_be_written(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", SMILES)
    with pytest.raises(UserError, match=r"data\.cache"):
        read(path, cache=path)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.csv", b"", "no column is called"),
        ("a.csv", b"smiles\n", "no molecules"),
        ("a.csv", b"structure,x\nCC,1\n", r"data\.column.*structure, x"),
        ("a.csv.gz", b"not gzip", "cannot be read"),
        ("a.csv", b"smiles\n\xff\xfe\n", "is not utf-8 text"),
        ("a.parquet", b"not parquet", "cannot be read"),
        ("a.smi", b"", "no molecules"),
        ("a.sdf", b"", "unknown kind"),
        ("a.gz", b"", "unknown kind"),
    ],
)
def test_bad_files(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name)


def test_bad_settings(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", SMILES, kind=[1, None, 2, 3])
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "none.csv")
    with pytest.raises(UserError, match="is a folder"):
        read(tmp_path)
    with pytest.raises(UserError, match=r"no column 'smile'.*smiles"):
        read(path, column="smile")
    with pytest.raises(UserError, match="no column 'class'"):
        read(path, label="class")
    with pytest.raises(UserError, match="1 molecules have no value in column 'kind'"):
        read(path, label="kind")
    with pytest.raises(UserError, match=r"data\.label.*no data\.path"):
        load_molecules(MoleculeDataConfig(label="kind"))


def test_chembl_is_there_and_balanced(tmp_path: Path) -> None:
    dataset = load_molecules(MoleculeDataConfig())
    assert len(dataset) == 1017
    assert len(set(dataset.names)) == 1017
    assert dataset.labels is not None
    share = dataset.labels.double().mean()
    assert set(dataset.labels.tolist()) == {0, 1}
    assert 0.45 < share < 0.55
    assert not (tmp_path / "cache").exists()
    some = chembl(limit=100)
    assert some.labels is not None
    whole = dict(zip(dataset.names, dataset.labels.tolist(), strict=True))
    assert [whole[name] for name in some.names] == some.labels.tolist()


def test_an_rdkit_without_the_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rdkit.RDConfig.RDContribDir", str(tmp_path))
    with pytest.raises(UserError, match=r"Set data\.path"):
        load_molecules(MoleculeDataConfig())


def test_a_cache_without_room_is_told(tmp_path: Path) -> None:
    """The limit on file sizes stands for a disk that fills up."""
    path = tmp_path / "a.smi"
    path.write_text("\n".join("C" * i for i in range(1, 100)))
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, limits[1]))
    try:
        with pytest.raises(UserError, match=r"cannot be kept.*File too large.*data\.cache"):
            read(path, cache=tmp_path / "kept")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert not list((tmp_path / "kept").iterdir())


def test_neither_commas_at_the_end_nor_an_index_of_pandas_move_the_columns(tmp_path: Path) -> None:
    (tmp_path / "commas.csv").write_text("smiles,y\nCCO,1,\nCCN,0,\n")
    table = pd.DataFrame({"smiles": ["CCO", "CCN"], "y": [1, 0]})
    table.set_index(pd.Index(["first", "second"])).to_parquet(tmp_path / "named.parquet")
    table.set_index("smiles").to_parquet(tmp_path / "indexed.parquet")
    for name in ("commas.csv", "named.parquet", "indexed.parquet"):
        config = MoleculeDataConfig(path=tmp_path / name, label="y", cache=tmp_path / "cache")
        data = load_molecules(config)
        assert list(data.names) == ["CCO", "CCN"], name
        assert data.labels is not None
        assert data.labels.tolist() == [1, 0], name


def test_molecules_know_their_rows_and_the_skipped_ones(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CC", "C(", "CO", ""])
    with pytest.warns(UserWarning, match="2 of 4"):
        dataset = open_molecules(MoleculeDataConfig(), path)
    assert dataset.rows == [1, 3]
    assert [(row.row, row.name) for row in dataset.skipped_rows] == [(2, "C("), (4, "")]
    assert all(row.reason for row in dataset.skipped_rows)


def test_smiles_from_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("CCO ethanol\n\nC#N\n"))
    assert open_molecules(MoleculeDataConfig(), Path("-")).names == ["CCO", "C#N"]


def test_a_jsonl_file(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text('{"smiles": "CC", "y": 1}\n{"smiles": "CO", "y": 10}\n')
    dataset = read(tmp_path / "a.jsonl", label="y")
    assert dataset.names == ["CC", "CO"]


def test_labels_that_are_numbers_are_ordered_as_numbers(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv", ["CC", "CO", "CN"], kind=[10, 9, 100])
    labels = read(path, label="kind").labels
    assert labels is not None
    assert labels.tolist() == [1, 0, 2]
