"""The views of molecules: GraphCL's defaults, masked atoms, valid batches."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Batch

from macl.modalities.molecules.data import MoleculeDataset
from macl.modalities.molecules.encoders import MoleculeGIN
from macl.modalities.molecules.features import MASK_ATOM, parse_smiles
from macl.modalities.molecules.modality import MODALITY, MoleculeViewsConfig

SMILES = ["CCCCCCCCCC", "C[C@H](N)C(=O)O", "c1ccccc1CCO", "C", "[Na+].[Cl-]"] * 20


def molecules() -> Batch:
    return MoleculeDataset(SMILES, parse_smiles(SMILES)).collate(list(range(len(SMILES))))


def test_both_views_are_random_and_reproducible() -> None:
    views, batch = MODALITY.build_views(MoleculeViewsConfig(), nn.Identity()), molecules()
    torch.manual_seed(0)
    one, two = views(batch)
    assert one.x.shape != two.x.shape
    torch.manual_seed(0)
    again, _ = views(batch)
    assert torch.equal(one.x, again.x)
    assert torch.equal(one.edge_index, again.edge_index)


def test_each_molecule_loses_a_fifth_or_keeps_a_fifth() -> None:
    torch.manual_seed(0)
    for view in MODALITY.build_views(MoleculeViewsConfig(), nn.Identity())(molecules()):
        decanes = view.ptr.diff()[::5]
        assert set(decanes.tolist()) == {8, 3}
        assert (view.ptr.diff() >= 1).all()


def test_bonds_keep_their_features() -> None:
    batch = molecules()
    torch.manual_seed(0)
    view, _ = MODALITY.build_views(MoleculeViewsConfig(), nn.Identity())(batch)
    kinds = {
        (*sorted((int(batch.x[u, 0]), int(batch.x[v, 0]))), *kind)
        for (u, v), kind in zip(batch.edge_index.T.tolist(), batch.edge_attr.tolist(), strict=True)
    }
    assert len(view.edge_attr) == view.edge_index.size(1) > 0
    for (u, v), kind in zip(view.edge_index.T.tolist(), view.edge_attr.tolist(), strict=True):
        assert (*sorted((int(view.x[u, 0]), int(view.x[v, 0]))), *kind) in kinds


def test_masked_atoms_have_the_masks_type() -> None:
    batch = molecules()
    config = MoleculeViewsConfig(view1="mask", view2="none", mask_ratio=0.5)
    view, plain = MODALITY.build_views(config, nn.Identity())(batch)
    masked = view.x[:, 0] == MASK_ATOM
    assert masked.view(-1).sum() == sum(n // 2 for n in batch.ptr.diff().tolist())
    assert (view.x[masked, 1] == 0).all()
    assert torch.equal(view.x[~masked], batch.x[~masked])
    assert torch.equal(plain.x, batch.x)


def test_views_can_be_encoded() -> None:
    torch.manual_seed(0)
    encoder, config = MoleculeGIN(2, 8), MoleculeViewsConfig(view1="random4", view2="random4")
    for view in MODALITY.build_views(config, nn.Identity())(molecules()):
        assert encoder(view).shape == (len(SMILES), 8)
        assert encoder(view).isfinite().all()
