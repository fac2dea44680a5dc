"""The recipe sections of graphs, without torch."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import AfterValidator, Field

from macl.core.section import AbsolutePath, Section
from macl.probes.sections import KnnConfig

Policy = Literal["none", "drop", "subgraph", "edge", "mask", "random2", "random3", "random4"]
Pool = Literal["sum", "mean", "max"]


def _ordered(bounds: tuple[float, float]) -> tuple[float, float]:
    if bounds[0] > bounds[1]:
        raise ValueError(f"a range goes from low to high, not from {bounds[0]} to {bounds[1]}")
    return bounds


Fraction = Annotated[float, Field(ge=0, le=1)]
Ratio = Fraction | Annotated[tuple[Fraction, Fraction], AfterValidator(_ordered)]
"""One ratio for all graphs, or the (low, high) from which each graph draws its own."""


class GraphDataConfig(Section):
    """Which graphs. Node features are one-hot node labels where there are some, else `attributes`.

    TU sets have no split: training sees every graph, never its class, and evaluation
    cross-validates over the same graphs.
    """

    user_only: ClassVar[frozenset[str]] = frozenset({"cache", "download"})

    name: str | None = None
    """A TU set ("MUTAG") or "atlas"; None: the only set at `path`, or the atlas without a path.
    Without effect on graphs of one's own."""
    path: AbsolutePath | None = None
    """NAME.zip, a folder in the TU layout, or a folder that holds either. Graphs of one's own: a
    .graphml, .gml, .gexf, .json (node-link) or .csv file (edges), or a folder of such files."""
    node_label: str | None = None
    """Own graphs: the node attribute with a category, which becomes one-hot features."""
    graph_label: str = "label"
    """Own graphs: the graph attribute with the class, for evaluation; not needed by all graphs."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many graphs, a random choice that is always the same."""
    download: bool = False
    """Fetch the set from the TU collection when there is no `path`."""
    cache: AbsolutePath | None = None
    """Where downloads are kept; by default the folder macl/tu in the user's cache folder."""
    attributes: bool | None = None
    """Take continuous node attributes as features, beside the labels where there are some; unset:
    only where there are none. (PROTEINS has both, and GraphCL takes the labels.)"""
    unlabeled: Literal["constant", "degree"] = "constant"
    """Features of nodes that have neither: a constant 1, or the one-hot degree."""
    max_degree: int = Field(default=64, ge=1)
    """Larger degrees share the last column of the one-hot degree, which bounds its width."""


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
    """Put a new random edge of the same graph in place of each removed one."""
    one_hop: bool = False
    """Grow subgraphs from the root's own neighbors only, as GraphCL's published code does: it
    computes the union with the neighbors of each new node and drops the result."""
    self_loops: bool = False
    """Give every node of an unaugmented graph an edge to itself: of the anchor (a view with policy
    "none") and in evaluation, not of augmented views, as GraphCL's published code does."""


class GraphEncoderConfig(Section):
    """Which encoder. Defaults are GraphCL's for TU sets: 3 layers of 32, summed, joined to 96."""

    name: str = "gin"
    """"gin", or "package.module:factory", called as factory(in_channels, hidden, layers)."""
    hidden: int = Field(default=32, ge=1)
    layers: int = Field(default=3, ge=1)
    pool: Pool = "sum"
    allow_import: bool = False
    """Permit a name with a colon, which runs code of that package."""


class GraphEvaluationConfig(KnnConfig):
    """Which protocols, and their settings; the defaults are GraphCL's for TU sets."""

    protocols: tuple[Literal["svm", "logistic", "knn"], ...] = ("svm",)
    folds: int = Field(default=10, ge=2)
    """Stratified outer folds: each is the test set once."""
    inner_folds: int = Field(default=5, ge=2)
    """Folds of the search for C inside the training part of an outer fold."""


SECTIONS: dict[str, type[Section]] = {
    "data": GraphDataConfig,
    "views": GraphViewsConfig,
    "encoder": GraphEncoderConfig,
    "evaluation": GraphEvaluationConfig,
}
