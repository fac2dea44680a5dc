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
# # 4. Graphs and molecules
#
# The same three calls for graphs (networkx, PyG, or files) and for molecules (SMILES). Views are
# made by dropping nodes, changing edges, masking features or taking subgraphs, as in GraphCL.
#
# It needs `pip install 'macl[molecules]'`, which includes graphs.

# %%
import tempfile
from pathlib import Path

import matplotlib.pyplot as plt
import networkx as nx
import torch

import macl

torch.set_num_threads(1)
work = Path(tempfile.mkdtemp())

# %% [markdown]
# ## Graphs of your own
#
# Four families of random graphs, as networkx objects. A list of them is data; so is a folder of
# GraphML, GML, GEXF or JSON files, a CSV of edges, or a set of the TU collection.

# %%
# alt: One graph of each of the four families
families = {
    "tree": lambda seed: nx.random_labeled_tree(14, seed=seed),
    "ring lattice": lambda seed: nx.connected_watts_strogatz_graph(14, 4, 0.1, seed=seed),
    "hubs": lambda seed: nx.barabasi_albert_graph(14, 2, seed=seed),
    "two groups": lambda seed: nx.planted_partition_graph(2, 7, 0.7, 0.05, seed=seed),
}
graphs = [make(seed) for make in families.values() for seed in range(80)]
kinds = [name for name in families for _ in range(80)]

figure, axes = plt.subplots(1, 4, figsize=(10, 2.6))
for axis, (name, make) in zip(axes, families.items()):
    nx.draw(make(0), nx.spring_layout(make(0), seed=0), axis, node_size=30, width=0.8)
    axis.set_title(name)
figure.tight_layout()

# %% [markdown]
# ## Train and embed
#
# `atlas` is the recipe for small graphs. Without node features the encoder starts from the
# degrees.

# %%
run = macl.train(
    "atlas", data=graphs, out=work / "graphs", epochs=8, batch_size=64, monitor_every=0
)
vectors = torch.nn.functional.normalize(run.embed(graphs).values)
similarity = (vectors @ vectors.T).fill_diagonal_(-1)
nearest = similarity.argmax(1)
agree = torch.tensor([kinds[i] == kinds[j] for i, j in enumerate(nearest.tolist())]).float()
print(f"nearest neighbor of the same family: {agree.mean():.0%}; by chance 25%")

# %%
# alt: Three graphs, each with its four nearest neighbors
figure, axes = plt.subplots(3, 5, figsize=(10, 5.6))
for line, query in zip(axes, (3, 165, 245)):
    found = [query, *similarity[query].topk(4).indices.tolist()]
    for axis, index in zip(line, found):
        nx.draw(
            graphs[index], nx.spring_layout(graphs[index], seed=0), axis, node_size=20, width=0.7
        )
        score = "query" if index == query else f"{similarity[query, index]:.2f}"
        axis.set_title(f"{kinds[index]}, {score}", fontsize=9)
figure.suptitle("Graphs and their nearest neighbors")
figure.tight_layout()

# %% [markdown]
# An untrained graph network already separates such families: its sums over neighbors count
# degrees and walks. That is why `macl compare … --vary epochs=0,8` belongs to every experiment
# with graphs: `epochs=0` is the encoder as it was initialized.

# %%
untrained = macl.train(
    "atlas", data=graphs, out=work / "untrained", epochs=0, batch_size=64, monitor_every=0
)
initial = torch.nn.functional.normalize(untrained.embed(graphs).values)
nearest = (initial @ initial.T).fill_diagonal_(-1).argmax(1)
agree = torch.tensor([kinds[i] == kinds[j] for i, j in enumerate(nearest.tolist())]).float()
print(f"untrained: {agree.mean():.0%}")

# %% [markdown]
# ## Molecules
#
# `chembl` trains on drug-like molecules that come with rdkit. Your own: `data="molecules.smi"`, or
# a table with a column of SMILES.

# %%
# alt: InfoNCE and alignment over the steps, for molecules
molecules = macl.train(
    "chembl",
    out=work / "molecules",
    epochs=10,
    batch_size=64,
    overrides={"data.limit": 600},
)
rows = molecules.metrics()
figure, axes = plt.subplots(1, 2, figsize=(8, 2.6))
for axis, name in zip(axes, ("info_nce", "alignment")):
    axis.plot([row["step"] for row in rows], [row[name] for row in rows], marker="o", markersize=3)
    axis.set(xlabel="step", title=name)
figure.tight_layout()

# %% [markdown]
# ## Which molecules are alike?
#
# The features of a graph network are sums over atoms, so the cosines are all high. What counts is
# their order.

# %%
library = {
    "aspirin": "CC(=O)Oc1ccccc1C(=O)O",
    "salicylic acid": "O=C(O)c1ccccc1O",
    "methyl salicylate": "COC(=O)c1ccccc1O",
    "paracetamol": "CC(=O)Nc1ccc(O)cc1",
    "phenacetin": "CCOc1ccc(NC(C)=O)cc1",
    "ibuprofen": "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "caffeine": "Cn1c(=O)c2c(ncn2C)n(C)c1=O",
    "theophylline": "Cn1c(=O)c2[nH]cnc2n(C)c1=O",
    "glucose": "OCC1OC(O)C(O)C(O)C1O",
}
stored = molecules.embed(list(library.values()))
names = {smiles: name for name, smiles in library.items()}
for name in ("aspirin", "caffeine", "paracetamol"):
    found = molecules.search(library[name], stored, k=4)
    print(f"{name}: " + ", ".join(f"{names[m.name]} {m.score:.2f}" for m in found[1:]))

# %%
# alt: Structural formulas of caffeine and the three nearest molecules
from rdkit import Chem
from rdkit.Chem import Draw

query = library["caffeine"]
found = molecules.search(query, stored, k=4)
picture = Draw.MolsToGridImage(
    [Chem.MolFromSmiles(match.name) for match in found],
    molsPerRow=4,
    subImgSize=(220, 170),
    legends=[f"{names[match.name]} {match.score:.2f}" for match in found],
    returnPNG=False,
)
figure, axis = plt.subplots(figsize=(10, 2.2))
axis.imshow(picture)
axis.axis("off")
axis.set_title("Caffeine and its nearest molecules")
figure.tight_layout()

# %% [markdown]
# ## What to try next
#
# - `macl train graphcl-mutag --data MUTAG.zip` and the other recipes `graphcl-*` are the paper's
#   settings for the TU collection; evaluation is a cross-validated SVM.
# - Views matter most: `overrides={"views.view2": "subgraph", "views.drop_ratio": 0.1}`.
# - A trained encoder in your own PyG loop, or our loss in it: `examples/pyg_loop.py`.
# - Fine-tuning on MoleculeNet: `macl evaluate run --protocol finetune --data moleculenet/`.
