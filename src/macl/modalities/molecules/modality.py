"""The molecules modality."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import nn

from macl.core.weights import load_weights
from macl.modalities.base import ENCODER_FILE, Modality
from macl.modalities.graphs.views import GraphViews
from macl.modalities.items import Items
from macl.modalities.molecules.data import load_molecules, open_molecules
from macl.modalities.molecules.drawing import molecule_drawings
from macl.modalities.molecules.encoders import build_molecule_encoder
from macl.modalities.molecules.evaluation import evaluate_molecules
from macl.modalities.molecules.sections import (
    MoleculeDataConfig,
    MoleculeEncoderConfig,
    MoleculeEvaluationConfig,
    MoleculeViewsConfig,
)
from macl.modalities.molecules.views import molecule_views
from macl.modalities.protocols import Dataset, Embed
from macl.probes.score import Score


class Molecules(
    Modality[
        MoleculeDataConfig, MoleculeViewsConfig, MoleculeEncoderConfig, MoleculeEvaluationConfig
    ]
):
    """SMILES as graphs of atoms. Both splits are the whole set: see `MoleculeDataConfig`."""

    name = "molecules"
    line_suffix = ".smi"
    DataConfig = MoleculeDataConfig
    ViewsConfig = MoleculeViewsConfig
    EncoderConfig = MoleculeEncoderConfig
    EvaluationConfig = MoleculeEvaluationConfig
    has_splits = False
    open_keys = frozenset({"column", "limit", "cache"})
    library = "pyg"

    def load(self, config: MoleculeDataConfig, split: str) -> Dataset:
        """Every molecule of the set, whatever the split."""
        return load_molecules(config)

    def open(self, config: MoleculeDataConfig, path: Path) -> Dataset:
        """A file of SMILES."""
        return open_molecules(config, path)

    def describe_items(self, dataset: Dataset, indices: Sequence[int]) -> Items:
        """SMILES and structural formulas."""
        smiles = [dataset.names[i] for i in indices]
        return Items(smiles, drawings=molecule_drawings(smiles))

    def build_encoder(self, config: MoleculeEncoderConfig, dataset: Dataset) -> nn.Module:
        """The encoder; its input is the same for all molecules."""
        return build_molecule_encoder(config)

    def load_encoder(self, config: MoleculeEncoderConfig, folder: Path) -> nn.Module:
        """The same encoder with the run's weights."""
        encoder = build_molecule_encoder(config)
        load_weights(encoder, folder / ENCODER_FILE)
        return encoder

    def build_views(self, config: MoleculeViewsConfig, encoder: nn.Module) -> GraphViews:
        """GraphCL's augmentations."""
        return molecule_views(config)

    def evaluate(
        self,
        config: MoleculeEvaluationConfig,
        data: MoleculeDataConfig,
        embed: Embed,
        encoder: nn.Module,
        seed: int,
    ) -> list[Score]:
        """Fine-tuning on MoleculeNet, and probes of frozen embeddings."""
        return evaluate_molecules(config, data, embed, encoder, seed)


MODALITY = Molecules()
