"""Graphs per second of one GraphCL epoch: batched augmentation against a loop over graphs.

    python benchmarks/graphs.py [--data FOLDER] [--sets NCI1 REDDIT-BINARY] [--policy random2]

All contenders share the data, the loss, the optimizer and the policy, and take turns; the figure is
the median over `--repeats` epochs. "augment" makes the views alone; "train" adds our encoder, the
same for all, which pulls the ratios together; "plain" has instead the same GIN made of PyG's own
layers: an epoch without any part of ours. "dense" is a loop that edits an N x N adjacency matrix
per graph, the way GraphCL's published code goes about it; "loop" one that spares that. "PyGCL" is
that library, where it is installed; "peer" is its way of making views written with PyG's utilities,
one augmentation for the whole batch, for drop and subgraph. Freed memory is kept for all, as
`macl train` keeps it. FOLDER holds NAME.zip; by default it is the `shared/data/tu` folder beside
the repository.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import random
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
import torch_geometric
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import global_add_pool
from torch_geometric.utils import index_sort
from torch_geometric.utils import subgraph as induced_subgraph
from torch_geometric.utils.sparse import index2ptr

from macl.modalities.graphs.data import GraphDataConfig, load_graphs
from macl.modalities.graphs.dataset import GraphDataset
from macl.modalities.graphs.encoders import GIN
from macl.modalities.graphs.views import POLICIES, GraphViews, GraphViewsConfig
from macl.training.compute import kept_memory

BATCH_SIZE = 128
RIVALS = ["loop", "dense", "peer", "PyGCL"]
Contender = Callable[[list[int]], tuple[Batch, Batch]]


def loop_drop(graph: Data) -> Data:
    size = graph.num_nodes
    keep = torch.randperm(size)[size // 10 :].sort().values
    return induced(graph, keep)


def loop_subgraph(graph: Data) -> Data:
    neighbors: list[list[int]] = [[] for _ in range(graph.num_nodes)]
    for source, target in graph.edge_index.t().tolist():
        neighbors[source].append(target)
    root = random.randrange(graph.num_nodes)
    chosen, frontier, known = [root], list(neighbors[root]), {root, *neighbors[root]}
    while frontier and len(chosen) <= graph.num_nodes // 5:
        number = random.randrange(len(frontier))
        frontier[number], frontier[-1] = frontier[-1], frontier[number]
        node = frontier.pop()
        chosen.append(node)
        fresh = [other for other in neighbors[node] if other not in known]
        known.update(fresh)
        frontier.extend(fresh)
    return induced(graph, torch.tensor(sorted(chosen)))


def loop_edge(graph: Data) -> Data:
    row, col = graph.edge_index
    pairs = graph.edge_index[:, row < col]
    count = pairs.size(1)
    kept = pairs[:, torch.randperm(count)[count // 10 :]]
    return Data(x=graph.x, edge_index=torch.cat([kept, kept.flip(0)], dim=1))


def loop_mask(graph: Data) -> Data:
    x = graph.x.clone()
    masked = torch.randperm(len(x))[: len(x) // 10]
    x[masked] = torch.randn(len(masked), x.size(1)) * 0.5 + 0.5
    return Data(x=x, edge_index=graph.edge_index)


def induced(graph: Data, keep: Tensor) -> Data:
    edge_index, _ = induced_subgraph(
        keep, graph.edge_index, relabel_nodes=True, num_nodes=graph.num_nodes
    )
    return Data(x=graph.x[keep], edge_index=edge_index)


def adjacency(graph: Data) -> Tensor:
    matrix = torch.zeros(graph.num_nodes, graph.num_nodes)
    matrix[graph.edge_index[0], graph.edge_index[1]] = 1
    return matrix


def without(graph: Data, matrix: Tensor, dropped: list[int]) -> Data:
    matrix[dropped] = 0
    matrix[:, dropped] = 0
    gone = set(dropped)
    kept = [node for node in range(graph.num_nodes) if node not in gone]
    place = torch.zeros(graph.num_nodes, dtype=torch.long)
    place[kept] = torch.arange(len(kept))
    return Data(x=graph.x[kept], edge_index=place[matrix.nonzero().t()])


def dense_drop(graph: Data) -> Data:
    dropped = torch.randperm(graph.num_nodes)[: graph.num_nodes // 10].tolist()
    return without(graph, adjacency(graph), dropped)


def dense_subgraph(graph: Data) -> Data:
    matrix = adjacency(graph)
    chosen = [random.randrange(graph.num_nodes)]
    frontier = set(matrix[chosen[0]].nonzero().view(-1).tolist())
    while frontier and len(chosen) <= graph.num_nodes // 5:
        chosen.append(random.choice(list(frontier)))
        frontier |= set(matrix[chosen[-1]].nonzero().view(-1).tolist())
        frontier -= set(chosen)
    dropped = [node for node in range(graph.num_nodes) if node not in chosen]
    return without(graph, matrix, dropped)


LOOPS = {"drop": loop_drop, "subgraph": loop_subgraph, "edge": loop_edge, "mask": loop_mask}
DENSE = {**LOOPS, "drop": dense_drop, "subgraph": dense_subgraph}


def batched(dataset: GraphDataset, policy: str) -> Contender:
    views = GraphViews(GraphViewsConfig(view1="none", view2=policy))
    return lambda numbers: views(dataset.collate(numbers))


def looped(graphs: list[Data], operations: list[Callable[[Data], Data]]) -> Contender:

    def views(numbers: list[int]) -> tuple[Batch, Batch]:
        anchors = [graphs[number] for number in numbers]
        augmented = [random.choice(operations)(graph) for graph in anchors]
        return Batch.from_data_list(anchors), Batch.from_data_list(augmented)

    return views


def peer_drop(edge_index: Tensor, nodes: int) -> Tensor:
    """Edges between nodes that stay, each with probability 0.9, as PyGCL's NodeDropping."""
    stay = torch.rand(nodes) >= 0.1
    return induced_subgraph(stay, edge_index)[0]


