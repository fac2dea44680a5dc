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
# # 2. From a folder of images to a search engine
#
# You have a folder of images without labels and want to find similar ones. Three calls do it:
# `macl.train`, `run.embed`, `run.search`; each is also a command. The images here are drawn by
# the first cell, so that nothing is downloaded; put your own folder in place of `folder`.
#
# It needs `pip install 'macl[train]'`.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import torch
from PIL import Image

import macl

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())
folder = work / "pictures"

# %% [markdown]
# ## The images
#
# 360 images of 40×40 pixels in five folders, one for each pattern. Colors, direction, scale and
# place are random. Training does not look at the names of the folders; they serve to evaluate the
# result.


# %%
# alt: Twenty of the drawn images
def draw(pattern, random):
    """An image of a pattern in two random colors, direction, scale and place."""
    y, x = np.mgrid[0:40, 0:40] / 40 - 0.5
    angle, scale = random.uniform(0, np.pi), random.uniform(4, 6)
    u = scale * (np.cos(angle) * x + np.sin(angle) * y) + random.uniform()
    v = scale * (np.cos(angle) * y - np.sin(angle) * x) + random.uniform()
    across, down = random.uniform(-0.5, 0.5, 2)
    wave = {
        "stripes": np.sin(2 * np.pi * u),
        "checks": np.sin(2 * np.pi * u) * np.sin(2 * np.pi * v),
        "dots": np.cos(2 * np.pi * u) + np.cos(2 * np.pi * v) - 1,
        "rings": np.sin(2 * np.pi * scale * np.hypot(x - across, y - down)),
        "waves": np.sin(2 * np.pi * (u + 0.35 * np.sin(2 * np.pi * v))),
    }[pattern]
    pale, strong = random.integers(170, 255, 3), random.integers(0, 150, 3)
    pixels = np.where(wave[..., None] > 0, strong, pale) + random.normal(0, 6, (40, 40, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


random = np.random.default_rng(0)
for pattern in ("checks", "dots", "rings", "stripes", "waves"):
    (folder / pattern).mkdir(parents=True)
    for number in range(72):
        draw(pattern, random).save(folder / pattern / f"{number:02}.png")

files = sorted(folder.rglob("*.png"))
figure, axes = plt.subplots(2, 10, figsize=(10, 2.2))
for axis, file in zip(axes.flat, files[::18]):
    axis.imshow(Image.open(file))
    axis.axis("off")
figure.suptitle(f"Some of {len(files)} images")
figure.tight_layout()

# %% [markdown]
# ## Train
#
# `imagenette-small` is the recipe for a folder of images on a laptop. Any of its values can be
# given: by keyword at the top level, by a dotted key in `overrides`. A misspelled key is reported
# at once, with the nearest valid one.
#
#     macl train imagenette-small --data pictures/ --out run epochs=14 views.size=32 …

# %%
try:
    macl.train("imagenette-small", data=folder, out=work / "run", overrides={"views.sise": 32})
except macl.UserError as error:
    print(error)

# %%
run = macl.train(
    "imagenette-small",
    data=folder,
    out=work / "run",
    epochs=14,
    batch_size=40,
    workers=0,
    monitor_every=0,
    overrides={
        "views.size": 32,
        "views.crop_scale": (0.4, 1.0),
        "views.gray_p": 1.0,
        "encoder.name": "resnet8",
        "optimizer.lr": 3e-3,
        "evaluation.k": 5,
        "evaluation.protocols": ["knn", "geometry"],
    },
)
rows = run.metrics()
print(sorted(path.name for path in run.folder.iterdir()))

# %%
# alt: InfoNCE, alignment and gradient scale over the steps
figure, axes = plt.subplots(1, 3, figsize=(11, 2.8))
steps = [row["step"] for row in rows]
for axis, name in zip(axes, ("info_nce", "alignment", "gradient_scale")):
    axis.plot(steps, [row[name] for row in rows], marker="o", markersize=3)
    axis.set(xlabel="step", title=name)
figure.tight_layout()

# %% [markdown]
# `info_nce` is comparable between losses; `loss` itself is not, as some objectives have a constant
# value. The gradient scale is the subject of tutorial 1.
#
# ## Is it any good?
#
# The five folders are five classes, so a nearest-neighbor classifier can say how often neighbors
# are of one pattern. There is no test folder: a part is held out, and the result says so. By chance
# it would be 20%.

# %%
for score in run.evaluate():
    print(f"{score.protocol:10} {score.metric:18} {score.value:7.2f}  ({score.split})")

# %% [markdown]
# ## Embed and search
#
# `embed` gives a vector for every image, `save` writes them with their names to .parquet, .npz,
# .npy or .csv. A query is an image that the encoder has never seen.
#
#     macl embed run pictures/ -o vectors.parquet
#     macl search run query.png --in vectors.parquet

# %%
# alt: Three query images, each with the six nearest images of the folder
vectors = run.embed(folder)
vectors.save(work / "vectors.parquet")
print(vectors.values.shape, list(vectors.names[:3]))

queries = [work / f"query-{pattern}.png" for pattern in ("dots", "rings", "stripes")]
for query in queries:
    draw(query.stem.removeprefix("query-"), random).save(query)

figure, axes = plt.subplots(3, 7, figsize=(9, 4.4))
for line, query in zip(axes, queries):
    found = run.search(query, work / "vectors.parquet", k=6)
    line[0].imshow(Image.open(query))
    line[0].set_title("query", fontsize=9)
    for axis, match in zip(line[1:], found):
        axis.imshow(Image.open(folder / match.name))
        axis.set_title(f"{match.score:.2f}", fontsize=9)
    for axis in line:
        axis.axis("off")
figure.suptitle("New images and what is nearest to them (cosine similarity)")
figure.tight_layout()

# %% [markdown]
# Which differences count is decided by the *views*, not by the loss. All views here are gray
# (`views.gray_p=1`), so that color cannot help to tell images apart, and crops make place and
# scale unimportant: what is left is the pattern. If color should count in your search, leave
# `gray_p` and `jitter_p` low.
#
# ## A map
#
# The two directions in which the vectors vary most. `run.report()` writes such a map, the curves
# and neighbors into one self-contained page.

# %%
# alt: The embedded images by two principal components, colored by kind
values = torch.nn.functional.normalize(vectors.values)
centerd = values - values.mean(0)
place = centerd @ torch.linalg.svd(centerd, full_matrices=False).Vh[:2].T
patterns = np.array([Path(name).parent.name for name in vectors.names])
figure, axis = plt.subplots(figsize=(5.5, 4))
for pattern in np.unique(patterns):
    axis.scatter(*place[patterns == pattern].T, s=14, label=pattern)
axis.legend(fontsize=8)
axis.set(title="The embedded folder, by principal components", xticks=[], yticks=[])
figure.tight_layout()

# %% [markdown]
# ## What does the training lack?
#
# `diagnose` looks at gradient reduction, uniformity, hard negatives, temperature and collapse, and
# says what to change.

# %%
print(run.diagnose(items=300))

# %% [markdown]
# ## What to try next
#
# - Your own folder: `macl train imagenette-small --data photos/ --out run`, then `embed` and
#   `search` as above. Class folders are needed for `evaluate` alone.
# - `run.report(work / "run.html")` for the page, `run.export(work / "exported")` for safetensors
#   and ONNX with a model card.
# - Other views, other neighbors: leave `views.gray_p` out, and look at the gallery again.
# - Another loss or method: `loss="dcl"`, `method="moco"`. Which one is better is a question for
#   tutorial 5.
# - Search by text instead of by image: tutorial 7.
