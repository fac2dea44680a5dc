"""GraphCL's four augmentations for a whole batch of graphs at once.

Each takes a PyG `Batch` (x, edge_index, ptr, batch, maybe edge_attr); no Python loop runs over
graphs. `ratio` is one number or a (B,) tensor with a ratio per graph; `graphs` is a (B,) bool
tensor of the graphs to change. Two choose the nodes that stay, (N,) bool for
`keep_nodes`, so that a batch in which some graphs take the one and some the other is cut once; two
return a new batch. No graph ever becomes empty and no edge ever joins two graphs.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch_geometric.data import Batch

from macl.modalities.graphs.batching import (
    blocks,
    edge_pointers,
    graph_batch,
    pointers,
    take_blocks,
    true_indices,
)

Fill = Callable[[Tensor], Tensor]
"""Replacements for masked rows: (M, F) node features to (M, F) of the same type."""


ROUNDS = 8
"""Of growth, after which graphs that are done leave it; finding them costs about three."""
LARGE = 100
"""Members per group above which counting before sorting is faster than sorting alone."""


def undropped_nodes(batch: Batch, ratio: float | Tensor, graphs: Tensor) -> Tensor:
    """All but ⌊ratio·N⌋ random nodes of each graph of N nodes; at least one."""
    sizes = batch.ptr.diff() * graphs
    count = torch.minimum(_portion(ratio, sizes), (sizes - 1).clamp(min=0))
    dropped = _random_members(batch.ptr[:-1], sizes, count)
    return torch.ones_like(batch.batch, dtype=torch.bool).index_fill_(0, dropped, False)


def subgraph_nodes(
    batch: Batch, ratio: float | Tensor, graphs: Tensor, *, one_hop: bool = False
) -> Tensor:
    """Grow a subgraph of at most ⌊ratio·N⌋+1 nodes around a random root of each graph.

    At each step a node drawn uniformly from the neighbors of the set so far joins it, until the
    budget is spent or the root's component is exhausted. `one_hop` draws from the root's own
    neighbors only, as GraphCL's published code does.

    The growth is computed for all graphs together as a race: every node gets an Exp(1) delay, which
    runs from the moment its first neighbor joins. Delays being memoryless, whichever neighbor is
    next to arrive is uniform among those waiting. The earliest arrivals are the subgraph.
    """
    sizes = batch.ptr.diff()
    budget = (_portion(ratio, sizes) + 1) * graphs
    # −log(1 − u): a fifth of the time of exponential_, which draws one number after another.
    delay = torch.rand(batch.num_nodes, device=sizes.device).neg_().log1p_().neg_()
    root = batch.ptr[:-1] + _uniform_integers(sizes)
    number, edge_ptr = true_indices(graphs), edge_pointers(batch)
    edge_index = take_blocks(batch.edge_index, 1, edge_ptr[number], edge_ptr.diff()[number])
    # A set of b nodes lies within b-1 hops of its root, so later rounds cannot change it.
    hops = 1 if one_hop else int(budget.max()) - 1
    arrival = arrival_times(edge_index, delay, root[number], hops, batch.batch, budget)
    reached = true_indices(arrival < torch.inf)
    owner = batch.batch.index_select(0, reached)
    chosen = _earliest(arrival.index_select(0, reached), owner, budget)
    keep = (budget == 0).index_select(0, batch.batch)
    return keep.index_fill_(0, reached.index_select(0, chosen), True)


def perturb_edges(
    batch: Batch, ratio: float | Tensor, graphs: Tensor, *, add: bool = False
) -> Batch:
    """Remove ⌊ratio·E⌋ of each graph's E edges; with `add`, put as many new ones in their place.

    An edge and its reverse count, and go, as one, so undirected graphs stay undirected. A new edge
    joins two distinct random nodes of the same graph and inherits the features and the direction(s)
    of the edge it replaces; one that exists already is not added twice, so dense graphs gain fewer.
    """
    row, col = batch.edge_index
    edge_ptr = edge_pointers(batch)
    entries = blocks(edge_ptr[:-1], edge_ptr.diff() * graphs)
    one, other = batch.edge_index.index_select(1, entries)
    pairs, pair_of = torch.unique(_pair_key(one, other, batch.num_nodes), return_inverse=True)
    graph = batch.batch.index_select(0, pairs // batch.num_nodes)
    sizes = torch.bincount(graph, minlength=batch.num_graphs)
    members = _random_members(pointers(sizes)[:-1], sizes, _portion(ratio, sizes))
    removed = torch.zeros_like(pairs, dtype=torch.bool).index_fill_(0, members, True)
    hit = true_indices(removed.index_select(0, pair_of))
    gone, edge_index = entries.index_select(0, hit), batch.edge_index
    if add:
        low, high, fresh = _new_edges(batch, graph, pairs, removed)
        edge_index = edge_index.clone()
        pair = pair_of[hit]
        upward = row[gone] <= col[gone]
        edge_index[0, gone] = torch.where(upward, low[pair], high[pair])
        edge_index[1, gone] = torch.where(upward, high[pair], low[pair])
        gone = gone[~fresh[pair]]
    left = true_indices(torch.ones_like(row, dtype=torch.bool).index_fill_(0, gone, False))
    edge_attr = None if batch.edge_attr is None else batch.edge_attr.index_select(0, left)
    return graph_batch(batch.x, edge_index.index_select(1, left), batch.ptr, edge_attr)


def add_self_loops(batch: Batch) -> Batch:
    """Every node with one more edge, to itself; features of these edges are 0."""
    nodes = torch.arange(batch.num_nodes, device=batch.ptr.device, dtype=batch.edge_index.dtype)
    edge_ptr = edge_pointers(batch)
    # The edges of a graph lie together (see `batching`): its own, then its loops.
    loops = batch.ptr + batch.edge_index.size(1)
    start = torch.stack([edge_ptr[:-1], loops[:-1]], dim=1).view(-1)
    length = torch.stack([edge_ptr.diff(), loops.diff()], dim=1).view(-1)
    edge_index = torch.cat([batch.edge_index, nodes.expand(2, -1)], dim=1)
    edge_attr = batch.edge_attr
    if edge_attr is not None:
        zeros = edge_attr.new_zeros(len(nodes), *edge_attr.shape[1:])
        edge_attr = take_blocks(torch.cat([edge_attr, zeros]), 0, start, length)
    return graph_batch(batch.x, take_blocks(edge_index, 1, start, length), batch.ptr, edge_attr)


def gaussian_rows(rows: Tensor) -> Tensor:
    """Rows of N(0.5, 0.5²), GraphCL's mask for one-hot features."""
    return torch.randn_like(rows) * 0.5 + 0.5


