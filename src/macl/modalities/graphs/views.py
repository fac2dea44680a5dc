"""Two views of a batch of graphs: a policy for each, drawn per graph."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial, reduce
from typing import Any

import torch
from torch import Tensor
from torch_geometric.data import Batch

from macl.modalities.graphs import augmentations
from macl.modalities.graphs.sections import GraphViewsConfig, Policy
from macl.modalities.protocols import Views

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

Augmentation = Callable[[Batch, float | Tensor, Tensor], Any]
"""(batch, ratio, which graphs) to the nodes that stay, (N,) bool, or to a changed batch."""


class GraphViews(Views):
    """Views of a PyG `Batch`; `fill` makes the features of masked nodes (see `mask_attributes`)."""

    def __init__(
        self, config: GraphViewsConfig, fill: augmentations.Fill = augmentations.gaussian_rows
    ) -> None:
        self.config = config
        self._choices: dict[str, Augmentation] = {
            "drop": augmentations.undropped_nodes,
            "subgraph": partial(augmentations.subgraph_nodes, one_hop=config.one_hop),
        }
        self._changes: dict[str, Augmentation] = {
            "edge": partial(augmentations.perturb_edges, add=config.add_edges),
            "mask": partial(augmentations.mask_attributes, fill=fill),
        }

    on_host = True

    def __call__(self, inputs: Batch) -> tuple[Batch, Batch]:
        """Two views, each with one augmentation of its policy per graph."""
        return self.augment(inputs, self.config.view1), self.augment(inputs, self.config.view2)

    def plain(self, inputs: Batch) -> Batch:
        """The graphs as they are, with self-loops if the section asks for them."""
        return augmentations.add_self_loops(inputs) if self.config.self_loops else inputs

    def augment(self, batch: Batch, policy: Policy) -> Batch:
        """One view: every graph draws one augmentation of the policy, and its ratio."""
        names = POLICIES[policy]
        if not names:
            return self.plain(batch)
        size, device = batch.num_graphs, batch.ptr.device
        drawn = torch.randint(len(names), (size,), device=device)
        takers = {name: drawn == number for number, name in enumerate(names)}
        ratios = {name: self._draw_ratio(name, size, device) for name in names}
        kept = [self._choices[n](batch, ratios[n], takers[n]) for n in names if n in self._choices]
        if kept:
            batch = augmentations.keep_nodes(batch, reduce(torch.logical_and, kept))
        for name in names:
            if name in self._changes:
                batch = self._changes[name](batch, ratios[name], takers[name])
        return batch

    def _draw_ratio(self, name: str, size: int, device: torch.device) -> float | Tensor:
        ratio: float | tuple[float, float] = getattr(self.config, f"{name}_ratio")
        if not isinstance(ratio, tuple):
            return ratio
        low, high = ratio
        return low + (high - low) * torch.rand(size, dtype=torch.double, device=device)
