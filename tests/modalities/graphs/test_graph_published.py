"""GraphCL as its published code has it, and units that training never used."""

from __future__ import annotations

import torch
from torch import nn
from torch_geometric.data import Batch, Data

from macl.modalities.graphs.augmentations import add_self_loops
from macl.modalities.graphs.batching import take_graphs
from macl.modalities.graphs.dead_batchnorm import inactive_units, without_inactive_units
from macl.modalities.graphs.encoders import GIN
from macl.modalities.graphs.evaluation import evaluate_graphs
from macl.modalities.graphs.sections import GraphEvaluationConfig, GraphViewsConfig
from macl.modalities.graphs.views import GraphViews
from macl.recipes import available, load


def graphs(*sizes: int) -> Batch:
    """Paths with a random feature per node."""
    made = []
    for size in sizes:
        up = torch.stack([torch.arange(size - 1), torch.arange(1, size)])
        made.append(Data(x=torch.rand(size, 2), edge_index=torch.cat([up, up.flip(0)], 1)))
    return Batch.from_data_list(made)


def loops(batch: Batch) -> int:
    return int((batch.edge_index[0] == batch.edge_index[1]).sum())


def test_self_loops_by_loop() -> None:
    batch = graphs(3, 1, 4)
    looped = add_self_loops(batch)
    expected = set(map(tuple, batch.edge_index.T.tolist())) | {(n, n) for n in range(8)}
    assert sorted(map(tuple, looped.edge_index.T.tolist())) == sorted(expected)
    # The edges of a graph still lie together: cutting one out finds them.
    for number, (size, edges) in enumerate(((3, 4), (1, 0), (4, 6))):
        alone = take_graphs(looped, torch.tensor([number]))
        assert (alone.num_nodes, loops(alone), alone.num_edges) == (size, size, size + edges)


def test_the_features_of_self_loops_are_zero() -> None:
    batch = graphs(3, 2)
    batch.edge_attr = torch.ones(batch.num_edges, 2)
    looped = add_self_loops(batch)
    on_loop = looped.edge_index[0] == looped.edge_index[1]
    assert looped.edge_attr[on_loop].eq(0).all()
    assert looped.edge_attr[~on_loop].eq(1).all()


def test_self_loops_are_on_the_anchor_and_in_evaluation_alone() -> None:
    batch = graphs(10, 12)
    views = GraphViews(GraphViewsConfig(view2="random4", self_loops=True))
    anchor, augmented = views(batch)
    assert (loops(anchor), loops(views.plain(batch)), loops(augmented)) == (22, 22, 0)
    clean = GraphViews(GraphViewsConfig(view2="random4"))
    anchor, augmented = clean(batch)
    assert (loops(anchor), loops(clean.plain(batch)), loops(augmented)) == (0, 0, 0)


def test_published_recipes_have_the_published_behavior() -> None:
    names = [name for name in available() if name.startswith("graphcl-")]
    assert len(names) == 7
    for name in names:
        views = load(name).views
        assert views.one_hop, name
        assert views.self_loops is (name != "graphcl-zinc"), name
        assert "Inferred" in available()[name].read_text(), name


def dead_encoder() -> GIN:
    """Trained without ever activating unit 0 of its first layer."""
    torch.manual_seed(0)
    encoder = GIN(2, hidden=4, layers=2)
    last = encoder.convs[0].get_submodule("nn")[-1]
    with torch.no_grad():
        last.bias.copy_(torch.tensor([-5.0, 3.0, 3.0, 3.0]))
    encoder.train()
    for _ in range(40):
        encoder(graphs(5, 6, 7))
    return encoder.eval()


def test_an_inactive_unit_is_found() -> None:
    encoder = dead_encoder()
    mask = inactive_units(encoder.norms[0])
    assert mask is not None
    assert mask.tolist() == [True, False, False, False]
    assert inactive_units(nn.Linear(2, 2)) is None
    assert inactive_units(nn.BatchNorm1d(3)) is None  # untrained: no statistics yet
    assert inactive_units(nn.BatchNorm1d(3, track_running_stats=False)) is None
    small = nn.BatchNorm1d(2)
    small(torch.rand(8, 2))
    small.running_var[1] = 5e-5
    assert inactive_units(small).tolist() == [False, True]


def test_an_inactive_unit_no_longer_explodes() -> None:
    """A graph far from the training data activates it; its column is then the bias, summed."""
    encoder = dead_encoder()
    strange = graphs(5, 5)
    last = encoder.convs[0].get_submodule("nn")[-1]
    with torch.no_grad():
        last.bias[0] = 1.0  # stands for an input that reaches the unit
        encoder.norms[0].bias[0] = 0.5
        plain = encoder(strange)
        with without_inactive_units(encoder) as count:
            handled = encoder(strange)
        assert count == int(inactive_units(encoder.norms[0]).sum()) + int(
            inactive_units(encoder.norms[1]).sum()
        )
        assert torch.equal(encoder(strange), plain)  # as it was
    assert plain[:, 0].abs().min() > 30
    torch.testing.assert_close(handled[:, 0], torch.full((2,), 2.5))
    torch.testing.assert_close(handled[:, 1:4], plain[:, 1:4])


class Labeled:
    """Forty embeddings and their classes."""

    labels = torch.arange(40) % 2
    names: tuple[str, ...] = ()


def test_the_plain_figure_is_beside_the_handled_one() -> None:
    config = GraphEvaluationConfig(protocols=("svm", "knn"), folds=2, inner_folds=2)
    encoder = dead_encoder()
    inputs = graphs(*([5] * 40))

    def embed(dataset: object) -> torch.Tensor:
        with torch.no_grad():
            return encoder(inputs)

    scores = evaluate_graphs(config, Labeled(), embed, 0, encoder)  # type: ignore[arg-type]
    assert [(s.protocol, s.metric) for s in scores] == [
        ("svm", "accuracy"),
        ("svm", "accuracy-plain"),
        ("knn", "accuracy"),
        ("knn", "accuracy-plain"),
    ]
    assert all(score.details["inactive_units"] >= 1 for score in scores)
    healthy = nn.Linear(2, 2)
    scores = evaluate_graphs(config, Labeled(), embed, 0, healthy)  # type: ignore[arg-type]
    assert [score.metric for score in scores] == ["accuracy", "accuracy"]
