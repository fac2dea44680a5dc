"""The graph isomorphism network for molecules of Hu et al. (2020), with embedded bonds."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from macl.modalities.graphs.sums import Adjacency, graph_sum
from macl.modalities.molecules import features


class MoleculeConv(nn.Module):
    """One layer: h_v ← MLP(Σ_{u ∈ N(v) ∪ {v}} h_u + e_uv), MLP = Linear(2d)-ReLU-Linear(d)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.bond_type = nn.Embedding(features.BOND_TYPES, width)
        self.bond_direction = nn.Embedding(features.BOND_DIRECTIONS, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 2 * width), nn.ReLU(inplace=True), nn.Linear(2 * width, width)
        )

    def forward(self, nodes: Tensor, edges: Adjacency, bonds: Tensor) -> Tensor:
        """(N, d) atoms to (N, d); `bonds` are the counts of `bond_counts`.

        Σ e_uv is a product of counts and embeddings, which spares the (E, d) array of edges.
        """
        embeddings = torch.cat([self.bond_type.weight, self.bond_direction.weight])
        updated: Tensor = self.mlp(edges.closed_sum(nodes) + bonds @ embeddings)
        return updated


class MoleculeGIN(nn.Module):
    """`forward(Batch) -> (B, out_dim)`: embedded atoms, layers with batch norm, mean over atoms.

    ReLU between layers and not after the last; dropout after each.
    """

    def __init__(self, layers: int = 5, hidden: int = 300, dropout: float = 0.0) -> None:
        super().__init__()
        self.out_dim = hidden
        self.atom_type = nn.Embedding(features.ATOM_TYPES, hidden)
        self.chirality = nn.Embedding(features.CHIRALITIES, hidden)
        self.convs = nn.ModuleList(MoleculeConv(hidden) for _ in range(layers))
        self.norms = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(layers))
        self.dropout = nn.Dropout(dropout)
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.xavier_uniform_(module.weight)

    def forward(self, view: Batch) -> Tensor:
        """Encode B molecules to (B, out_dim)."""
        nodes = self.atom_type(view.x[:, 0]) + self.chirality(view.x[:, 1])
        bonds = bond_counts(view).to(nodes.dtype)
        edges = Adjacency(view.edge_index, len(nodes))
        for depth, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True), start=1):
            nodes = norm(conv(nodes, edges, bonds))
            if depth < len(self.convs):
                nodes = torch.relu(nodes)
            nodes = self.dropout(nodes)
        return graph_sum(nodes, view.ptr, view.batch) / view.ptr.diff()[:, None]


def bond_counts(view: Batch) -> Tensor:
    """(N, types + directions): how many edges of each type, then direction, enter each atom.

    Every atom has its edge to itself among them.
    """
    counts = view.x.new_zeros(
        len(view.x), features.BOND_TYPES + features.BOND_DIRECTIONS, dtype=torch.float
    )
    counts[:, [features.SELF_LOOP, features.BOND_TYPES + features.NO_DIRECTION]] = 1
    columns = view.edge_attr + view.edge_attr.new_tensor([0, features.BOND_TYPES])
    cells = (view.edge_index[1, :, None] * counts.size(1) + columns).view(-1)
    counts.view(-1).index_add_(0, cells, counts.new_ones(len(cells)))
    return counts
