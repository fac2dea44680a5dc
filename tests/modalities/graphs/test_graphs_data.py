"""Reading TU sets (against PyG's reader), their accidents, features, and the embedded atlas."""

from __future__ import annotations

import shutil
import zipfile
from pathlib import Path

import networkx as nx
import pytest
import torch
from torch.utils.data import DataLoader
from torch_geometric.data import Batch
from torch_geometric.datasets import TUDataset

import recipe_texts
from macl.core.errors import UserError
from macl.evaluation.score import score_encoder, score_run
from macl.modalities.graphs.data import GraphDataConfig, load_graphs, open_graphs
from macl.modalities.graphs.modality import MODALITY
from macl.modalities.protocols import Dataset
from macl.runs import Run
from macl.runs.export import export_run

# Graphs of three nodes, one node and three nodes; the first edge is listed twice, one is a loop.
TOY = {
    "A": "1, 2\n2, 1\n1, 2\n2, 3\n3, 2\n4, 4\n5, 6\n6, 5\n",
    "graph_indicator": "1\n1\n1\n2\n3\n3\n3\n",
    "graph_labels": "1\n-1\n1\n",
    "node_labels": "3\n5\n3\n4\n4\n5\n3\n",
    "edge_labels": "0\n0\n0\n1\n1\n0\n0\n1\n",
    "node_attributes": "0.5\n1.5\n2.5\n3.5\n4.5\n5.5\n6.5\n",
}


