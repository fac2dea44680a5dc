"""Every augmentation keeps its promises, and equals a slow loop over graphs given its choices."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable
from itertools import combinations, pairwise

import networkx as nx
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Batch, Data

from macl.modalities.graphs import augmentations
from macl.modalities.graphs.augmentations import (
    LARGE,
    arrival_times,
    keep_nodes,
    subgraph_nodes,
    token_rows,
    undropped_nodes,
)

RATIOS = st.sampled_from([0.0, 0.1, 0.25, 0.5, 0.9, 1.0])


def symmetric(pairs: list[tuple[int, int]]) -> Tensor:
    both = sorted(pairs + [(v, u) for u, v in pairs])
    return torch.tensor(both, dtype=torch.long).view(-1, 2).T


@st.composite
def batches(draw: st.DrawFn) -> Batch:
    """Up to five undirected graphs; x numbers the nodes and edge_attr the edges, to trace them."""
    graphs, nodes, edges = [], 0, 0
    for _ in range(draw(st.integers(1, 5))):
        size = draw(st.integers(1, 10))
        every = list(combinations(range(size), 2))
        pairs = draw(st.lists(st.sampled_from(every), unique=True)) if every else []
        edge_index = symmetric(pairs)
        number = {pair: edges + i for i, pair in enumerate(pairs)}
        edge_attr = [number[min(u, v), max(u, v)] for u, v in edge_index.T.tolist()]
        x = torch.arange(nodes, nodes + size, dtype=torch.float).view(-1, 1)
        graphs.append(
            Data(x=x, edge_index=edge_index, edge_attr=torch.tensor(edge_attr, dtype=torch.long))
        )
        nodes, edges = nodes + size, edges + len(pairs)
    return Batch.from_data_list(graphs)


def chosen(batch: Batch, graphs: Tensor | None) -> Tensor:
    """The graphs to change; all when None."""
    return torch.ones(batch.num_graphs, dtype=torch.bool) if graphs is None else graphs


def drop_nodes(batch: Batch, ratio: float | Tensor, graphs: Tensor | None = None) -> Batch:
    return keep_nodes(batch, undropped_nodes(batch, ratio, chosen(batch, graphs)))


def perturb_edges(
    batch: Batch, ratio: float | Tensor, graphs: Tensor | None = None, *, add: bool = False
) -> Batch:
    return augmentations.perturb_edges(batch, ratio, chosen(batch, graphs), add=add)


def mask_attributes(
    batch: Batch,
    ratio: float | Tensor,
    graphs: Tensor | None = None,
    fill: augmentations.Fill = augmentations.gaussian_rows,
) -> Batch:
    return augmentations.mask_attributes(batch, ratio, chosen(batch, graphs), fill=fill)


def subgraph(
    batch: Batch, ratio: float | Tensor, graphs: Tensor | None = None, *, one_hop: bool = False
) -> Batch:
    kept = subgraph_nodes(batch, ratio, chosen(batch, graphs), one_hop=one_hop)
    return keep_nodes(batch, kept)


def node_ids(batch: Batch) -> list[list[int]]:
    """Original node numbers, graph by graph, read through `ptr`."""
    return [
        batch.x[start:end, 0].long().tolist()
        for start, end in zip(batch.ptr[:-1].tolist(), batch.ptr[1:].tolist(), strict=True)
    ]


def edge_ids(batch: Batch) -> list[tuple[int, int, int]]:
    """Edges as (original source, original target, edge number)."""
    row, col = batch.x[:, 0].long()[batch.edge_index]
    return list(zip(row.tolist(), col.tolist(), batch.edge_attr.tolist(), strict=True))


def sizes_of(batch: Batch) -> list[int]:
    return batch.ptr.diff().tolist()


def check(batch: Batch, graphs: int) -> None:
    """No empty graph, `ptr` and `batch` agree, edges lie inside their graph and in order."""
    assert batch.num_graphs == graphs
    assert min(sizes_of(batch)) >= 1
    assert torch.equal(batch.batch, torch.repeat_interleave(batch.ptr.diff()))
    assert len(batch.batch) == batch.num_nodes == len(batch.x)
    assert len(batch.edge_attr) == batch.edge_index.size(1)
    owner = batch.batch[batch.edge_index]
    assert torch.equal(owner[0], owner[1])
    assert torch.equal(owner[0], owner[0].sort().values)


def undirected(edges: list[tuple[int, int, int]]) -> bool:
    return set(edges) == {(v, u, number) for u, v, number in edges}


def check_induced(before: Batch, after: Batch) -> None:
    kept = {node for graph in node_ids(after) for node in graph}
    assert edge_ids(after) == [e for e in edge_ids(before) if e[0] in kept and e[1] in kept]


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_drop_nodes_keeps_the_promised_number_and_the_edges_between_them(
    batch: Batch, ratio: float
) -> None:
    after = drop_nodes(batch, ratio)
    check(after, batch.num_graphs)
    for before, kept in zip(node_ids(batch), node_ids(after), strict=True):
        size = len(before)
        assert len(kept) == size - min(math.floor(ratio * size + 1e-9), size - 1)
        assert set(kept) <= set(before)
        assert kept == sorted(kept)
    check_induced(batch, after)


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_subgraph_fills_its_budget_from_one_component(batch: Batch, ratio: float) -> None:
    after = subgraph(batch, ratio)
    check(after, batch.num_graphs)
    check_induced(batch, after)
    network = nx.Graph((u, v) for u, v, _ in edge_ids(batch))
    network.add_nodes_from(range(batch.num_nodes))
    for before, kept in zip(node_ids(batch), node_ids(after), strict=True):
        component = nx.node_connected_component(network, kept[0])
        budget = math.floor(ratio * len(before) + 1e-9) + 1
        assert len(kept) == min(budget, len(component))
        assert nx.is_connected(network.subgraph(kept))


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_one_hop_subgraph_is_a_root_and_neighbors_of_it(batch: Batch, ratio: float) -> None:
    after = subgraph(batch, ratio, one_hop=True)
    check(after, batch.num_graphs)
    network = nx.Graph((u, v) for u, v, _ in edge_ids(batch))
    network.add_nodes_from(range(batch.num_nodes))
    for before, kept in zip(node_ids(batch), node_ids(after), strict=True):
        budget = math.floor(ratio * len(before) + 1e-9) + 1
        assert any(
            set(kept) <= {root, *network[root]} and len(kept) == min(budget, 1 + len(network[root]))
            for root in kept
        )


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_edges_are_removed_in_pairs(batch: Batch, ratio: float) -> None:
    after = perturb_edges(batch, ratio)
    check(after, batch.num_graphs)
    assert torch.equal(after.x, batch.x)
    before, left = edge_ids(batch), edge_ids(after)
    assert [e for e in before if e in set(left)] == left
    assert undirected(left)
    for graph in node_ids(batch):
        count = sum(e[0] in graph for e in before) // 2
        expected = count - math.floor(ratio * count + 1e-9)
        assert sum(e[0] in graph for e in left) == 2 * expected


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_added_edges_take_the_place_of_removed_ones(batch: Batch, ratio: float) -> None:
    after = perturb_edges(batch, ratio, add=True)
    check(after, batch.num_graphs)
    before, left = edge_ids(batch), edge_ids(after)
    assert undirected(left)
    pairs = [(u, v) for u, v, _ in left]
    assert len(pairs) == len(set(pairs))
    assert all(u != v for u, v in pairs)
    old = {(u, v): number for u, v, number in before}
    for graph in node_ids(batch):
        count = sum(e[0] in graph for e in before) // 2
        removed = math.floor(ratio * count + 1e-9)
        untouched = [e for e in left if e[0] in graph and old.get(e[:2]) == e[2]]
        assert len(untouched) == 2 * (count - removed)
        assert sum(e[0] in graph for e in left) <= 2 * count
    # A new edge is none that the graph had, and carries the number of one that left.
    for u, v, number in left:
        if (u, v) in old:
            assert old[u, v] == number


def test_added_edges_do_appear_where_there_is_room() -> None:
    cycle = [(i, (i + 1) % 30) for i in range(30)]
    edge_index = symmetric([(min(p), max(p)) for p in cycle])
    batch = Batch.from_data_list([Data(x=torch.ones(30, 1), edge_index=edge_index)] * 20)
    torch.manual_seed(0)
    after = perturb_edges(batch, 0.5, add=True)
    assert after.edge_attr is None
    # 15 of 435 pairs per graph are new; losing more than a few of 300 to collisions is no accident.
    assert 0.85 * 1200 < after.edge_index.size(1) <= 1200


def test_directed_edges_stay_directed() -> None:
    edge_index = torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]])
    batch = Batch.from_data_list([Data(x=torch.ones(4, 1), edge_index=edge_index)])
    assert perturb_edges(batch, 0.5).edge_index.size(1) == 2
    torch.manual_seed(0)
    assert perturb_edges(batch, 0.5, add=True).edge_index.size(1) <= 4


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS)
def test_mask_changes_the_promised_number_of_rows(batch: Batch, ratio: float) -> None:
    original = batch.x.clone()
    after = mask_attributes(batch, ratio, fill=lambda rows: rows - 1000)
    check(after, batch.num_graphs)
    assert edge_ids(batch) == [(u % 1000, v % 1000, n) for u, v, n in edge_ids(after)]
    assert torch.equal(batch.x, original)
    for before, now in zip(node_ids(batch), node_ids(after), strict=True):
        assert sum(x < 0 for x in now) == math.floor(ratio * len(before) + 1e-9)
        assert [x % 1000 for x in now] == before


def test_gaussian_mask_has_the_published_moments() -> None:
    torch.manual_seed(0)
    edge_index = torch.empty(2, 0, dtype=torch.long)
    batch = Batch.from_data_list([Data(x=torch.full((400, 100), 9.0), edge_index=edge_index)])
    masked = mask_attributes(batch, 0.5).x
    rows = masked[(masked != 9).any(dim=1)]
    assert rows.shape == (200, 100)
    assert rows.mean() == pytest.approx(0.5, abs=0.02)
    assert rows.std() == pytest.approx(0.5, abs=0.02)


def test_integer_features_take_a_token() -> None:
    x = torch.arange(20).view(10, 2)
    batch = Batch.from_data_list([Data(x=x, edge_index=torch.empty(2, 0, dtype=torch.long))])
    after = mask_attributes(batch, 0.3, fill=token_rows(118, 5)).x
    assert after.dtype == torch.long
    assert (after == torch.tensor([118, 5])).all(dim=1).sum() == 3


AUGMENTATIONS = {
    "drop": drop_nodes,
    "subgraph": subgraph,
    "edge": perturb_edges,
    "rewire": lambda *arguments: perturb_edges(*arguments, add=True),
    "mask": lambda *arguments: mask_attributes(*arguments, fill=lambda rows: rows - 1000),
}


@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
@settings(deadline=None, max_examples=15)
@given(batches(), st.data())
def test_only_the_chosen_graphs_change_and_each_by_its_own_ratio(
    augment: Callable[..., Batch], batch: Batch, data: st.DataObject
) -> None:
    number = batch.num_graphs
    chosen = data.draw(st.lists(st.booleans(), min_size=number, max_size=number))
    ratios = torch.tensor(data.draw(st.lists(RATIOS, min_size=number, max_size=number)))
    after = augment(batch, ratios.double(), torch.tensor(chosen))
    check(after, number)
    before_nodes, after_nodes = node_ids(batch), node_ids(after)
    for graph, (picked, nodes) in enumerate(zip(chosen, before_nodes, strict=True)):
        if not picked:
            assert after_nodes[graph] == nodes
            assert [e for e in edge_ids(after) if e[0] in nodes] == [
                e for e in edge_ids(batch) if e[0] in nodes
            ]
        elif augment is drop_nodes:
            dropped = min(math.floor(ratios[graph].item() * len(nodes) + 1e-9), len(nodes) - 1)
            assert len(after_nodes[graph]) == len(nodes) - dropped


@pytest.mark.parametrize("augment", AUGMENTATIONS.values(), ids=AUGMENTATIONS)
def test_the_seed_decides(augment: Callable[..., Batch]) -> None:
    graph = nx.gnm_random_graph(30, 60, seed=1)
    edge_index = symmetric([(min(e), max(e)) for e in graph.edges])
    batch = Batch.from_data_list([Data(x=torch.ones(30, 3), edge_index=edge_index)] * 8)

    def run(seed: int) -> tuple[list[list[float]], list[list[int]]]:
        torch.manual_seed(seed)
        after = augment(batch, 0.4)
        return after.x.tolist(), after.edge_index.tolist()

    assert run(7) == run(7)
    assert run(7) != run(8)


def large_batch() -> Batch:
    """Graphs like those of REDDIT-BINARY, a path with leaves on some of its nodes; a path alone."""
    graphs = []
    for size, path, hubs in ((400, 40, 12), (900, 90, 40), (700, 70, 5), (150, 150, 0)):
        pairs = list(pairwise(range(path))) + [(node % hubs, node) for node in range(path, size)]
        edge_index = symmetric(pairs)
        graphs.append(Data(edge_index=edge_index, edge_attr=torch.zeros(edge_index.size(1))))
    batch = Batch.from_data_list(graphs)
    batch.x = torch.arange(batch.num_nodes, dtype=torch.float).view(-1, 1)
    return batch


def dropped_by_a_loop(batch: Batch, ratio: float, seed: int) -> list[list[int]]:
    torch.manual_seed(seed)
    keys = torch.rand(batch.num_nodes).tolist()
    left = []
    for nodes in node_ids(batch):
        count = min(math.floor(ratio * len(nodes) + 1e-9), len(nodes) - 1)
        dropped = set(sorted(nodes, key=lambda node: keys[node])[:count])
        left.append([node for node in nodes if node not in dropped])
    return left


def grown_by_dijkstra(batch: Batch, ratio: float, seed: int) -> list[list[int]]:
    torch.manual_seed(seed)
    delay = torch.rand(batch.num_nodes).neg_().log1p_().neg_()
    draws = torch.rand(batch.num_graphs, dtype=torch.double).tolist()
    neighbors: dict[int, list[int]] = {node: [] for node in range(batch.num_nodes)}
    for u, v, _ in edge_ids(batch):
        neighbors[u].append(v)
    grown = []
    for nodes, draw in zip(node_ids(batch), draws, strict=True):
        queue, kept = [(torch.zeros(()), nodes[int(draw * len(nodes))])], set()
        while queue and len(kept) < math.floor(ratio * len(nodes) + 1e-9) + 1:
            time, node = heapq.heappop(queue)
            if node not in kept:
                kept.add(node)
                for other in neighbors[node]:
                    heapq.heappush(queue, (time + delay[other], other))
        grown.append(sorted(kept))
    return grown


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS, st.integers(0, 1000))
def test_drop_nodes_equals_a_loop_over_graphs(batch: Batch, ratio: float, seed: int) -> None:
    expected = dropped_by_a_loop(batch, ratio, seed)
    torch.manual_seed(seed)
    assert node_ids(drop_nodes(batch, ratio)) == expected


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS, st.integers(0, 1000))
def test_subgraph_equals_dijkstra_on_each_graph(batch: Batch, ratio: float, seed: int) -> None:
    expected = grown_by_dijkstra(batch, ratio, seed)
    torch.manual_seed(seed)
    assert node_ids(subgraph(batch, ratio)) == expected


@pytest.mark.parametrize("ratio", [0.1, 0.2, 0.9])
@pytest.mark.parametrize("seed", range(3))
def test_large_graphs_equal_a_loop_over_graphs(ratio: float, seed: int) -> None:
    """Large ones are counted before they are sorted, and leave the growth when they are done."""
    batch = large_batch()
    assert batch.num_nodes > LARGE * batch.num_graphs
    expected = dropped_by_a_loop(batch, ratio, seed)
    torch.manual_seed(seed)
    assert node_ids(drop_nodes(batch, ratio)) == expected
    expected = grown_by_dijkstra(batch, ratio, seed)
    torch.manual_seed(seed)
    assert node_ids(subgraph(batch, ratio)) == expected


@settings(deadline=None, max_examples=40)
@given(batches(), RATIOS, st.integers(0, 1000))
def test_edge_removal_equals_a_loop_over_graphs(batch: Batch, ratio: float, seed: int) -> None:
    pairs = sorted({(min(u, v), max(u, v)) for u, v, _ in edge_ids(batch)})
    torch.manual_seed(seed)
    key = dict(zip(pairs, torch.rand(len(pairs)).tolist(), strict=True))
    removed = set()
    for nodes in node_ids(batch):
        own = sorted((pair for pair in pairs if pair[0] in nodes), key=key.__getitem__)
        removed.update(own[: math.floor(ratio * len(own) + 1e-9)])
    torch.manual_seed(seed)
    assert edge_ids(perturb_edges(batch, ratio)) == [
        e for e in edge_ids(batch) if (min(e[:2]), max(e[:2])) not in removed
    ]


def test_subgraph_growth_is_uniform_over_the_frontier() -> None:
    network = nx.Graph([(0, 1), (0, 2), (1, 3), (2, 3), (3, 4), (0, 5)])
    exact: dict[frozenset[int], float] = {}

    def grow(chosen: frozenset[int], probability: float) -> None:
        if len(chosen) == 4:
            exact[chosen] = exact.get(chosen, 0) + probability
            return
        frontier = {v for u in chosen for v in network[u]} - chosen
        for node in frontier:
            grow(chosen | {node}, probability / len(frontier))

    for root in network:
        grow(frozenset([root]), 1 / 6)

    copies = 20_000
    edge_index = symmetric([(min(e), max(e)) for e in network.edges])
    graph = Data(x=torch.arange(6.0).view(-1, 1), edge_index=edge_index)
    torch.manual_seed(0)
    kept = subgraph(Batch.from_data_list([graph] * copies), 0.5)
    assert set(sizes_of(kept)) == {4}
    found: dict[frozenset[int], int] = {}
    for nodes in kept.x.view(-1, 4).long().tolist():
        found[frozenset(nodes)] = found.get(frozenset(nodes), 0) + 1
    assert set(found) <= set(exact)
    for nodes, probability in exact.items():
        error = math.sqrt(probability * (1 - probability) / copies)
        assert abs(found.get(nodes, 0) / copies - probability) < 4.5 * error


def test_arrival_times_stop_after_the_given_hops() -> None:
    path = torch.tensor([[0, 1, 2], [1, 2, 3]])
    delay = torch.tensor([5.0, 1.0, 2.0, 4.0])
    roots = torch.tensor([0])
    every = torch.zeros(4, dtype=torch.long), torch.tensor([4])
    assert arrival_times(path, delay, roots, 3, *every).tolist() == [0, 1, 3, 7]
    assert arrival_times(path, delay, roots, 1, *every).tolist() == [0, 1, math.inf, math.inf]


def test_the_portion_is_exact_in_spite_of_rounding() -> None:
    batch = Batch.from_data_list(
        [Data(x=torch.ones(100, 1), edge_index=torch.empty(2, 0, dtype=torch.long))]
    )
    assert 0.29 * 100 < 29
    assert drop_nodes(batch, 0.29).num_nodes == 71
