"""The encoder against numbers worked out by hand, and against a loop over edges."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch_geometric.data import Batch

from macl.modalities.molecules.data import MoleculeDataset
from macl.modalities.molecules.encoders import MoleculeGIN
from macl.modalities.molecules.features import NO_DIRECTION, SELF_LOOP, parse_smiles
from macl.modalities.molecules.modality import MODALITY
from macl.modalities.molecules.sections import MoleculeEncoderConfig

SMILES = ["C[C@H](N)C(=O)O", "F/C=C/F", "C", "*c1ccccc1", "[Na+].[Cl-]"]


def molecules(smiles: list[str]) -> Batch:
    return MoleculeDataset(smiles, parse_smiles(smiles)).collate(list(range(len(smiles))))


def test_formaldehyde_by_hand() -> None:
    """One layer, one dimension: atoms C = 2, O = 3; double bond 10, self-loop 100, direction 1000.

    C receives 2 + 3 + 100 + 10 + 2·1000 = 2115 and O receives the same. The MLP has two hidden
    units, max(0, y) and max(0, -y), and gives their sum with weights 2 and 5, plus 7: 4237.
    """
    encoder = MoleculeGIN(layers=1, hidden=1).double().eval()
    conv = encoder.convs[0]
    with torch.no_grad():
        for parameter in encoder.parameters():
            parameter.zero_()
        encoder.atom_type.weight[6] = 2
        encoder.atom_type.weight[8] = 3
        conv.bond_type.weight[1] = 10  # type: ignore[union-attr,index]
        conv.bond_type.weight[SELF_LOOP] = 100  # type: ignore[union-attr,index]
        conv.bond_direction.weight[NO_DIRECTION] = 1000  # type: ignore[union-attr,index]
        first, _, second = conv.mlp  # type: ignore[misc]
        first.weight.copy_(torch.tensor([[1.0], [-1.0]]))
        second.weight.copy_(torch.tensor([[2.0, 5.0]]))
        second.bias.fill_(7)
        encoder.norms[0].weight.fill_(1)  # type: ignore[operator]
    # Batch norm in eval mode with fresh statistics divides by √(1 + ε); the mean of equals is one.
    expected = (2 * 2115 + 7) / math.sqrt(1 + 1e-5)
    assert encoder(molecules(["C=O"])).item() == pytest.approx(expected, rel=1e-12)


def loop(encoder: MoleculeGIN, view: Batch) -> Tensor:
    """Messages one edge at a time, self-loops as edges, then the mean molecule by molecule."""
    nodes = [encoder.atom_type.weight[t] + encoder.chirality.weight[c] for t, c in view.x.tolist()]
    edges = [
        (u, v, t, d)
        for (u, v), (t, d) in zip(view.edge_index.T.tolist(), view.edge_attr.tolist(), strict=True)
    ]
    edges += [(v, v, SELF_LOOP, NO_DIRECTION) for v in range(len(nodes))]
    for depth, (conv, norm) in enumerate(zip(encoder.convs, encoder.norms, strict=True)):
        sums = [torch.zeros_like(node) for node in nodes]
        for u, v, t, d in edges:
            sums[v] = sums[v] + nodes[u] + conv.bond_type.weight[t] + conv.bond_direction.weight[d]
        stacked = norm(conv.mlp(torch.stack(sums)))
        nodes = list(stacked if depth == len(encoder.convs) - 1 else stacked.relu())
    bounds = zip(view.ptr[:-1].tolist(), view.ptr[1:].tolist(), strict=True)
    return torch.stack([torch.stack(nodes[start:stop]).mean(0) for start, stop in bounds])


@pytest.mark.parametrize("training", [False, True])
def test_equals_a_loop_over_edges(training: bool) -> None:
    torch.manual_seed(0)
    encoder = MoleculeGIN(layers=3, hidden=7).double().train(training)
    view = molecules(SMILES)
    torch.testing.assert_close(encoder(view), loop(encoder, view))
    got = torch.autograd.grad(encoder(view).square().sum(), list(encoder.parameters()))
    expected = torch.autograd.grad(loop(encoder, view).square().sum(), list(encoder.parameters()))
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other)


def test_a_molecule_is_the_same_alone_and_in_company() -> None:
    torch.manual_seed(0)
    encoder = MoleculeGIN(layers=2, hidden=9).eval()
    together = encoder(molecules(SMILES))
    alone = torch.cat([encoder(molecules([smiles])) for smiles in SMILES])
    torch.testing.assert_close(together, alone)


def test_stereochemistry_is_seen() -> None:
    torch.manual_seed(0)
    encoder = MoleculeGIN(layers=2, hidden=9).eval()
    left, right, trans, cis = encoder(
        molecules(["C[C@H](N)O", "C[C@@H](N)O", "F/C=C/F", "F/C=C\\F"])
    )
    assert not torch.allclose(left, right)
    assert not torch.allclose(trans, cis)


def test_the_last_layer_has_no_relu() -> None:
    torch.manual_seed(0)
    assert (MoleculeGIN(layers=2, hidden=9).eval()(molecules(SMILES)) < 0).any()


def test_defaults_are_the_papers() -> None:
    encoder = MODALITY.build_encoder(MoleculeEncoderConfig(), None)
    assert encoder.out_dim == 300
    assert len(encoder.convs) == 5
    assert encoder.dropout.p == 0
    # embeddings 120 + 4; per layer 6 + 3 embeddings, MLP 300-600-300 with bias, batch norm
    layer = 9 * 300 + 300 * 600 + 600 + 600 * 300 + 300 + 2 * 300
    assert sum(p.numel() for p in encoder.parameters()) == 124 * 300 + 5 * layer


def test_dropout_acts_in_training_only() -> None:
    torch.manual_seed(0)
    encoder = MODALITY.build_encoder(MoleculeEncoderConfig(layers=2, hidden=8, dropout=0.5), None)
    assert isinstance(encoder.dropout, nn.Dropout)
    view = molecules(SMILES)
    assert not torch.equal(encoder(view), encoder(view))
    encoder.eval()
    assert torch.equal(encoder(view), encoder(view))
