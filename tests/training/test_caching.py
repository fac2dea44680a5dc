"""Gradient caching: the step of a batch that is encoded in chunks."""

from __future__ import annotations

import copy
import gc
from pathlib import Path
from typing import Any

import pytest
import torch
from ddp_ranks import IN, built, trained
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.multiprocessing.reductions import StorageWeakRef

import recipe_texts
from macl import modalities
from macl.caching import encode_in_chunks
from macl.losses import NTXent
from macl.methods import Method, SimCLR
from macl.methods.base import build_method
from macl.training.fit import train
from tiny import HERE, METHODS, recipe

PLAIN = (
    "precision=64",
    "encoder.width=null",
    "encoder={name: fragile:plain, allow_import: true}",
    "method.projector={widths: [same, 8], norm: none}",
)
"""No batch normalization and no dropout: chunks make no difference at all."""


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("chunk", [2, 3, 5, 15])
def test_steps_in_chunks_are_the_steps_at_once(method: str, chunk: int) -> None:
    """Weights, momentum encoder, queue and figures of a few steps in double precision."""
    chunked, whole = trained(method, 0, 1, chunk), trained(method, 0, 1)
    for name, value in whole["state"].items():
        torch.testing.assert_close(chunked["state"][name], value, rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(chunked["seen"], whole["seen"], rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
def test_a_run_in_chunks_is_the_run_at_once(method: str, tmp_path: Path) -> None:
    more = (*PLAIN, *METHODS[method], "monitor_every=0")
    if method == "nnclr":
        more += ("method.predictor={widths: [same], norm: none}",)
    runs = [
        train(recipe(*more, *chunk), tmp_path / str(len(chunk)), compute=HERE)
        for chunk in ((), ("chunk_size=5",))
    ]
    whole, chunked = (load_file(run.folder / "encoder.safetensors") for run in runs)
    for name in whole:
        torch.testing.assert_close(chunked[name], whole[name], rtol=1e-6, atol=1e-9)
    for one, two in zip(*(run.metrics() for run in runs), strict=True):
        assert one == pytest.approx(two, rel=1e-6)


def in_chunks_by_hand(method: Method, views: Any, count: int) -> tuple[Tensor, ...]:
    """One chunk after the other, with everything kept for one ordinary backward pass."""
    from macl.core import batching

    rows = torch.arange(batching.size(views[0])).tensor_split(count)
    parts = [method.encode(*(batching.take(view, part) for view in views)) for part in rows]
    return tuple(map(torch.cat, zip(*parts, strict=True)))


SMALL = {
    "digits": ["encoder.width=8"],
    "topics": ["encoder.width=16", "encoder.layers=1", "encoder.vocabulary=200"],
    "atlas": ["encoder.hidden=8"],
    "chembl": ["encoder.hidden=8", "data.limit=20"],
}


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(
    ("name", "precision"),
    [*((name, "32") for name in SMALL), ("digits", "bf16"), ("topics", "bf16")],
)
def test_chunks_replay_dropout_and_batch_norm(name: str, precision: str, method: str) -> None:
    """The gradient, the running statistics and the queue of chunks encoded and kept."""
    for package in {"topics": ["transformers"], "atlas": ["torch_geometric", "networkx"],
                    "chembl": ["torch_geometric", "rdkit"]}.get(name, []):  # fmt: skip
        pytest.importorskip(package)
    overrides = [o for o in METHODS[method] if "predictor" not in o]
    made = recipe_texts.load(name, [*SMALL[name], *overrides])
    modality = modalities.get(made.modality)
    dataset = modality.load(made.data, "train")
    torch.manual_seed(0)
    encoder = modality.build_encoder(made.encoder, dataset)
    chunked = build_method(made.method, made.loss, encoder).train()
    by_hand = copy.deepcopy(chunked)
    views = modality.build_views(made.views, encoder)(
        dataset.collate([dataset[i] for i in range(11)])
    )

    def step(taken: Method, chunk_size: int | None) -> float:
        torch.manual_seed(1)
        taken.prepare()
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            if chunk_size is None:
                embeddings = in_chunks_by_hand(taken, views, 3)
            else:
                embeddings = encode_in_chunks(taken.encode, views, chunk_size, taken)
            loss = taken.step(*embeddings).loss
        loss.backward()
        return loss.item()

    assert step(chunked, 4) == step(by_hand, None)
    parameters = zip(chunked.named_parameters(), by_hand.parameters(), strict=True)
    for (label, one), two in parameters:
        assert (one.grad is None) == (two.grad is None), label
        if one.grad is not None:
            torch.testing.assert_close(one.grad, two.grad, rtol=1e-4, atol=1e-6, msg=label)
    for (label, one), two in zip(chunked.named_buffers(), by_hand.buffers(), strict=True):
        assert torch.equal(one, two), label
    # And the random state afterwards is the same, whatever was replayed.
    step(chunked, 4)
    after = torch.rand(1)
    step(by_hand, None)
    assert torch.equal(torch.rand(1), after)


class Noting(nn.Module):
    """Notes what it encodes, and which of its activations are still there."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(IN, 4)
        self.sizes: list[int] = []
        self.activations: list[StorageWeakRef] = []

    def forward(self, x: Tensor) -> Tensor:
        self.sizes.append(len(x))
        hidden = self.linear(x).exp()  # which keeps its output for the backward pass
        self.activations.append(StorageWeakRef(hidden.untyped_storage()))
        return hidden * 2

    def alive(self) -> int:
        gc.collect()
        return sum(not activation.expired() for activation in self.activations)


@pytest.mark.parametrize(
    ("n", "chunk", "sizes"),
    [
        (9, None, [9]),
        (9, 9, [9]),
        (9, 4, [3, 3, 3]),
        (8, 3, [3, 3, 2]),
        (3, 2, [3]),
        (5, 2, [3, 2]),
    ],
)
def test_chunks_are_even_and_never_of_one(n: int, chunk: int | None, sizes: list[int]) -> None:
    encoder = Noting()
    method = SimCLR(encoder, nn.Identity(), NTXent())
    views = torch.randn(2, n, IN)
    embeddings = encode_in_chunks(method.encode, tuple(views), chunk, method)
    assert [len(z) for z in embeddings] == [n, n]
    assert encoder.sizes == [2 * size for size in sizes]  # both views in one forward


def test_activations_are_kept_for_no_chunk() -> None:
    encoder = Noting()
    method = SimCLR(encoder, nn.Identity(), NTXent())
    views = tuple(torch.randn(2, 12, IN))
    kept = encode_in_chunks(method.encode, views, None, method)
    assert encoder.alive() == 1
    del kept
    embeddings = encode_in_chunks(method.encode, views, 4, method)
    assert encoder.alive() == 0
    method.step(*embeddings).loss.backward()
    assert encoder.sizes == [24, *[8] * 3, *[8] * 3]  # at once, in chunks, and the chunks again


def test_moco_encodes_its_keys_once() -> None:
    """They carry no gradient, so there is nothing to replay."""
    method = built("moco")
    seen: list[int] = []
    method.key_encoder.register_forward_hook(lambda module, inputs, out: seen.append(len(out)))
    views = torch.randn(2, 12, IN, dtype=torch.float64)
    method.step(*encode_in_chunks(method.encode, tuple(views), 4, method)).loss.backward()
    assert sum(seen) == 12
