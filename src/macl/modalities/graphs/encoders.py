"""Graph encoders: GraphCL's GIN, and any model of PyG's kind by import path."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.data import Batch
from torch_geometric.nn import GINConv, global_max_pool, global_mean_pool

from macl.core.errors import UserError, nearest
from macl.core.plugins import load_factory
from macl.modalities.graphs.sections import GraphEncoderConfig, Pool
from macl.modalities.graphs.sums import Adjacency, graph_sum


class GIN(nn.Module):
    """GraphCL's graph isomorphism network: `forward(Batch) -> (B, layers·hidden)`.

    Layer l: h ← BN(ReLU(MLP(h_v + Σ_{u∈N(v)} h_u))) with MLP = Linear-ReLU-Linear; the graph's
    embedding joins the pooled nodes of every layer.
    """

    def __init__(
        self, in_channels: int, hidden: int = 32, layers: int = 3, pool: Pool = "sum"
    ) -> None:
        super().__init__()
        self.in_channels, self.out_dim, self.pool = in_channels, layers * hidden, pool
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        for width in [in_channels] + [hidden] * (layers - 1):
            first, second = nn.Linear(width, hidden), nn.Linear(hidden, hidden)
            self.convs.append(GINConv(nn.Sequential(first, nn.ReLU(inplace=True), second)))
            self.norms.append(nn.BatchNorm1d(hidden))
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    def forward(self, view: Batch) -> Tensor:
        """Encode B graphs to (B, out_dim)."""
        if view.x.size(1) != self.in_channels:
            raise UserError(
                f"the graphs have {view.x.size(1)} node features and the encoder takes "
                f"{self.in_channels}: they must come from the same data settings."
            )
        hidden, pooled = view.x, []
        edges = Adjacency(view.edge_index, view.x.size(0))
        for conv, norm in zip(self.convs, self.norms, strict=True):
            # What GINConv computes with its ε = 0, by a faster sum.
            mlp = conv.get_submodule("nn")
            hidden = norm(torch.relu_(mlp(edges.closed_sum(hidden))))
            pooled.append(pool(hidden, view, self.pool))
        return torch.cat(pooled, dim=1)


def pool(nodes: Tensor, view: Batch, how: Pool) -> Tensor:
    """(N, F) nodes to (B, F) graphs."""
    if how == "sum":
        return graph_sum(nodes, view.ptr, view.batch)
    reduced = global_mean_pool if how == "mean" else global_max_pool
    return reduced(nodes, view.batch, size=view.num_graphs)


class Pooled(nn.Module):
    """A node model of PyG's kind, `forward(x, edge_index) -> (N, out_channels)`, then pooled."""

    def __init__(self, model: nn.Module, pool: Pool) -> None:
        super().__init__()
        self.model, self.pool = model, pool
        self.out_dim = int(model.out_channels)  # type: ignore[arg-type]

    def forward(self, view: Batch) -> Tensor:
        """Encode B graphs to (B, out_dim)."""
        return pool(self.model(view.x, view.edge_index), view, self.pool)


def build_graph_encoder(config: GraphEncoderConfig, in_channels: int) -> nn.Module:
    """The encoder that `config` names, for nodes with `in_channels` features, kept as attribute."""
    if config.name == "gin":
        return GIN(in_channels, config.hidden, config.layers, config.pool)
    named = f"encoder.name={config.name!r}"
    if ":" not in config.name:
        raise UserError(
            f"{named}: no such graph encoder.{nearest(config.name, ['gin'])} "
            "Your own goes by import path, 'package.module:factory'."
        )
    factory = load_factory(config.name, config.allow_import)
    try:
        model = factory(in_channels, config.hidden, config.layers)
    except (TypeError, ValueError) as error:
        raise UserError(
            f"{named}: must be callable as (in_channels, hidden, layers); {error}."
        ) from error
    if not isinstance(model, nn.Module) or not {"out_dim", "out_channels"} & {*dir(model)}:
        raise UserError(
            f"{named}: must give a module with `out_channels` and forward(x, edge_index), or with "
            "`out_dim` and forward(Batch)."
        )
    encoder = model if hasattr(model, "out_dim") else Pooled(model, config.pool)
    encoder.in_channels = in_channels  # type: ignore[assignment]
    return encoder
