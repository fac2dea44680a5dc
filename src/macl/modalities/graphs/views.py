"""Two views of a batch of graphs: a policy for each, drawn per graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Annotated, Literal

import torch
from pydantic import AfterValidator, Field
from torch import Tensor
from torch_geometric.data import Batch

from macl.core.section import Section
from macl.modalities.graphs.augmentations import (
    Fill,
    gaussian_rows,
    keep_nodes,
    mask_attributes,
    perturb_edges,
    subgraph_nodes,
    undropped_nodes,
)
from macl.modalities.graphs.batching import count_graphs

Policy = Literal["none", "drop", "subgraph", "edge", "mask", "random2", "random3", "random4"]

POLICIES: dict[Policy, tuple[str, ...]] = {
    "none": (),
    "drop": ("drop",),
    "subgraph": ("subgraph",),
    "edge": ("edge",),
    "mask": ("mask",),
    "random2": ("drop", "subgraph"),
    "random3": ("drop", "subgraph", "edge"),
    "random4": ("drop", "subgraph", "edge", "mask"),
}
"""Which augmentations a policy draws from, one per graph, all equally likely."""


Choice = Callable[[Batch, float | Tensor, Tensor], Tensor]
"""(batch, ratio, which graphs) to the nodes that stay, (N,) bool."""
Change = Callable[[Batch, float | Tensor, Tensor], Batch]
"""(batch, ratio, which graphs) to the batch with those graphs changed."""


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"a range goes from low to high, not from {bounds[0]} to {bounds[1]}")
    return bounds


Fraction = Annotated[float, Field(ge=0, le=1)]
Ratio = Fraction | Annotated[tuple[Fraction, Fraction], AfterValidator(_ordered)]
"""One ratio for all graphs, or the (low, high) from which each graph draws its own."""


class GraphViewsConfig(Section):
    """How the two views are made. Defaults are GraphCL's: the anchor is the graph as it is."""

    view1: Policy = "none"
    view2: Policy = "random2"
    drop_ratio: Ratio = 0.1
    """Nodes dropped: ⌊ratio·N⌋."""
    edge_ratio: Ratio = 0.1
    """Edges removed: ⌊ratio·E⌋."""
    mask_ratio: Ratio = 0.1
    """Nodes whose features are masked: ⌊ratio·N⌋."""
    subgraph_ratio: Ratio = 0.2
    """Nodes kept around a random root: at most ⌊ratio·N⌋+1."""
    add_edges: bool = False
    """Put a new random edge of the same graph in the place of each removed one."""
    one_hop: bool = False
    """Grow subgraphs from the root's own neighbours only, as GraphCL's published code does."""


class GraphViews:
    """Views of a PyG `Batch`; `fill` makes the features of masked nodes (see `mask_attributes`)."""

    def __init__(self, config: GraphViewsConfig, fill: Fill = gaussian_rows) -> None:
        self.policies = (config.view1, config.view2)
        self._choices: dict[str, Choice] = {
            "drop": undropped_nodes,
            "subgraph": partial(subgraph_nodes, one_hop=config.one_hop),
        }
        self._changes: dict[str, Change] = {
            "edge": partial(perturb_edges, add=config.add_edges),
            "mask": partial(mask_attributes, fill=fill),
        }
        self._ratios = {
            "drop": config.drop_ratio,
            "subgraph": config.subgraph_ratio,
            "edge": config.edge_ratio,
            "mask": config.mask_ratio,
        }

    def __call__(self, inputs: Batch) -> tuple[Batch, Batch]:
        """Two views, each with one augmentation of its policy per graph."""
        first, second = self.policies
        return self.augment(inputs, first), self.augment(inputs, second)

    def plain(self, inputs: Batch) -> Batch:
        """The graphs as they are."""
        return inputs

    def augment(self, batch: Batch, policy: Policy) -> Batch:
        """One view: every graph draws one augmentation of the policy, and its ratio."""
        names = POLICIES[policy]
        if not names:
            return batch
        size, device = count_graphs(batch), batch.ptr.device
        drawn = torch.randint(len(names), (size,), device=device)
        takers = {name: drawn == number for number, name in enumerate(names)}
        ratios = {name: _draw(self._ratios[name], size, device) for name in names}
        kept = [
            choose(batch, ratios[name], takers[name])
            for name, choose in self._choices.items()
            if name in takers
        ]
        if kept:
            batch = keep_nodes(batch, reduce(torch.logical_and, kept))
        for name, change in self._changes.items():
            if name in takers:
                batch = change(batch, ratios[name], takers[name])
        return batch


def _draw(ratio: float | tuple[float, float], size: int, device: torch.device) -> float | Tensor:
    if not isinstance(ratio, tuple):
        return ratio
    low, high = ratio
    return low + (high - low) * torch.rand(size, dtype=torch.double, device=device)
