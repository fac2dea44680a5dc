"""GraphCL's views of molecules: each view drops a fifth of the atoms or keeps a subgraph."""

from __future__ import annotations

from macl.modalities.graphs.augmentations import token_rows
from macl.modalities.graphs.views import GraphViews
from macl.modalities.molecules.features import MASK_ATOM, NO_CHIRALITY
from macl.modalities.molecules.sections import MoleculeViewsConfig


def molecule_views(config: MoleculeViewsConfig) -> GraphViews:
    """Views whose masked atoms are of the mask's type and of no chirality."""
    return GraphViews(config, fill=token_rows(MASK_ATOM, NO_CHIRALITY))
