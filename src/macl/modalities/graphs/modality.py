"""The graphs modality."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from torch import nn

from macl.core.errors import UserError
from macl.core.weights import read_metadata
from macl.modalities.base import ENCODER_FILE, Modality, with_weights
from macl.modalities.graphs.data import graphs_of, load_graphs, open_graphs
from macl.modalities.graphs.dataset import GraphDataset
from macl.modalities.graphs.drawing import graph_items
from macl.modalities.graphs.encoders import build_graph_encoder
from macl.modalities.graphs.evaluation import evaluate_graphs
from macl.modalities.graphs.sections import (
    SECTIONS,
    GraphDataConfig,
    GraphEncoderConfig,
    GraphEvaluationConfig,
    GraphViewsConfig,
)
from macl.modalities.graphs.views import GraphViews
from macl.modalities.protocols import Embed
from macl.probes.score import Score

WIDTH = "in_channels"
"""Where an encoder's file keeps the number of node features."""


class Graphs(Modality):
    """Graphs, encoded by graph networks. Both splits are the whole set: see `GraphDataConfig`."""

    name = "graphs"
    sections = SECTIONS
    has_splits = False
    open_keys = frozenset(
        {"name", "path", "limit", "download", "cache", "attributes", "unlabeled", "max_degree"}
    )
    library = "pyg"

    load = staticmethod(load_graphs)
    open = staticmethod(open_graphs)
    from_objects = staticmethod(graphs_of)
    describe_items = staticmethod(graph_items)

    def build_encoder(self, config: GraphEncoderConfig, dataset: GraphDataset) -> nn.Module:
        """The encoder, as wide at its input as the node features of `dataset`."""
        return build_graph_encoder(config, dataset.num_features)

    def save_encoder(self, encoder: nn.Module, folder: Path, metadata: Mapping[str, str]) -> None:
        """The weights, and the number of node features that they take."""
        super().save_encoder(encoder, folder, {**metadata, WIDTH: str(encoder.in_channels)})

    def load_encoder(self, config: GraphEncoderConfig, folder: Path) -> nn.Module:
        """The same encoder with the run's weights."""
        metadata = read_metadata(folder / ENCODER_FILE)
        if not metadata.get(WIDTH, "").isdigit():
            raise UserError(f"{folder / ENCODER_FILE}: was not saved by a run on graphs.")
        return with_weights(build_graph_encoder(config, int(metadata[WIDTH])), folder)

    def build_views(self, config: GraphViewsConfig, encoder: nn.Module) -> GraphViews:
        """GraphCL's augmentations."""
        return GraphViews(config)

    def evaluate(
        self,
        config: GraphEvaluationConfig,
        data: GraphDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """Cross-validated accuracy on the embeddings of all graphs."""
        return evaluate_graphs(config, load_graphs(data), embed, seed, encoder)


MODALITY = Graphs()
