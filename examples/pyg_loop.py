"""A loss of macl in a loop of PyTorch Geometric: GIN, edges dropped at random as views.

pip install 'macl[graphs]'
python examples/pyg_loop.py
"""

from __future__ import annotations

import networkx as nx
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch, Data
from torch_geometric.loader import DataLoader
from torch_geometric.nn import GIN, global_add_pool
from torch_geometric.utils import degree, dropout_edge, from_networkx

from macl import MACL


class Encoder(nn.Module):
    """GIN on the degrees, summed over nodes, and a projector."""

    def __init__(self) -> None:
        super().__init__()
        self.gin = GIN(in_channels=8, hidden_channels=32, num_layers=2)
        self.projector = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 32))

    def forward(self, batch: Batch, edges: Tensor) -> Tensor:
        """A batch of graphs with these edges → (N, 32)."""
        return self.projector(global_add_pool(self.gin(batch.x, edges), batch.batch))


def atlas(count: int) -> list[Data]:
    """Small graphs of the networkx atlas, with the degree of each node as its feature."""
    graphs = [g for g in nx.graph_atlas_g() if g.number_of_edges() > 5][:count]
    found = []
    for graph in graphs:
        data = from_networkx(graph)
        counts = degree(data.edge_index[0], data.num_nodes).long().clamp(max=7)
        data.x = nn.functional.one_hot(counts, 8).float()
        found.append(data)
    return found


def train(epochs: int = 3, count: int = 512) -> list[float]:
    """Train; returns the loss of every step."""
    torch.manual_seed(0)
    loader = DataLoader(atlas(count), batch_size=128, shuffle=True, drop_last=True)
    model, criterion = Encoder(), MACL(temperature=0.2, alpha=0.5)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(epochs):
        for batch in loader:
            z1, z2 = (
                model(batch, dropout_edge(batch.edge_index, p=0.2, force_undirected=True)[0])
                for _ in range(2)
            )
            loss: Tensor = criterion(z1, z2)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    return losses


if __name__ == "__main__":
    print([round(loss, 3) for loss in train()])
