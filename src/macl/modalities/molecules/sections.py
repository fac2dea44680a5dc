"""The recipe sections of molecules, without torch or rdkit."""

from __future__ import annotations

from typing import ClassVar, Literal, get_args

from pydantic import Field

from macl.core.section import AbsolutePath, Section
from macl.modalities.graphs.sections import GraphEvaluationConfig, GraphViewsConfig, Policy, Ratio

SetName = Literal["BBBP", "Tox21", "ToxCast", "SIDER", "ClinTox", "MUV", "HIV", "BACE"]
"""The sets of MoleculeNet in the paper's transfer table."""
MoleculeProtocol = Literal["finetune", "svm", "logistic", "knn"]


class MoleculeDataConfig(Section):
    """Which molecules. They have no split: training sees them all, never their class."""

    user_only: ClassVar[frozenset[str]] = frozenset({"cache"})

    path: AbsolutePath | None = None
    """A .csv, .tsv (also .gz), .parquet or .smi file; None: the ChEMBL set inside rdkit."""
    column: str | None = None
    """The column with the SMILES; None: the one called "smiles" or "mol"."""
    label: str | None = None
    """A column of classes, for evaluation; None: no classes."""
    limit: int | None = Field(default=None, ge=1)
    """At most so many molecules, a random choice that is always the same."""
    cache: AbsolutePath | None = None
    """Where parsed molecules are kept; by default macl/molecules in the user's cache folder."""

    def check_files(self) -> None:
        """The columns of a table."""
        from macl.modalities.molecules.tables import column_names, smiles_column
        from macl.modalities.tables import require_columns

        if self.path is None or not self.path.exists():
            return
        names = column_names(self.path)
        smiles_column(self.path, names, self.column)
        require_columns([self.label] if self.label else [], names, self.path)


class MoleculeViewsConfig(GraphViewsConfig):
    """How the two views are made. Defaults are GraphCL's for chemistry: both are random."""

    view1: Policy = "random2"
    view2: Policy = "random2"
    drop_ratio: Ratio = 0.2


class MoleculeEncoderConfig(Section):
    """The encoder's size. Defaults are the paper's."""

    layers: int = Field(default=5, ge=1)
    hidden: int = Field(default=300, ge=1)
    dropout: float = Field(default=0.0, ge=0, lt=1)
    """During pre-training; fine-tuning has its own."""


class FineTuneConfig(Section):
    """The paper's transfer protocol: how, on which sets, how often. Defaults: Hu et al. (2020)."""

    epochs: int = Field(default=100, ge=1)
    batch_size: int = Field(default=32, ge=2)
    lr: float = Field(default=1e-3, gt=0)
    """Of Adam, for the encoder and the head."""
    dropout: float = Field(default=0.5, ge=0, lt=1)
    """Inside the encoder."""
    path: AbsolutePath | None = None
    """The folder with the files of MoleculeNet, named as PyG names them."""
    sets: tuple[SetName, ...] = Field(default=get_args(SetName), min_length=1)
    seeds: int = Field(default=10, ge=1)
    """Fine-tunings of each set: with the run's seed and the ones after it."""


class MoleculeEvaluationConfig(GraphEvaluationConfig):
    """Which protocols, and their settings. The frozen ones cross-validate as for graphs."""

    protocols: tuple[MoleculeProtocol, ...] = ("knn", "logistic")  # type: ignore[assignment]
    finetune: FineTuneConfig = FineTuneConfig()


SECTIONS: dict[str, type[Section]] = {
    "data": MoleculeDataConfig,
    "views": MoleculeViewsConfig,
    "encoder": MoleculeEncoderConfig,
    "evaluation": MoleculeEvaluationConfig,
}
