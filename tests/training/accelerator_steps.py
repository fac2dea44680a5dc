"""Training steps on a pretended accelerator, in a process of its own: what would make it wait.

    python accelerator_steps.py CASE...

prints one line of JSON: case → reads by the host and copies from it in a step and its row of
metrics. torch allows one such device in a process, and its threads end with the process alone.
"""

from __future__ import annotations

import json
import os
import sys
import warnings
from itertools import islice
from typing import Any

import torch
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

import pretend_gpu
import recipe_texts
from macl import modalities
from macl.core.sharding import ShardedBatches
from macl.methods.base import build_method
from macl.training.fit import training_context
from macl.training.loader import ResumableLoader
from macl.training.module import ContrastiveModule

SMALL = {
    "digits": ("encoder.width=4", "data.limit=96"),
    "digits-captions": ("data.limit=96",),
    "topics": ("encoder.width=16", "encoder.layers=1", "encoder.vocabulary=200", "data.limit=96"),
    "atlas": ("encoder.hidden=8", "data.limit=96"),
}
STEPS = 3
"""The first may copy constants, the last is logged."""


class Backend(_DummyBackendModule):  # type: ignore[misc]
    """What autocast asks a device for."""

    def get_amp_supported_dtype(self) -> list[torch.dtype]:
        return [torch.bfloat16]


def measured(case: str, recorder: pretend_gpu.Recorder) -> dict[str, Any]:
    """`case`: a recipe and overrides."""
    name, *overrides = case.split()
    recipe = recipe_texts.load(name, [*SMALL[name], "batch_size=16", *overrides])
    modality = modalities.get(recipe.modality)
    dataset = modality.load(recipe.data, "train")
    torch.manual_seed(0)
    encoder = modality.build_encoder(recipe.encoder, dataset)
    views = modality.build_views(recipe.views, encoder)
    method = build_method(recipe.method, recipe.loss, encoder)
    batches = ShardedBatches(len(dataset), recipe.batch_size, 0, 0, 1, True)
    context = training_context(recipe, dataset, len(batches))
    module = ContrastiveModule(method, views, recipe, context, dataset)
    module.log_dict = lambda *_, **__: None  # type: ignore[assignment, method-assign]
    module.train().to(pretend_gpu.GPU)
    found: dict[str, Any] = {}
    for number, batch in enumerate(islice(ResumableLoader(dataset, batches, 0, views), STEPS)):
        recorder.clear()
        module.journal.is_logged = number == STEPS - 1
        moved = module.transfer_batch_to_device(batch, pretend_gpu.GPU, 0)
        module.training_step(moved, number).backward()
        if number:
            found.setdefault("reads", []).extend(recorder.reads)
            found.setdefault("copies", []).extend(recorder.places)
    return found | {"operators": recorder.operators, "row": sorted(module.journal.row)}


def main(cases: list[str]) -> None:
    _setup_privateuseone_for_python_backend("pretended", Backend())
    pretend_gpu.GPU = torch.device("pretended:0")
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)
    torch.Tensor.pin_memory = lambda self, *_: self  # type: ignore[method-assign, assignment]
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    with pretend_gpu.Recorder() as recorder:
        print(json.dumps({case: measured(case, recorder) for case in cases}))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1:])