def write(folder: Path, name: str = "TOY", **changes: str | None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for part, text in {**TOY, **changes}.items():
        if text is not None:
            (folder / f"{name}_{part}.txt").write_text(text)
    return folder


def pack(archive: Path, folder: Path, inside: str = "") -> Path:
    with zipfile.ZipFile(archive, "w") as packed:
        for file in folder.iterdir():
            packed.write(file, f"{inside}{file.name}")
    return archive


def config(path: Path, **values: object) -> GraphDataConfig:
    return GraphDataConfig.model_validate({"path": path, **values})


def test_equal_to_pyg(tmp_path: Path) -> None:
    write(tmp_path / "pyg" / "TOY" / "raw")
    reference = TUDataset(str(tmp_path / "pyg"), "TOY")
    expected = Batch.from_data_list([reference[i] for i in range(len(reference))])
    dataset = load_graphs(config(write(tmp_path / "TOY")))
    for key in ("x", "edge_index", "edge_attr", "batch", "ptr"):
        assert torch.equal(dataset.graphs[key], expected[key]), key
    assert dataset.labels is not None
    assert dataset.labels.tolist() == reference.y.tolist() == [1, 0, 1]
    assert dataset.num_features == 3  # labels 3, 4, 5; the attribute is left out
    assert list(dataset.names) == ["TOY/0", "TOY/1", "TOY/2"]


def test_graphs_without_edges_count_to_the_last(tmp_path: Path) -> None:
    """PyG's reader loses them at the end of a set."""
    folder = write(tmp_path, A="1, 2\n2, 1\n", edge_labels=None)
    dataset = load_graphs(config(folder))
    assert len(dataset) == 3
    assert dataset.collate([2, 0]).ptr.tolist() == [0, 3, 6]


def test_every_layout_reads_the_same_and_nothing_is_written(tmp_path: Path) -> None:
    plain = write(tmp_path / "plain")
    write(tmp_path / "nested" / "TOY")
    write(tmp_path / "raw" / "TOY" / "raw")
    (tmp_path / "zipped").mkdir()
    pack(tmp_path / "zipped" / "TOY.zip", plain, "TOY/")
    flat = pack(tmp_path / "flat.zip", plain)
    paths = [plain, tmp_path / "nested", tmp_path / "raw", tmp_path / "zipped", flat]
    before = sorted(tmp_path.rglob("*"))
    for path in paths:
        for name in (None, "TOY"):
            dataset = load_graphs(config(path, name=name))
            assert dataset.graphs.edge_index.tolist() == [[0, 1, 1, 2, 4, 5], [1, 0, 2, 1, 5, 4]]
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize(
    ("changes", "complaint"),
    [
        ({"graph_indicator": None}, "TOY_graph_indicator.txt: is missing"),
        ({"graph_indicator": "1\n1\n1\n2\n"}, "TOY_A.txt: names node 6, but .* has 4 nodes"),
        ({"graph_indicator": "1\n1\n2\n2\n2\n1\n3\n"}, "TOY_graph_indicator.txt: graphs must be"),
        ({"graph_indicator": "1\n1\n1\n2\n2\n2\n4\n"}, "without gaps"),
        ({"graph_indicator": ""}, "TOY_graph_indicator.txt: not a table"),
        ({"A": "1, 2\n2, 1\n2,"}, "TOY_A.txt: not a table of integers, or cut short"),
        ({"A": "1, 2\n2, x\n"}, "TOY_A.txt: not a table of integers"),
        ({"A": "1\n2\n"}, "TOY_A.txt: has 1 columns where 2"),
        ({"A": "0, 1\n1, 0\n", "edge_labels": None}, "TOY_A.txt: names node 0"),
        ({"A": "1, 2\n3, 4\n", "edge_labels": None}, "line 2 joins nodes of different graphs"),
        ({"node_labels": "3\n5\n"}, "TOY_node_labels.txt: has 2 lines for 7 nodes"),
        ({"edge_labels": "3\n5\n"}, "TOY_edge_labels.txt: has 2 lines for 8 edges"),
        (
            {"node_labels": "0\n" * 6 + "2000000000000\n"},
            "TOY_node_labels.txt: labels from 0 to 2000000000000",
        ),
        (
            {"edge_labels": f"{-(2**63)}\n" * 7 + f"{2**63 - 1}\n"},
            "TOY_edge_labels.txt: labels from -9223372036854775808 to",
        ),
        ({"graph_labels": "1\n"}, "TOY_graph_labels.txt: has 1 lines for 3 graphs"),
        ({"graph_labels": "1, 2\n1, 1\n1, 2\n"}, "TOY_graph_labels.txt: one class per graph"),
    ],
)
def test_inconsistent_files_are_named(
    tmp_path: Path, changes: dict[str, str | None], complaint: str
) -> None:
    with pytest.raises(UserError, match=complaint):
        load_graphs(config(write(tmp_path, **changes)))


def test_damaged_archives_are_named(tmp_path: Path) -> None:
    archive = pack(tmp_path / "TOY.zip", write(tmp_path / "plain"))
    content = archive.read_bytes()
    archive.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=r"TOY\.zip: the zip archive cannot be read"):
        load_graphs(config(archive))
    damaged = content.replace(b"1, 2\n2, 1", b"1, 2\n2, 2")
    archive.write_bytes(damaged)
    with pytest.raises(UserError, match=r"TOY\.zip: the zip archive cannot be read"):
        load_graphs(config(archive))


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="absent: no such file"):
        load_graphs(config(tmp_path / "absent"))
    with pytest.raises(UserError, match="holds no graphs in the TU layout"):
        load_graphs(config(tmp_path))
    (tmp_path / "lines.txt").touch()
    with pytest.raises(UserError, match=r"lines\.txt: graphs come as a folder"):
        load_graphs(config(tmp_path / "lines.txt"))
    write(tmp_path / "TOY")
    with pytest.raises(UserError, match=r"holds no set 'TOI'\. Did you mean 'TOY'"):
        load_graphs(config(tmp_path, name="TOI"))
    write(tmp_path / "OTHER", "OTHER")
    with pytest.raises(UserError, match=r"several sets; set data\.name to one of OTHER, TOY"):
        load_graphs(config(tmp_path))
    assert len(load_graphs(config(tmp_path, name="OTHER"))) == 3


