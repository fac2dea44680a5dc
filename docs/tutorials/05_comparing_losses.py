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
# # 5. Comparing losses so that the answer means something
#
# "Loss B is better than loss A: 97.2 against 96.9." Is it? Two runs that differ in nothing but the
# seed differ by as much. This tutorial compares two losses on the embedded digits with paired
# seeds, intervals and a statement of what the experiment could have shown at all.
#
# It needs `pip install 'macl[train]'`.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch

import macl
from macl.api import run_comparison

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Decide before you look
#
# Four choices are made before the first run, because each of them, made afterwards, can turn noise
# into a result:
#
# 1. **the question**: does MACL help NT-Xent when a batch has only 32 pairs?
# 2. **the metric**: kNN accuracy on the test digits,
# 3. **the number of seeds**: five,
# 4. **what is held equal**: encoder, views, optimizer, epochs. The temperature τ₀ is a setting of
#    each loss, and the same value need not suit both: a fair study tunes it for both with the same
#    effort, on data that the final table does not use.
#
# The runs are made tiny so that this page builds in seconds.

# %%
settings = {
    "epochs": 3,
    "batch_size": 32,
    "monitor_every": 0,
    "overrides": {"data.limit": 512, "evaluation.protocols": ["knn"]},
    "metrics": ["knn top1", "gradient_scale", "alignment"],
}
vary = {"loss": ["nt-xent", "macl"]}
first = run_comparison("digits", vary, seeds=1, out=work / "comparison", **settings)
for row in first.rows:
    print(f"{row.setting['loss']:8} {row.metric:16} {row.mean:7.2f}")

# %% [markdown]
# One seed gives two numbers and no idea of what they are worth. The table that `macl compare`
# writes has no interval and no verdict for one seed.
#
# ## Paired seeds
#
# The same call with `seeds=5` runs the four that are missing and keeps the first: a finished run
# is never repeated. With the same seed both losses start from the same weights and see the same
# batches, so the comparison is of *differences* within a seed.

# %%
# alt: kNN accuracy of both losses for each seed, and their differences with a 95% interval
outcome = run_comparison("digits", vary, seeds=5, out=work / "comparison", **settings)
scores = {
    row.setting["loss"]: np.array(row.values) for row in outcome.rows if row.metric == "knn top1"
}
difference = scores["macl"] - scores["nt-xent"]

figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
for seed, pair in enumerate(zip(scores["nt-xent"], scores["macl"])):
    left.plot([0, 1], pair, marker="o", label=f"seed {seed}")
left.set_xticks([0, 1], ["NT-Xent", "MACL"])
left.set(xlim=(-0.4, 1.4), ylabel="kNN accuracy, %", title="Each line is one seed")
left.legend(fontsize=8)
compared = next(
    row.difference for row in outcome.rows if row.metric == "knn top1" and row.difference
)
right.axhline(0, color="gray", linewidth=0.8)
right.scatter(np.zeros(5), difference, color="tab:blue", label="one seed")
right.errorbar(
    [0.5], [compared.mean],
    [[compared.mean - compared.low], [compared.high - compared.mean]],
    fmt="o", color="tab:red", capsize=5, label="mean, 95% interval",
)  # fmt: skip
right.set_xticks([])
right.set(xlim=(-0.5, 1), ylabel="MACL − NT-Xent, points", title="Differences within a seed")
right.legend(fontsize=8)
figure.tight_layout()

# %% [markdown]
# ## The table
#
# `macl.compare` returns it as a data frame; the folder has it as markdown, LaTeX and parquet.

# %%
table = macl.compare("digits", vary, seeds=5, out=work / "comparison", **settings)
columns = ["loss", "metric", "mean", "std", "difference", "low", "high", "detectable", "verdict"]
print(table[columns].round(2).to_string(index=False))

# %% [markdown]
# How to read it:
#
# - **low, high**: the 95% interval of the mean difference. If it contains 0, the sign is not
#   known.
# - **verdict**: "ahead" or "behind" if the paired t test, corrected for the number of comparisons
#   in the table (Holm), is below 5%; otherwise *no difference shown*, which is not the same as *no
#   difference*.
# - **detectable**: the smallest true difference that this number of seeds would have shown in four
#   of five repetitions. If it is three points, a gain of one point was never going to be seen, and
#   the experiment says nothing about it.
#
# Figures of the training have no verdict: a larger gradient scale is a mechanism, not a result.
# Still, look at it beside the result. MACL's reweighting answers a W that has become small; where W
# stays near 1 for both losses, as in a training as short as this one, there is nothing to answer,
# and no gain is to be expected.

# %%
# alt: Mean gradient scale of both losses for each seed
figure, axis = plt.subplots(figsize=(6, 3.2))
for row in outcome.rows:
    if row.metric == "gradient_scale":
        axis.plot(row.values, marker="o", label=row.setting["loss"])
axis.set(xlabel="seed", ylabel="mean W, last epoch", title="The figure that the theory speaks of")
axis.set_xticks(range(5))
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## How many seeds?
#
# What can be detected shrinks like 1/√n. From the spread of the differences seen here:

# %%
# alt: The roughly detectable difference over the number of seeds
spread = difference.std(ddof=1)
seeds = np.arange(3, 41)
# 2.8 standard errors: a two-sided test at 5% with 80% power, for many seeds.
figure, axis = plt.subplots(figsize=(6, 3))
axis.plot(seeds, 2.8 * spread / np.sqrt(seeds))
axis.axhline(
    abs(difference.mean()), color="tab:red", linestyle="--", label="the difference that was seen"
)
axis.set(xlabel="seeds", ylabel="points", title="Roughly detectable difference")
axis.legend()
figure.tight_layout()
print(f"spread of the differences: {spread:.2f} points")

# %% [markdown]
# Adding seeds until the verdict changes is not allowed: every look is another chance to be wrong.
# The table counts them.

# %%
tables = (work / "comparison" / "table.md").read_text()
print("\n".join(line for line in tables.splitlines() if "look" in line))

# %% [markdown]
# ## What to try next
#
# - Is it the adapting, or just another temperature? `control="level"` (`--control level`) adds for
#   every adaptive run one with τ fixed at its mean.
# - The same question for several batch sizes: `vary={"loss": […], "batch_size": [16, 32, 64]}`
#   makes a grid, with a pooled difference.
# - Real data: `macl compare cifar10-small --data cifar10/ --vary loss=nt-xent,dcl,macl --seeds 5
#   --jobs 2`; Ctrl-C and the same command again continues.
# - The paper's own tables: `macl reproduce` lists them with what each needs.
