"""The molecules modality."""

from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from macl.modalities.base import Modality
from macl.modalities.graphs.augmentations import token_rows
from macl.modalities.graphs.evaluation import evaluate_graphs
from macl.modalities.graphs.views import GraphViews
from macl.modalities.molecules.data import load_molecules, open_molecules
from macl.modalities.molecules.drawing import molecule_drawings
from macl.modalities.molecules.encoders import MoleculeGIN
from macl.modalities.molecules.features import MASK_ATOM, NO_CHIRALITY
from macl.modalities.molecules.finetune import evaluate_transfer
from macl.modalities.molecules.sections import (
    SECTIONS,
    MoleculeDataConfig,
    MoleculeEncoderConfig,
    MoleculeEvaluationConfig,
    MoleculeViewsConfig,
)
from macl.modalities.protocols import Dataset, Embed, Items
from macl.modalities.splits import has_classes
from macl.probes.score import Score


class Molecules(Modality):
    """SMILES as graphs of atoms. Both splits are the whole set: see `MoleculeDataConfig`."""

    name = "molecules"
    line_suffix = ".smi"
    sections = SECTIONS
    has_splits = False
    open_keys = frozenset({"column", "limit", "cache"})
    library = "pyg"

    load = staticmethod(load_molecules)
    open = staticmethod(open_molecules)

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """SMILES and structural formulas."""
        smiles = [dataset.names[i] for i in indices]
        return Items(smiles, drawings=molecule_drawings(smiles))

    def build_encoder(self, config: MoleculeEncoderConfig, dataset: Dataset) -> nn.Module:
        """The encoder; its input is the same for all molecules."""
        return MoleculeGIN(config.layers, config.hidden, config.dropout)

    def build_views(self, config: MoleculeViewsConfig, encoder: nn.Module) -> GraphViews:
        """GraphCL's; masked atoms are of the mask's type and of no chirality."""
        return GraphViews(config, fill=token_rows(MASK_ATOM, NO_CHIRALITY))

    def runnable_protocols(
        self, config: MoleculeEvaluationConfig, train: Dataset
    ) -> tuple[str, ...]:
        """Fine-tuning where MoleculeNet's folder is named, the others where there are classes."""
        tunes, probes = config.finetune.path is not None, has_classes(train)
        return tuple(n for n in config.protocols if (tunes if n == "finetune" else probes))

    def evaluate(
        self,
        config: MoleculeEvaluationConfig,
        data: MoleculeDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """Probes of frozen embeddings as for graphs, and fine-tuning on MoleculeNet."""
        frozen = tuple(protocol for protocol in config.protocols if protocol != "finetune")
        scores: list[Score] = []
        if frozen:
            settings = config.model_copy(update={"protocols": frozen})
            scores += evaluate_graphs(settings, load_molecules(data), embed, seed, encoder)
        if "finetune" in config.protocols:
            scores += evaluate_transfer(config.finetune, data.cache, encoder, seed)
        return scores


MODALITY = Molecules()
