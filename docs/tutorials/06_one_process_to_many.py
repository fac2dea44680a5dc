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
# It needs `pip install macl`, and scikit-learn and matplotlib.

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
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from macl import MACL

torch.set_num_threads(1)
gather, output = sys.argv[1] == "gather", sys.argv[2]
world, rank = int(os.environ.get("WORLD_SIZE", 1)), int(os.environ.get("RANK", 0))
if world > 1:
    dist.init_process_group("nccl" if torch.cuda.is_available() else "gloo")

images = torch.tensor(load_digits().images, dtype=torch.float32).flatten(1) / 16
torch.manual_seed(0)  # the same initial weights everywhere
model = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
if world > 1:
    model = DistributedDataParallel(model)
criterion = MACL(temperature=0.1, alpha=0.5, threshold=0.5, gather=gather)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
generator = torch.Generator().manual_seed(0)  # the same batches and views everywhere
rows = []
for step in range(60):
    batch = images[torch.randint(0, len(images), (32,), generator=generator)]
    views = [batch + 0.2 * torch.randn(batch.shape, generator=generator) for _ in range(2)]
    part = slice(rank * 32 // world, (rank + 1) * 32 // world)  # the slice of this process
    joined = model(torch.cat([view[part] for view in views]))
    contrast = criterion.contrast(*joined.chunk(2))
    optimizer.zero_grad()
    contrast.loss.backward()
    optimizer.step()
    loss = contrast.loss.detach().clone()
    if world > 1:
        dist.all_reduce(loss, dist.ReduceOp.AVG if torch.cuda.is_available() else dist.ReduceOp.SUM)
        loss = loss if torch.cuda.is_available() else loss / world
    rows.append([loss.item(), contrast.temperature.item(), contrast.gradient_scale.mean().item()])
if rank == 0:
    weights = [p.detach().flatten() for p in model.parameters()]
    with open(output, "w") as file:
        json.dump({"rows": rows, "weights": torch.cat(weights).tolist()}, file)
if world > 1:
    dist.destroy_process_group()
""")


def launch(processes, gather):
    """Run the script with that many processes; returns its figures and final weights."""
    output = work / f"{processes}-{gather}.json"
    command = [sys.executable]
    if processes > 1:  # what the command `torchrun` calls
        command += ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    done = subprocess.run(
        [*command, str(script), gather, str(output)],
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(output.read_text())
    return np.array(found["rows"]), np.array(found["weights"])


# %% [markdown]
# ## One process, two with `gather`, two without
#
# On a machine with GPUs the same file is started as `torchrun --nproc-per-node=8 train.py gather
# out.json`, and on several machines with `--nnodes` and `--rdzv-endpoint` in addition.

# %%
one, one_weights = launch(1, "gather")
two, two_weights = launch(2, "gather")
apart, apart_weights = launch(2, "local")

# %%
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
for axis, column, name in ((left, 0, "loss"), (right, 2, "mean W")):
    axis.plot(one[:, column], linewidth=4, alpha=0.4, label="1 process")
    axis.plot(two[:, column], "--", label="2 processes, gather=True")
    axis.plot(apart[:, column], ":", label="2 processes, gather=False")
    axis.set(xlabel="step", title=name)
left.legend()
figure.tight_layout()
print(f"largest difference in the loss, gather=True: {np.abs(one - two)[:, 0].max():.1e}")
for name, weights in (("gather=True", two_weights), ("gather=False", apart_weights)):
    print(f"largest difference in the weights, {name}: {np.abs(one_weights - weights).max():.1e}")

# %% [markdown]
# With `gather=True` the two processes compute the run of one; what remains is rounding, as sums
# are taken in another order. Without it each process contrasts 16 pairs among themselves: a
# different loss with fewer negatives, and a smaller W (tutorial 1 says what that means). W in the
# picture is that of the first process's anchors.
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
# - Replace `"gather"` by `"ring"` in the script: `MACL(..., gather="ring")`. The curves stay.
# - Give the script a batch-norm layer: then one process and two differ on the CPU. On GPUs,
#   `SyncBatchNorm` makes them agree.
# - Batches beyond memory in one process: `chunk_size=256` in a recipe encodes in chunks with the
#   exact gradient.
# - The page *Scaling* of the documentation has the commands for SLURM and what happens when a
#   process is lost.
# - `examples/torch_ddp.py` is this script as a file that runs by itself.
