"""Graphs of the user's own: files of every format, networkx and PyG objects, and broken files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
import torch
from torch_geometric.data import Data

import macl
from macl.core.errors import UserError
from macl.modalities.graphs import dataset as dataset_module
from macl.modalities.graphs import files
from macl.modalities.graphs.data import graphs_of, load_graphs, open_graphs
from macl.modalities.graphs.dataset import GraphDataset
from macl.modalities.graphs.sections import GraphDataConfig


def graph(nodes: int = 4, label: str = "ring", directed: bool = False) -> Any:
    made = nx.cycle_graph(nodes, nx.DiGraph if directed else None)
    made.graph["label"] = label
    for node in made:
        made.nodes[node].update(weight=node / 2, size=node, kind="ab"[node % 2])
    nx.set_edge_attributes(made, 1.5, "length")
    return made


def write(made: Any, path: Path) -> Path:
    match path.suffix:
        case ".graphml":
            nx.write_graphml(made, path)
        case ".gml":
            nx.write_gml(made, path)
        case ".gexf":
            nx.write_gexf(made, path)
        case ".json":
            path.write_text(json.dumps(nx.node_link_data(made, edges="links")))
    return path


def load(path: Path, **keys: Any) -> GraphDataset:
    return load_graphs(GraphDataConfig(path=path, **keys))


@pytest.mark.parametrize("suffix", [".graphml", ".gml", ".gexf", ".json"])
def test_a_file_holds_the_graph_that_networkx_wrote(suffix: str, tmp_path: Path) -> None:
    made = load(write(graph(), tmp_path / f"ring{suffix}"))
    assert len(made) == 1
    assert made.layout.attributes == ("size", "weight")
    assert made.graphs.x.tolist() == [[i, i / 2] for i in range(4)]
    edges = {tuple(edge) for edge in made.graphs.edge_index.T.tolist()}
    assert edges == {(u, v) for a, b in graph().edges for u, v in ((a, b), (b, a))}
    assert made.graphs.edge_attr.tolist() == [[1.5]] * 8


@pytest.mark.parametrize("suffix", [".graphml", ".gml", ".gexf", ".json"])
def test_a_category_becomes_one_hot_features(suffix: str, tmp_path: Path) -> None:
    path = write(graph(), tmp_path / f"ring{suffix}")
    made = load(path, node_label="kind")
    assert made.graphs.x.tolist() == [[1, 0], [0, 1]] * 2
    both = load(path, node_label="kind", attributes=True)
    assert both.num_features == 4


@pytest.mark.parametrize("suffix", [".graphml", ".gml", ".gexf", ".json"])
def test_a_folder_of_files_has_classes_by_folder(suffix: str, tmp_path: Path) -> None:
    for kind, nodes in (("small", 3), ("large", 7)):
        (tmp_path / kind).mkdir()
        for number in range(2):
            write(graph(nodes + number), tmp_path / kind / f"{number}{suffix}")
    made = load(tmp_path)
    assert made.names == [f"{kind}/{i}{suffix}" for kind in ("large", "small") for i in range(2)]
    assert made.labels is not None
    assert [made.classes[i] for i in made.labels] == ["large", "large", "small", "small"]
    assert made.graphs.ptr.diff().tolist() == [7, 8, 3, 4]


def test_several_graphs_in_one_file(tmp_path: Path) -> None:
    documents = [
        nx.node_link_data(graph(n, label), edges="edges") for n, label in ((3, "b"), (5, "a"))
    ]
    (tmp_path / "two.json").write_text(json.dumps(documents))
    made = load(tmp_path / "two.json")
    assert made.names == ["two/0", "two/1"]
    assert made.labels.tolist() == [1, 0]
    text = "\n".join(nx.generate_graphml(graph(3)))
    both = text.replace("</graphml>", text[text.index("<graph ") :])
    (tmp_path / "two.graphml").write_text(both)
    assert load(tmp_path / "two.graphml").graphs.ptr.tolist() == [0, 3, 6]


def test_classes_that_are_numbers_are_in_the_order_of_numbers() -> None:
    made = graphs_of(GraphDataConfig(), [graph(3, label) for label in ("10", "9", "100")])
    assert list(made.classes) == ["9", "10", "100"]
    assert made.labels.tolist() == [1, 0, 2]


def test_a_category_of_too_many_values_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dataset_module, "MOST_LABELS", 1)
    with pytest.raises(UserError, match="2 one-hot columns for 4 rows, too many to hold"):
        graphs_of(GraphDataConfig(node_label="kind"), [graph()])


def test_directed_edges_stay_directed(tmp_path: Path) -> None:
    made = load(write(graph(directed=True), tmp_path / "one.graphml"))
    assert made.graphs.edge_index.T.tolist() == [[0, 1], [1, 2], [2, 3], [3, 0]]


EDGES = """graph,source,target,length,note,graph_label
a,1,2,0.5,x,ring
b,one,two,1.0,y,path
a,2,3,0.5,x,ring
a,3,1,0.5,z,ring
b,two,two,9.0,y,path
"""


def test_a_table_of_edges(tmp_path: Path) -> None:
    (tmp_path / "edges.csv").write_text(EDGES)
    made = load(tmp_path / "edges.csv")
    assert made.names == ["edges/a", "edges/b"]
    assert made.graphs.ptr.tolist() == [0, 3, 5]
    assert made.labels is not None
    assert [made.classes[i] for i in made.labels] == ["ring", "path"]
    assert made.graphs.edge_index.size(1) == 2 * 4  # the loop is left out
    assert made.graphs.edge_attr[-1].tolist() == [1.0]


@pytest.mark.parametrize("rows", [1, 7, 40])
def test_a_table_of_edges_agrees_with_networkx(rows: int, tmp_path: Path) -> None:
    random = np.random.default_rng(rows)
    table = [(int(g), int(u), int(v)) for g, u, v in random.integers(0, 5, (rows, 3))]
    lines = ["graph,source,target", *(f"{g},{u},{v}" for g, u, v in table)]
    (tmp_path / "edges.csv").write_text("\n".join(lines))
    made = load(tmp_path / "edges.csv")
    order = list(dict.fromkeys(g for g, _, _ in table))
    own = []
    for g in order:
        own.append(nx.Graph())
        own[-1].add_nodes_from(sorted({n for h, u, v in table if h == g for n in (u, v)}))
        own[-1].add_edges_from((u, v) for h, u, v in table if h == g)
    expected = graphs_of(GraphDataConfig(), own)
    assert torch.equal(made.graphs.ptr, expected.graphs.ptr)
    assert torch.equal(made.graphs.edge_index, expected.graphs.edge_index)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.graphml", ""), ("a.graphml", "<graphml>"), ("a.graphml", "hi"), ("a.graphml", "<a/>"),
        ("a.gml", ""), ("a.gml", "graph ["), ("a.gml", "graph [ node [ id 0 ] node [ id 0 ] ]"),
        ("a.gexf", ""), ("a.gexf", "<gexf/>"), ("a.gexf", "<gexf xmlns='http://x'></gexf>"),
        ("a.json", ""), ("a.json", "3"), ("a.json", "[]"), ("a.json", "{}"),
        ("a.json", "[" * 10**5),
        ("a.json", '{"nodes": 3}'), ("a.json", '{"nodes": [], "edges": []}'),
        ("a.json", '{"nodes": [{"id": 1}], "edges": [{"source": 1}]}'),
        ("a.json", '{"nodes": [{"id": {}}], "edges": []}'),
        ("a.json", '{"nodes": [1], "links": []}'),
        ("a.csv", ""), ("a.csv", "graph,source\n1,2"), ("a.csv", "graph,source,target\n"),
        ("a.csv", "graph,source,target\n1,,2\n"), ("a.csv", '"graph,source'),
        ("a.csv", "graph,source,target,graph_label\n1,1,2,x\n1,2,3,y\n"),
    ],
)  # fmt: skip
def test_broken_files_are_named(name: str, text: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=name):
        load(tmp_path / name)


@pytest.mark.parametrize("suffix", files.SUFFIXES)
def test_bytes_that_are_no_text_are_refused(suffix: str, tmp_path: Path) -> None:
    path = tmp_path / f"a{suffix}"
    for seed in range(8):
        path.write_bytes(np.random.default_rng(seed).bytes(3**seed))
        with pytest.raises(UserError, match=path.name):
            load(path)


def test_large_files_and_missing_ones_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(graph(), tmp_path / "a.gml")
    monkeypatch.setattr(files, "MAX_BYTES", 10)
    with pytest.raises(UserError, match=r"a\.gml: is larger than"):
        load(path)
    with pytest.raises(UserError, match=r"b\.gml: cannot be read"):
        load(tmp_path / "b.gml")


def test_entities_of_xml_are_not_fetched_or_blown_up(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    entity = f'<!DOCTYPE g [<!ENTITY x SYSTEM "{(tmp_path / "secret").as_uri()}">]>'
    laughs = "".join(f'<!ENTITY a{i} "{f"&a{i - 1};" * 10}">' for i in range(1, 10))
    bomb = f'<!DOCTYPE g [<!ENTITY a0 "{"x" * 50}">{laughs}]>'
    for head, name in ((entity, "x"), (bomb, "a9")):
        text = f'{head}<graphml xmlns="http://graphml.graphdrawing.org/xmlns">&{name};</graphml>'
        (tmp_path / "a.graphml").write_text(text)
        with pytest.raises(UserError, match=r"a\.graphml"):
            load(tmp_path / "a.graphml")


def test_a_tu_folder_with_a_json_file_stays_a_tu_folder(tmp_path: Path) -> None:
    (tmp_path / "info.json").write_text("{}")
    (tmp_path / "T_A.txt").write_text("1, 2\n2, 1\n")
    (tmp_path / "T_graph_indicator.txt").write_text("1\n1\n")
    assert len(load(tmp_path)) == 1


def test_what_is_embedded_has_the_columns_of_the_training_set(tmp_path: Path) -> None:
    trained = write(graph(), tmp_path / "trained.graphml")
    other = graph(3)
    for node in other:
        other.nodes[node]["extra"] = 1
    del other.nodes[1]["kind"]
    other.nodes[1]["kind"] = "a"
    config = GraphDataConfig(path=trained, node_label="kind", attributes=True)
    made = open_graphs(config, write(other, tmp_path / "other.gml"))
    assert made.graphs.x.tolist() == [[1, 0, i, i / 2] for i in range(3)]
    other.nodes[0]["kind"] = "new"
    with pytest.raises(UserError, match="'new' does not occur in the training set"):
        open_graphs(config, write(other, tmp_path / "other.gml"))
    del other.nodes[0]["size"]
    with pytest.raises(UserError, match="no numeric attribute 'size'"):
        open_graphs(GraphDataConfig(path=trained), write(other, tmp_path / "other.gml"))
    with pytest.raises(UserError, match=r"node_label=kin: .*'kind'"):
        load(trained, node_label="kin")


def test_networkx_and_pyg_objects_are_data(tmp_path: Path) -> None:
    given = [graph(3 + i % 4, "ab"[i % 2]) for i in range(12)]
    quick = {"epochs": 1, "batch_size": 4, "monitor_every": 0}
    run = macl.train("atlas", data=given, out=tmp_path / "nx", **quick)
    assert run.embed(given[:5]).values.shape == (5, 96)
    pairs = torch.tensor([[0, 1], [1, 0]])
    data = [Data(x=torch.rand(2, 3), edge_index=pairs, y=torch.tensor([i % 2])) for i in range(8)]
    made = graphs_of(GraphDataConfig(), data)
    assert torch.equal(made.graphs.x, torch.cat([each.x for each in data]))
    assert made.labels.tolist() == [0, 1] * 4
    run = macl.train("atlas", data=data, out=tmp_path / "pyg", **quick)
    assert run.embed(data).values.shape == (8, 96)
    with pytest.raises(UserError, match="same data settings"):
        run.embed(given)
    with pytest.raises(UserError, match="networkx graphs or PyG"):
        macl.train("atlas", data=[data[0], given[0]], out=tmp_path / "mixed", **quick)
    with pytest.raises(UserError, match="not data for images"):
        macl.train("digits", data=given, out=tmp_path / "images")


def test_the_commands_take_own_graphs(tmp_path: Path) -> None:
    for kind in ("ring", "star"):
        (tmp_path / "mine" / kind).mkdir(parents=True)
        for n in range(3, 9):
            made = nx.cycle_graph(n) if kind == "ring" else nx.star_graph(n)
            write(made, tmp_path / "mine" / kind / f"{n}.graphml")
    given = {"evaluation": {"protocols": ["knn"], "folds": 2, "k": 2}}
    run = macl.train("graphcl-mutag", data=tmp_path / "mine", out=tmp_path / "run",
                     epochs=2, batch_size=6, **given)  # fmt: skip
    assert {score.metric for score in run.evaluate()}
    vectors = run.embed(tmp_path / "mine" / "ring" / "5.graphml")
    assert vectors.names == ["5/0"]