def test_nothing_is_downloaded_unasked(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"data\.path.* or data\.download=true"):
        load_graphs(GraphDataConfig(name="MUTAG", cache=tmp_path))
    with pytest.raises(UserError, match="not a name of the TU collection"):
        load_graphs(GraphDataConfig(name="../MUTAG", cache=tmp_path, download=True))


def test_download_goes_to_the_cache_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    archive = pack(tmp_path / "TOY.zip", write(tmp_path / "plain"), "TOY/")
    asked = GraphDataConfig(name="TOY", cache=tmp_path / "cache" / "tu", download=True)
    monkeypatch.setattr(TUDataset, "url", tmp_path.as_uri())
    assert len(load_graphs(asked)) == 3
    archive.unlink()
    assert len(load_graphs(asked)) == 3
    assert len(load_graphs(asked.model_copy(update={"download": False}))) == 3
    shutil.rmtree(tmp_path / "cache")
    with pytest.raises(UserError, match=r"TOY\.zip: could not be downloaded"):
        load_graphs(asked)


def test_features_of_unlabeled_nodes(tmp_path: Path) -> None:
    folder = write(tmp_path, node_labels=None, node_attributes=None)
    assert load_graphs(config(folder)).graphs.x.tolist() == [[1.0]] * 7
    degrees = load_graphs(config(folder, unlabeled="degree", max_degree=1)).graphs.x
    assert degrees.tolist() == torch.eye(2)[[1, 1, 1, 0, 1, 1, 0]].tolist()
    wide = load_graphs(config(folder, unlabeled="degree")).graphs.x
    assert wide.argmax(1).tolist() == [1, 2, 1, 0, 1, 1, 0]


def test_opened_sets_use_the_columns_of_the_training_set(tmp_path: Path) -> None:
    trained = config(write(tmp_path / "train"))
    labels = "4\n5\n4\n4\n4\n5\n4\n"
    opened = open_graphs(trained, write(tmp_path / "new", "NEW", node_labels=labels))
    assert opened.graphs.x.argmax(1).tolist() == [1, 2, 1, 1, 1, 2, 1]
    assert opened.num_features == 3
    unknown = write(tmp_path / "bad", "BAD", node_labels=labels.replace("5", "6"))
    with pytest.raises(UserError, match=r"labels 4 to 6 go beyond .* 3 to 5"):
        open_graphs(trained, unknown)
    columns = write(tmp_path / "two", "TWO", node_labels="3, 3\n" * 7)
    with pytest.raises(UserError, match="has 2 columns; training had 1"):
        open_graphs(trained, columns)
    shutil.rmtree(tmp_path / "train")
    with pytest.raises(UserError, match="read from the training set"):
        open_graphs(trained, tmp_path / "new")
    # Where training had no labels, those of the opened set mean nothing.
    assert open_graphs(GraphDataConfig(), tmp_path / "new").num_features == 1


