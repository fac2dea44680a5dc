"""Policies: which graph gets which augmentation, and what the two views are."""

from __future__ import annotations

import pytest
import torch
from pydantic import ValidationError
from torch_geometric.data import Batch, Data

from macl.modalities.graphs.augmentations import token_rows
from macl.modalities.graphs.modality import MODALITY
from macl.modalities.graphs.views import POLICIES, GraphViews, GraphViewsConfig, Policy
from macl.modalities.protocols import Views

COPIES, NODES = 3000, 20
RING = torch.arange(NODES)
EDGES = torch.stack([torch.cat([RING, (RING + 1) % NODES]), torch.cat([(RING + 1) % NODES, RING])])


@pytest.fixture(scope="module")
def rings() -> Batch:
    return Batch.from_data_list([Data(x=torch.ones(NODES, 2), edge_index=EDGES)] * COPIES)


def what_happened(batch: Batch) -> dict[str, int]:
    """Augmentations of a ring of 20 leave 18 nodes, 5 nodes, 18 edges or 2 masked nodes."""
    nodes = batch.ptr.diff()
    edges = torch.bincount(batch.batch[batch.edge_index[0]], minlength=COPIES) // 2
    masked = torch.zeros(COPIES, dtype=torch.long)
    masked.index_add_(0, batch.batch, (batch.x != 1).any(dim=1).long())
    return {
        "drop": int((nodes == 18).sum()),
        "subgraph": int((nodes == 5).sum()),
        "edge": int(((nodes == 20) & (edges == 18)).sum()),
        "mask": int(((nodes == 20) & (edges == 20) & (masked == 2)).sum()),
        "none": int(((nodes == 20) & (edges == 20) & (masked == 0)).sum()),
    }


@pytest.mark.parametrize("policy", list(POLICIES))
def test_each_graph_gets_one_augmentation_of_its_policy(rings: Batch, policy: Policy) -> None:
    torch.manual_seed(0)
    view = GraphViews(GraphViewsConfig()).augment(rings, policy)
    names = POLICIES[policy] or ("none",)
    seen = what_happened(view)
    assert sum(seen.values()) == COPIES
    for name, count in seen.items():
        expected = COPIES / len(names) if name in names else 0
        assert abs(count - expected) <= (4.5 * COPIES**0.5 / 2 if len(names) > 1 else 0), name


def test_the_anchor_is_the_graph_itself_by_default(rings: Batch) -> None:
    views = MODALITY.build_views(GraphViewsConfig(), torch.nn.Identity())
    assert isinstance(views, Views)
    first, second = views(rings)
    assert first is rings
    assert views.plain(rings) is rings
    assert second.num_nodes < rings.num_nodes
    assert second.num_graphs == COPIES


def test_each_view_has_its_own_policy_and_draw(rings: Batch) -> None:
    first, second = GraphViews(GraphViewsConfig(view1="mask", view2="mask"))(rings)
    assert not torch.equal(first.x, second.x)
    assert torch.equal(first.edge_index, second.edge_index)


def test_ratios_may_be_drawn_per_graph(rings: Batch) -> None:
    torch.manual_seed(0)
    config = GraphViewsConfig(view2="drop", drop_ratio=(0.0, 0.4))
    kept = GraphViews(config)(rings)[1].ptr.diff()
    assert kept.unique().tolist() == list(range(13, 21))  # ⌊20·0.4⌋ = 8 itself has probability 0


def test_options_reach_the_augmentations(rings: Batch) -> None:
    config = GraphViewsConfig(view1="subgraph", view2="edge", one_hop=True, add_edges=True)
    first, second = GraphViews(config)(rings)
    assert set(first.ptr.diff().tolist()) == {3}
    assert second.edge_index.size(1) > COPIES * 2 * 18
    masked = GraphViews(GraphViewsConfig(), fill=token_rows(7, 7)).augment(rings, "mask")
    assert set(masked.x.unique().tolist()) == {1.0, 7.0}


def test_views_repeat_with_the_seed(rings: Batch) -> None:
    views = GraphViews(GraphViewsConfig(view1="random4", view2="random4", drop_ratio=(0.1, 0.3)))

    def run(seed: int) -> tuple[Batch, Batch]:
        torch.manual_seed(seed)
        return views(rings)

    for one, other in zip(run(1), run(1), strict=True):
        assert torch.equal(one.x, other.x)
        assert torch.equal(one.edge_index, other.edge_index)
    assert run(1)[0].num_nodes != run(2)[0].num_nodes


@pytest.mark.parametrize(
    "values", [{"drop_ratio": 1.5}, {"mask_ratio": (0.5, 0.1)}, {"view1": "random5"}, {"drop": 0.1}]
)
def test_senseless_settings_are_rejected(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        GraphViewsConfig.model_validate(values)
