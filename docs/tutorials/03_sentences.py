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
# # 3. Sentences
#
# A text file becomes a sentence encoder, without labels, in two ways: with *dropout* as the only
# difference between two views of a sentence (SimCSE), and with *pairs* of sentences that belong
# together. The text here is what Python has to say about itself: the help topics that come with
# every installation.
#
# It needs `pip install 'macl[text]'`. Nothing is downloaded.

# %%
import csv
import pydoc_data.topics
import re
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import torch

import macl

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## A table
#
# One row for every two sentences that follow each other, with the topic as a label. Training does
# not see the label; it serves to evaluate. Tables may be .csv, .tsv, .jsonl or .parquet; for
# dropout alone a .txt file with one sentence per line is enough.

# %%
rows = []
for topic, text in sorted(pydoc_data.topics.topics.items()):
    plain = " ".join(text.split())
    parts = re.split(r"(?<=[.!?]) (?=[A-Z])", plain)
    sentences = [part for part in parts if 30 < len(part) < 200 and "~~" not in part]
    rows += [(one, two, topic) for one, two in zip(sentences[::2], sentences[1::2])]
table = work / "sentences.csv"
with table.open("w", newline="", encoding="utf-8") as file:
    csv.writer(file).writerows([("first", "second", "topic"), *rows])
print(f"{len(rows)} pairs in {len({topic for *_, topic in rows})} topics, such as\n")
for one, two, topic in rows[200:202]:
    print(f"  [{topic}] {one}\n      → {two}")

# %% [markdown]
# ## Train twice
#
# The recipe `topics` trains a transformer from scratch; made smaller here, it takes seconds. The
# two runs differ in one key: whether the positive is the sentence itself or the one that follows.

# %%
small = {
    "encoder.width": 64,
    "encoder.layers": 1,
    "encoder.vocabulary": 3000,
    "data.column": "first",
    "data.label": "topic",
}
runs = {}
for name, more in {"dropout": {}, "pairs": {"data.positive": "second"}}.items():
    runs[name] = macl.train(
        "topics",
        data=table,
        out=work / name,
        epochs=6,
        monitor_every=0,
        overrides={**small, **more},
    )

# %% [markdown]
# The loss is MACL with the paper's setting for sentences: τ₀ = 0.05, α = 2, A₀ = 0.8. With dropout
# the positives agree from the beginning, A is near 1 and τ lies above τ₀; and nearly every sentence
# is told apart from the others at once, so W is small and little is learned (tutorial 1). Two
# sentences that follow each other are further apart: A is lower, and τ follows it down.

# %%
# alt: InfoNCE, alignment, temperature and gradient scale of both runs over the steps
figure, axes = plt.subplots(1, 4, figsize=(12, 2.8))
for name, run in runs.items():
    figures = run.metrics()
    for axis, key in zip(axes, ("info_nce", "alignment", "temperature", "gradient_scale")):
        axis.plot([row["step"] for row in figures], [row[key] for row in figures], label=name)
        axis.set(xlabel="step", title=key)
axes[0].legend()
axes[2].axhline(0.05, color="gray", linewidth=0.8, linestyle="--")
figure.tight_layout()

# %% [markdown]
# ## Evaluate
#
# Are the nearest sentences of the same topic? A part of the table is held out for it. With
# SentEval's data, `protocols=["sts", "transfer"]` gives the usual tables.

# %%
for name, run in runs.items():
    for score in run.evaluate():
        print(f"{name:8} {score.protocol} {score.metric}: {score.value:5.1f}% ({score.split})")

# %% [markdown]
# ## Search
#
# Any list of texts can be embedded and searched. A query is a text. These encoders know the words
# of one manual and little of their meaning, which the answers show.
#
#     macl embed run my_sentences.txt -o sentences.parquet
#     macl search run "leave a loop early" --in sentences.parquet

# %%
texts = sorted({sentence for one, two, _ in rows for sentence in (one, two)})
run = runs["pairs"]
stored = run.embed(texts)
for query in (
    "The break statement terminates the nearest loop.",
    "Lambda expressions create anonymous functions.",
    "An exception is raised when an error is detected.",
):
    print(f"\n{query}")
    for match in run.search(query, stored, k=3):
        print(f"  {match.score:.2f}  {match.name[:90]}")

# %% [markdown]
# The same sentences for both encoders: which are alike?

# %%
# alt: Cosine similarities of six sentences, by the encoder trained with dropout and with pairs
six = [
    "The for statement iterates over the items of a sequence.",
    "The while statement repeats as long as an expression is true.",
    "The raise statement raises an exception.",
    "The except clause handles an exception.",
    "A class definition defines a class object.",
    "Classes can also be decorated.",
]
figure, axes = plt.subplots(1, 2, figsize=(11, 3.6), layout="constrained")
for axis, (name, run) in zip(axes, runs.items()):
    z = torch.nn.functional.normalize(run.embed(six).values)
    picture = axis.imshow(z @ z.T, vmin=0, vmax=1)
    axis.set(title=name)
    axis.set_xticks(range(6), range(1, 7))
    axis.set_yticks(range(6), [s[:32] + "…" for s in six] if name == "dropout" else range(1, 7))
_ = figure.colorbar(picture, ax=axes)

# %% [markdown]
# ## Use it elsewhere
#
# The exported folder opens in sentence-transformers, and has a model card.

# %%
for line in run.export(work / "exported"):
    print(line)

from sentence_transformers import SentenceTransformer

model = SentenceTransformer(str(work / "exported"), device="cpu")
theirs = torch.tensor(model.encode(six))
ours = run.embed(six).values
print("largest difference between the two:", float((theirs - ours).abs().max()))

# %% [markdown]
# ## What to try next
#
# - A pre-trained encoder learns far more from the same sentences: `macl train simcse-minilm --data
#   sentences.txt` (an encoder from PyPI), or `encoder.name=FOLDER` for one on your disk.
# - Pairs of your own, such as question and answer; hard negatives as a third column:
#   `data.negative=…`.
# - The loss inside a sentence-transformers trainer: `examples/sentence_transformers_trainer.py`.
# - A lower or higher temperature: `overrides={"loss.temperature": 0.1}`, and look at the
#   similarities again.