def test_atlas_classes_are_balanced_and_true() -> None:
    dataset = load_graphs(GraphDataConfig())
    assert isinstance(dataset, Dataset)
    assert len(dataset) == 1252
    assert dataset.labels is not None
    assert dataset.labels.bincount().tolist() == [482, 380, 390]
    row, col = dataset.graphs.edge_index
    network = nx.Graph(zip(row.tolist(), col.tolist(), strict=True))
    triangles = torch.zeros(1252, dtype=torch.long)
    for node, count in nx.triangles(network).items():
        triangles[dataset.graphs.batch[node]] += count
    assert (dataset.labels == (triangles // 3 > 2).long() + (triangles // 3 > 5)).all()
    assert network.number_of_edges() * 2 == len(row)


def test_atlas_takes_no_path(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="the atlas is embedded"):
        load_graphs(config(tmp_path, name="atlas"))


def test_batches_come_out_of_a_loader_in_order() -> None:
    dataset = MODALITY.load(GraphDataConfig(), "train")
    loader = DataLoader(dataset, batch_size=500, collate_fn=dataset.collate)  # type: ignore[arg-type, var-annotated]
    parts = list(loader)
    assert [part.num_graphs for part in parts] == [500, 500, 252]
    whole = load_graphs(GraphDataConfig()).graphs
    assert torch.equal(torch.cat([part.x for part in parts]), whole.x)
    assert sum(part.edge_index.size(1) for part in parts) == whole.edge_index.size(1)
    assert [dataset[i] for i in (0, -1)] == [0, 1251]
    with pytest.raises(IndexError):
        dataset[1252]


ATTRIBUTES = "".join(f"{i}.5, -{i}e-1\n" for i in range(7))


def test_attributes_are_features_where_there_are_no_labels_or_when_asked(tmp_path: Path) -> None:
    values = torch.tensor([[i + 0.5, -i / 10] for i in range(7)])
    alone = write(tmp_path / "alone", node_labels=None, node_attributes=ATTRIBUTES)
    both = write(tmp_path / "both", node_attributes=ATTRIBUTES)
    torch.testing.assert_close(load_graphs(GraphDataConfig(path=alone)).graphs.x, values)
    ignored = load_graphs(GraphDataConfig(path=alone, attributes=False)).graphs.x
    assert torch.equal(ignored, torch.ones(7, 1))
    labels = load_graphs(GraphDataConfig(path=both)).graphs.x
    assert labels.shape == (7, 3)
    joined = load_graphs(GraphDataConfig(path=both, attributes=True)).graphs.x
    torch.testing.assert_close(joined, torch.cat([labels, values], dim=1))


@pytest.mark.parametrize(
    ("attributes", "words"),
    [
        (None, "data.attributes=true: TOY has no TOY_node_attributes.txt"),
        ("1.0\n" * 6, "TOY_node_attributes.txt: has 6 lines for 7 nodes"),
        ("1.0\n" * 6 + "one\n", "TOY_node_attributes.txt: not a table of numbers"),
        ("1.0\n" * 6 + "nan\n", "TOY_node_attributes.txt: has numbers that are missing"),
    ],
)
def test_attributes_that_cannot_be_used(tmp_path: Path, attributes: str | None, words: str) -> None:
    folder = write(tmp_path, node_attributes=attributes)
    with pytest.raises(UserError, match=words):
        load_graphs(GraphDataConfig(path=folder, attributes=True))


def test_a_limit_takes_whole_graphs_with_their_labels() -> None:
    whole, some = load_graphs(GraphDataConfig()), load_graphs(GraphDataConfig(limit=20))
    assert len(some) == 20
    places = {name: i for i, name in enumerate(whole.names)}
    chosen = [places[name] for name in some.names]
    assert chosen == sorted(chosen)
    assert torch.equal(some.labels, whole.labels[chosen])
    batch, expected = some.collate([0, 19]), whole.collate([chosen[0], chosen[19]])
    for key in ("x", "edge_index", "ptr"):
        assert torch.equal(batch[key], expected[key])
    assert load_graphs(GraphDataConfig(limit=20)).names == some.names


def test_an_exported_graph_encoder_is_evaluated_as_its_run_is(tmp_path: Path) -> None:
    recipe = recipe_texts.load(
        "atlas", ["encoder.hidden=4", "data.limit=150", "evaluation.protocols=[knn]"]
    )
    run = Run.create(tmp_path / "run", recipe)
    torch.manual_seed(0)
    encoder = MODALITY.build_encoder(recipe.encoder, load_graphs(recipe.data))
    MODALITY.save_encoder(encoder, run.folder, {})
    (expected,) = score_run(run)
    export_run(run, tmp_path / "out")
    settings = {"data.limit": 150, "evaluation.protocols": ["knn"]}
    for name in (tmp_path / "out", tmp_path / "out" / "encoder.safetensors"):
        (score,) = score_encoder(str(name), settings)
        assert score.value == pytest.approx(expected.value)