def token_rows(*tokens: int) -> Fill:
    """Rows of these integers, one per feature: the mask for categorical features."""
    return lambda rows: rows.new_tensor(tokens).expand_as(rows)


def mask_attributes(
    batch: Batch, ratio: float | Tensor, graphs: Tensor, *, fill: Fill = gaussian_rows
) -> Batch:
    """Replace the features of ⌊ratio·N⌋ random nodes of each graph by what `fill` gives."""
    sizes = batch.ptr.diff() * graphs
    masked = _random_members(batch.ptr[:-1], sizes, _portion(ratio, sizes))
    x = batch.x.index_copy(0, masked, fill(batch.x.index_select(0, masked)))
    return graph_batch(x, batch.edge_index, batch.ptr, batch.edge_attr)


def keep_nodes(batch: Batch, keep: Tensor) -> Batch:
    """The subgraphs induced by the nodes where `keep`, (N,) bool, holds."""
    place = pointers(keep.long())
    row, col = batch.edge_index
    edges = true_indices(keep.index_select(0, row) & keep.index_select(0, col))
    ends = batch.edge_index.index_select(1, edges)
    return graph_batch(
        batch.x.index_select(0, true_indices(keep)),
        place.index_select(0, ends.view(-1)).view_as(ends),
        place.index_select(0, batch.ptr),
        None if batch.edge_attr is None else batch.edge_attr.index_select(0, edges),
    )


def arrival_times(
    edge_index: Tensor, delay: Tensor, roots: Tensor, hops: int, graph: Tensor, count: Tensor
) -> Tensor:
    """When a walker that leaves `roots` at time 0 first reaches each node in at most `hops` steps.

    Entering node v takes delay[v] ≥ 0: t(v) = min over edges u→v of t(u) + delay[v]. (N,), ∞ where
    never. One round of relaxations per hop, over all graphs at once, until nothing changes.

    `graph` is that of each node, (N,). Only the count[g] earliest nodes of graph g, (B,), need
    have their time; others may have a later one than theirs, or ∞.
    """
    time = torch.full_like(delay, torch.inf)
    time[roots] = 0
    source, target = edge_index
    toll = delay.index_select(0, target)
    for hop in range(hops):
        before = time.clone() if hop % ROUNDS == ROUNDS - 1 else None
        time.scatter_reduce_(0, target, time.index_select(0, source).add_(toll), "amin")
        if before is None:
            continue
        changed = true_indices(time < before)
        if not len(changed):
            break
        going = _undecided(time, changed, graph, count).index_select(0, graph)
        edges = true_indices(going.index_select(0, target))
        source, target, toll = (x.index_select(0, edges) for x in (source, target, toll))
    return time