def peer_walk(edge_index: Tensor, nodes: int) -> Tensor:
    """Edges between nodes on 1,000 random walks of 10 steps, as PyGCL's RWSampling."""
    row, order = index_sort(edge_index[0], max_value=nodes)
    neighbors, start = edge_index[1, order], index2ptr(row, nodes)
    degree = start.diff()
    place = torch.randint(nodes, (1000,))
    visited = [place]
    for _ in range(10):
        pick = (torch.rand(len(place)) * degree[place]).long()
        alone = degree[place] == 0
        ahead = neighbors[(start[place] + pick).clamp(max=len(neighbors) - 1)]
        place = torch.where(alone, place, ahead)
        visited.append(place)
    return induced_subgraph(torch.cat(visited), edge_index, num_nodes=nodes)[0]


PEER = {"drop": peer_drop, "subgraph": peer_walk}


def peer(graphs: list[Data], policy: str) -> Contender:
    """PyGCL's way with PyG's own utilities: one augmentation for the whole batch, features and
    nodes stay, edges go. For machines without torch-scatter, torch-sparse and dgl."""
    chosen = [PEER[name] for name in POLICIES[policy]]

    def views(numbers: list[int]) -> tuple[Batch, Batch]:
        anchor = Batch.from_data_list([graphs[number] for number in numbers])
        edge_index = random.choice(chosen)(anchor.edge_index, anchor.num_nodes)
        return anchor, Batch(x=anchor.x, edge_index=edge_index, batch=anchor.batch, ptr=anchor.ptr)

    return views


def pygcl(graphs: list[Data], policy: str) -> Contender:
    import GCL.augmentors as A

    # PyGCL draws one augmentation per batch where GraphCL draws one per graph.
    known = {
        "drop": lambda: A.NodeDropping(pn=0.1),
        "subgraph": lambda: A.RWSampling(num_seeds=1000, walk_length=10),
        "edge": lambda: A.EdgeRemoving(pe=0.1),
        "mask": lambda: A.FeatureMasking(pf=0.1),
    }
    augmentor = A.RandomChoice([known[name]() for name in POLICIES[policy]], 1)

    def views(numbers: list[int]) -> tuple[Batch, Batch]:
        anchor = Batch.from_data_list([graphs[number] for number in numbers])
        x, edge_index, _ = augmentor(anchor.x, anchor.edge_index)
        return anchor, Batch(x=x, edge_index=edge_index, batch=anchor.batch, ptr=anchor.ptr)

    return views


def epoch(order: list[int], views: Contender, step: Callable[[Batch, Batch], None]) -> float:
    start = time.perf_counter()
    for offset in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
        step(*views(order[offset : offset + BATCH_SIZE]))
    return time.perf_counter() - start


