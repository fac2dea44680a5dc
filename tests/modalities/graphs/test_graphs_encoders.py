"""GraphCL's GIN against values computed by hand, and encoders by import path."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn
from torch_geometric.data import Batch, Data
from torch_geometric.nn import GCN

from macl.core.errors import UserError
from macl.modalities.graphs.batching import take_graphs
from macl.modalities.graphs.data import GraphDataConfig, load_graphs
from macl.modalities.graphs.encoders import GIN, GraphEncoderConfig, build_graph_encoder
from macl.modalities.graphs.modality import MODALITY


class Whole(nn.Module):
    """A user's complete graph encoder."""

    def __init__(self, in_channels: int, hidden: int, layers: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_channels, hidden)
        self.out_dim = hidden

    def forward(self, view: Batch) -> torch.Tensor:
        return self.linear(view.x[view.ptr[:-1]])


def nothing(in_channels: int, hidden: int, layers: int) -> object:
    return object()


def path_graph() -> Batch:
    edge_index = torch.tensor([[0, 1, 1, 2], [1, 0, 2, 1]])
    return Batch.from_data_list(
        [Data(x=torch.tensor([[1.0], [2.0], [4.0]]), edge_index=edge_index)]
    )


def set_linear(layer: nn.Linear, weight: list[list[float]], bias: list[float]) -> None:
    layer.weight.data = torch.tensor(weight)
    layer.bias.data = torch.tensor(bias)


def test_two_layers_on_a_path_of_three_nodes_by_hand() -> None:
    encoder = GIN(1, hidden=1, layers=2).eval()
    first, second = (conv.nn for conv in encoder.convs)
    set_linear(first[0], [[1.0]], [-4.0])
    set_linear(first[2], [[-1.0]], [2.5])
    set_linear(second[0], [[2.0]], [0.0])
    set_linear(second[2], [[1.0]], [-1.0])
    encoder.norms[0].running_mean.fill_(1.0)  # type: ignore[operator, union-attr]
    encoder.norms[0].eps = 0.0
    encoder.norms[1].eps = 0.0
    # Sums over node and neighbors: 3, 7, 6. MLP: ReLU(s-4) = 0, 3, 2; 2.5-that = 2.5, -0.5, 0.5.
    # ReLU, then batch norm with mean 1: 1.5, -1, -0.5, which sum to 0 (in the other order, to 1.5).
    # Second layer: sums 0.5, 0, -1.5; ReLU(2s) = 1, 0, 0; minus 1: 0, -1, -1; ReLU: 0, 0, 0.
    assert encoder(path_graph()).tolist() == [[0.0, 0.0]]
    set_linear(second[2], [[3.0]], [-1.0])
    assert encoder(path_graph()).tolist() == [[0.0, 2.0]]


def test_defaults_are_graphcl() -> None:
    encoder = GIN(7)
    assert encoder.out_dim == 96
    linears = [module for module in encoder.modules() if isinstance(module, nn.Linear)]
    assert [tuple(layer.weight.shape) for layer in linears] == [(32, 7)] + [(32, 32)] * 5
    for layer in linears:
        assert layer.bias.abs().max() == 0
        bound = (6 / sum(layer.weight.shape)) ** 0.5
        assert 0.9 * bound < layer.weight.abs().max() <= bound
    assert all(conv.eps == 0 and not conv.eps.requires_grad for conv in encoder.convs)


@pytest.mark.parametrize("pool", ["sum", "mean", "max"])
def test_graphs_in_a_batch_are_encoded_as_if_alone(pool: str) -> None:
    dataset = load_graphs(GraphDataConfig())
    config = GraphEncoderConfig.model_validate({"hidden": 8, "layers": 4, "pool": pool})
    torch.manual_seed(0)
    encoder = MODALITY.build_encoder(config, dataset).eval()
    batch = dataset.collate([700, 3, 1200, 40])
    whole = encoder(batch)
    assert whole.shape == (4, encoder.out_dim) == (4, 32)
    for i in range(4):
        alone = encoder(take_graphs(batch, torch.tensor([i])))
        torch.testing.assert_close(whole[i : i + 1], alone)
    assert (whole[0] - whole[1]).abs().max() > 1e-3


def test_wrong_number_of_features_is_explained() -> None:
    with pytest.raises(UserError, match="1 node features and the encoder takes 3"):
        GIN(3)(path_graph())


def test_a_pyg_model_by_import_path_is_pooled() -> None:
    config = GraphEncoderConfig(
        name="torch_geometric.nn:GCN", hidden=5, layers=2, allow_import=True
    )
    encoder = build_graph_encoder(config, 1)
    batch = path_graph()
    assert encoder.out_dim == 5
    model = encoder.model
    assert isinstance(model, GCN)
    expected = model(batch.x, batch.edge_index).sum(0, keepdim=True)
    torch.testing.assert_close(encoder(batch), expected)


def test_a_complete_encoder_by_import_path_is_left_alone() -> None:
    config = GraphEncoderConfig(name=f"{__name__}:Whole", hidden=6, allow_import=True)
    encoder = build_graph_encoder(config, 1)
    assert isinstance(encoder, Whole)
    assert encoder(path_graph()).shape == (1, 6)


@pytest.mark.parametrize(
    ("name", "allowed", "complaint"),
    [
        ("gni", True, "Did you mean 'gin'"),
        ("torch_geometric.nn:GCN", False, "encoder.allow_import=true"),
        ("no_such_package:thing", True, "cannot be imported"),
        ("torch_geometric.nn:NoSuch", True, "cannot be imported"),
        (":thing", True, "cannot be imported"),
        ("torch.nn:Identity", True, "must give a module with `out_channels`"),
        ("torch.nn:ReLU", True, "must be callable as"),
        (f"{__name__}:nothing", True, "must give a module with `out_channels`"),
    ],
)
def test_wrong_names_are_explained(name: str, allowed: bool, complaint: str) -> None:
    with pytest.raises(UserError, match=complaint):
        build_graph_encoder(GraphEncoderConfig(name=name, allow_import=allowed), 1)


@pytest.mark.parametrize("name", ["gin", "torch_geometric.nn:GCN"])
def test_a_saved_encoder_needs_its_folder_alone(tmp_path: Path, name: str) -> None:
    config = GraphEncoderConfig(name=name, hidden=4, allow_import=True)
    dataset = load_graphs(GraphDataConfig(unlabeled="degree", max_degree=6))
    encoder = MODALITY.build_encoder(config, dataset)
    MODALITY.save_encoder(encoder, tmp_path, {"recipe": "toy"})
    loaded = MODALITY.load_encoder(config, tmp_path)
    batch = dataset.collate([1000, 20])
    assert torch.equal(loaded.eval()(batch), encoder.eval()(batch))


def test_an_encoder_of_another_modality_is_refused(tmp_path: Path) -> None:
    super(type(MODALITY), MODALITY).save_encoder(nn.Linear(2, 2), tmp_path, {})
    with pytest.raises(UserError, match="not saved by a run on graphs"):
        MODALITY.load_encoder(GraphEncoderConfig(), tmp_path)