def _undecided(time: Tensor, changed: Tensor, graph: Tensor, count: Tensor) -> Tensor:
    """(B,) bool: graphs whose count[g] earliest nodes are not certain while some just `changed`.

    What changes next does so through a node that just did, so it will be later than the first of
    those; nodes that are earlier have their final time.
    """
    first = time.new_full(count.shape, torch.inf)
    own = graph.index_select(0, changed)
    first.scatter_reduce_(0, own, time.index_select(0, changed), "amin")
    final = true_indices(time < first.index_select(0, graph))
    certain = torch.bincount(graph.index_select(0, final), minlength=len(count))
    return (certain < count) & (first < torch.inf)


def _new_edges(
    batch: Batch, graph: Tensor, pairs: Tensor, removed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Random node pairs (low, high), one per pair, and which removed ones may use theirs."""
    sizes = batch.ptr.diff()[graph]
    first = _uniform_integers(sizes)
    second = (first + 1 + _uniform_integers(sizes - 1)) % sizes
    start = batch.ptr[graph]
    low, high = start + torch.minimum(first, second), start + torch.maximum(first, second)
    key = _pair_key(low, high, batch.num_nodes)
    usable = removed & (low < high) & ~torch.isin(key, pairs)
    # Of equal pairs one may stay, and a usable one (key 0) goes before the others (key 1).
    _, group = torch.unique(key, return_inverse=True)
    first = _earliest((~usable).float(), group, torch.ones_like(group))
    single = torch.zeros_like(usable).index_fill_(0, first, True)
    return low, high, usable & single


def _pair_key(row: Tensor, col: Tensor, num_nodes: int) -> Tensor:
    """One integer per unordered pair of nodes, ordered by its smaller end."""
    return torch.minimum(row, col) * num_nodes + torch.maximum(row, col)


def _portion(ratio: float | Tensor, sizes: Tensor) -> Tensor:
    """⌊ratio·size⌋ for each graph, in double precision; the tiny term undoes 0.29·100 = 28.999…"""
    return (ratio * sizes.double() + 1e-9).floor().long()


def _uniform_integers(bounds: Tensor) -> Tensor:
    """A uniform integer in [0, bound) for each bound; 0 where the bound is 0."""
    return (torch.rand(bounds.shape, dtype=torch.double, device=bounds.device) * bounds).long()


def _random_members(start: Tensor, sizes: Tensor, count: Tensor) -> Tensor:
    """A uniformly random subset of count[g] members of each group g, as their numbers.

    Group g has the members start[g] … start[g]+sizes[g]-1.
    """
    offsets = pointers(sizes)
    group = torch.repeat_interleave(sizes, output_size=int(offsets[-1]))
    chosen = _earliest(torch.rand(group.shape, device=group.device), group, count)
    return chosen + (start - offsets[:-1]).index_select(0, group.index_select(0, chosen))


def _earliest(key: Tensor, group: Tensor, count: Tensor) -> Tensor:
    """Where the count[g] smallest keys, finite float32 ≥ 0, of each group g are; at most all."""
    # Non-negative floats sort like their bit patterns, so one integer sorts by group, then by key;
    # integers are sorted several times faster than floats, and once instead of twice.
    bits, few = key.view(torch.int32), None
    if len(key) > LARGE * len(count):
        few = true_indices(_not_late(bits, group, count))
        bits, group = bits.index_select(0, few), group.index_select(0, few)
    order = (group << 32).add_(bits).argsort()
    sizes = torch.bincount(group, minlength=len(count))
    first = order.index_select(0, blocks(pointers(sizes)[:-1], torch.minimum(count, sizes)))
    return first if few is None else few.index_select(0, first)


def _not_late(bits: Tensor, group: Tensor, count: Tensor) -> Tensor:
    """(M,) bool: the count[g] smallest of each group g and few others, by counting.

    Floats are counted in bins of an eighth of a power of two, their upper 12 bits; bin 0 has all
    below 2⁻²⁴, the smallest number that torch.rand draws.
    """
    bins = (bits >> 20).sub_(824).clamp_(min=0)
    width = int(bins.max()) + 1
    counts = torch.bincount(group * width + bins, minlength=len(count) * width)
    last = (counts.view(-1, width).cumsum(1) < count[:, None]).sum(1)
    return bins <= last.index_select(0, group)
