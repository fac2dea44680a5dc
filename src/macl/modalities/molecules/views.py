"""GraphCL's views of molecules: each view drops a fifth of the atoms or keeps a subgraph."""

from __future__ import annotations

from macl.modalities.graphs.augmentations import token_rows
from macl.modalities.graphs.views import GraphViews, GraphViewsConfig, Policy, Ratio
from macl.modalities.molecules.features import MASK_ATOM, NO_CHIRALITY


class MoleculeViewsConfig(GraphViewsConfig):
    """How the two views are made. Defaults are GraphCL's for chemistry: both are random."""

    view1: Policy = "random2"
    view2: Policy = "random2"
    drop_ratio: Ratio = 0.2


def molecule_views(config: MoleculeViewsConfig) -> GraphViews:
    """Views whose masked atoms are of the mask's type and of no chirality."""
    return GraphViews(config, fill=token_rows(MASK_ATOM, NO_CHIRALITY))
