# ---
# jupyter:
#   jupytext:
#     text_representation:
#       extension: .py
#       format_name: percent
#   kernelspec:
#     display_name: Python 3
#     language: python
#     name: python3
# ---

# %% [markdown]
# # 6. From one process to many
#
# With data parallelism each process sees a part of the batch. A contrastive loss wants the *whole*
# batch: its negatives are in all parts. `gather=True` contrasts with the keys of all processes and
# gives exactly the gradient of one process that holds everything. This tutorial shows it with two
# processes on this machine; the same script runs on many GPUs.
#
# It needs `pip install macl`, and matplotlib for the picture.

# %%
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## The script
#
# An ordinary `DistributedDataParallel` loop. Three things concern the loss:
#
# - every process takes its own slice of one global batch,
# - the criterion has `gather=True`,
# - nothing else: no gathering by hand, no scaling of the loss or of the gradients.

# %%
script = work / "train.py"
script.write_text("""
import json, os, sys
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from macl import MACL

torch.set_num_threads(1)
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")


def train(gather):
    torch.manual_seed(0)  # the same initial weights everywhere
    model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    if world > 1:
        model = DistributedDataParallel(model)
    criterion = MACL(temperature=0.1, alpha=0.5, threshold=0.5, gather=gather)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    generator = torch.Generator().manual_seed(0)  # the same batches and views everywhere
    samples = torch.randn(1000, 8, generator=generator) @ torch.randn(8, 64, generator=generator)
    rows = []
    for step in range(60):
        batch = samples[torch.randint(0, 1000, (32,), generator=generator)]
        views = [batch + torch.randn(batch.shape, generator=generator) for _ in range(2)]
        part = slice(rank * 32 // world, (rank + 1) * 32 // world)  # the slice of this process
        joined = model(torch.cat([view[part] for view in views]))
        contrast = criterion.contrast(*joined.chunk(2))
        optimizer.zero_grad()
        contrast.loss.backward()
        optimizer.step()
        figures = torch.stack([contrast.loss.detach(), contrast.gradient_scale.mean()])
        if world > 1:
            dist.all_reduce(figures)  # the sum over processes
        rows.append((figures / world).tolist())
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    return {"rows": rows, "weights": weights.tolist()}


results = {"gather": train(gather=True), "apart": train(gather=False)}
if rank == 0:
    with open(sys.argv[1], "w") as file:
        json.dump(results, file)
if world > 1:
    dist.barrier()  # no process exits while another still works
    dist.destroy_process_group()
""")


def launch(processes):
    """Run the script with that many processes; returns what it wrote."""
    output = work / f"{processes}.json"
    command = [sys.executable]
    if processes > 1:  # what the command `torchrun` calls
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, str(script), str(output)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(output.read_text())


# %% [markdown]
# ## One process, two with `gather`, two without
#
# On a machine with GPUs the same file is started as `torchrun --nproc-per-node=8 train.py
# out.json` (with the model and the batches moved to the device), and on several machines with
# `--nnodes` and `--rdzv-endpoint` in addition.

# %%
alone, two = launch(1), launch(2)
runs = {
    "1 process": alone["gather"],
    "2 processes, gather=True": two["gather"],
    "2 processes, gather=False": two["apart"],
}

# %%
# alt: Loss and mean gradient scale over the steps: one process, two with gather, two without
figure, axes = plt.subplots(1, 2, figsize=(10, 3.4))
styles = [{"linewidth": 4, "alpha": 0.4}, {"linestyle": "--"}, {"linestyle": ":"}]
for (name, run), style in zip(runs.items(), styles):
    for axis, values in zip(axes, np.array(run["rows"]).T):
        axis.plot(values, label=name, **style)
    change = np.abs(np.array(run["weights"]) - alone["gather"]["weights"]).max()
    print(f"{name:26} weights differ from one process's by at most {change:.1e}")
for axis, name in zip(axes, ("loss", "mean W")):
    axis.set(xlabel="step", title=name)
axes[0].legend()
figure.tight_layout()

# %% [markdown]
# With `gather=True` the two processes compute the run of one; what remains is rounding, as sums are
# taken in another order. Without it each process contrasts 16 pairs among themselves: a different
# loss with fewer negatives, and a smaller W (tutorial 1 says what that means).
#
# ## Memory
#
# `gather=True` holds the keys of all processes on each of them. `gather="ring"` passes them on
# block by block instead: the same loss and gradients with the memory of two blocks. It pays when
# the keys of all processes do not fit beside the model.
#
# ## With the command line
#
# `macl train` always gathers. `batch_size` is the global batch, and the result does not depend on
# the number of processes, except for batch-norm statistics on the CPU, which each process has of
# its own:
#
#     macl train digits --devices 2 --out run
#     torchrun --nproc-per-node=8 -m macl train simclr-imagenet100 --data imagenet100/ --out run
#
# ## What to try next
#
# - Replace `gather=True` by `gather="ring"` in the script. The curves stay.
# - Give the script a batch-norm layer: then one process and two differ on the CPU. On GPUs,
#   `SyncBatchNorm` makes them agree.
# - Batches beyond memory in one process: `chunk_size=256` in a recipe encodes in chunks with the
#   exact gradient.
# - The page *Scaling* of the documentation has the commands for SLURM and what happens when a
#   process is lost.
# - `examples/torch_ddp.py` is this script as a file that runs by itself.