class PlainGIN(GIN):
    """The same network by PyG's message passing and pooling."""

    def forward(self, view: Batch) -> Tensor:
        hidden, pooled = view.x, []
        for conv, norm in zip(self.convs, self.norms, strict=True):
            hidden = norm(torch.relu(conv(hidden, view.edge_index)))
            pooled.append(global_add_pool(hidden, view.batch, size=view.num_graphs))
        return torch.cat(pooled, dim=1)


def training_step(encoder: GIN) -> Callable[[Batch, Batch], None]:
    head = nn.Sequential(nn.Linear(96, 96), nn.ReLU(), nn.Linear(96, 96))
    optimizer = torch.optim.Adam([*encoder.parameters(), *head.parameters()], lr=0.01, fused=True)

    def step(first: Batch, second: Batch) -> None:
        z1, z2 = (F.normalize(head(encoder(view)), dim=1) for view in (first, second))
        logits = z1 @ z2.T / 0.2
        others = logits.masked_fill(torch.eye(len(logits), dtype=torch.bool), -torch.inf)
        loss = (others.logsumexp(dim=1) - logits.diagonal()).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()

    return step


def contenders(
    dataset: GraphDataset, policy: str, wanted: list[str]
) -> Iterator[tuple[str, Contender]]:
    """Those of `wanted` that can run, by name."""
    single = [dataset.collate([number]) for number in range(len(dataset))]
    graphs = [Data(x=graph.x, edge_index=graph.edge_index) for graph in single]
    if "loop" in wanted:
        yield "loop", looped(graphs, [LOOPS[name] for name in POLICIES[policy]])
    if "dense" in wanted:
        yield "dense", looped(graphs, [DENSE[name] for name in POLICIES[policy]])
    yield "macl", batched(dataset, policy)
    if "peer" in wanted and set(POLICIES[policy]) <= set(PEER):
        yield "peer", peer(graphs, policy)
    if "PyGCL" in wanted and importlib.util.find_spec("GCL"):
        yield "PyGCL", pygcl(graphs, policy)
    elif "PyGCL" in wanted:
        print("PyGCL: not installed, skipped")


def main() -> None:
    beside = Path(__file__).resolve().parents[2] / "shared" / "data" / "tu"
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, default=beside)
    parser.add_argument("--sets", nargs="+", default=["NCI1", "REDDIT-BINARY"])
    parser.add_argument("--policy", default="random2", choices=sorted(set(POLICIES) - {"none"}))
    parser.add_argument("--contenders", nargs="+", default=RIVALS, choices=RIVALS)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    print(
        f"torch {torch.__version__}, PyG {torch_geometric.__version__}, "
        f"{arguments.threads} thread(s), batch {BATCH_SIZE}, "
        f"policy {arguments.policy}, median of {arguments.repeats} epochs"
    )
    with kept_memory():
        for name in arguments.sets:
            compare(name, arguments)


def compare(name: str, arguments: argparse.Namespace) -> None:
    """Print the speeds of all contenders on one data set."""
    dataset = load_graphs(GraphDataConfig(name=name, path=arguments.data))
    rivals = dict(contenders(dataset, arguments.policy, arguments.contenders))
    ours, plain = (training_step(gin(dataset.num_features)) for gin in (GIN, PlainGIN))
    runs = {("augment", rival): (views, lambda *_: None) for rival, views in rivals.items()}
    runs |= {("train", rival): (views, ours) for rival, views in rivals.items()}
    runs |= {("plain", rival): (views, plain) for rival, views in rivals.items()}
    del runs["plain", "macl"]
    gc.collect()
    gc.freeze()  # or everyone pays for looking through the loops' thousands of small objects
    seconds: dict[tuple[str, str], list[float]] = {}
    for _ in range(arguments.repeats):
        order = torch.randperm(len(dataset)).tolist()
        for key, (views, step) in runs.items():
            seconds.setdefault(key, []).append(epoch(order, views, step))
    graphs = len(dataset) // BATCH_SIZE * BATCH_SIZE
    for (stage, rival), times in seconds.items():
        median = statistics.median(times)
        ours_in = "augment" if stage == "augment" else "train"
        ratio = median / statistics.median(seconds[ours_in, "macl"])
        speed = f"{graphs / median:9.0f} graphs/s"
        print(f"{name:14} {stage:8} {rival:6} {speed}  macl is {ratio:5.1f}x as fast")


if __name__ == "__main__":
    main()
