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
# # 1. The loss in your own loop
#
# You have a training loop and want to replace its contrastive loss. This tutorial does that with
# nothing but torch and `macl`, on the 8×8 digits of scikit-learn, and shows the one figure that
# tells you whether the loss still teaches the encoder anything: the **gradient scale** W.
#
# It needs `pip install macl` (torch and numpy), and scikit-learn and matplotlib for the data and
# the pictures.

# %%
import matplotlib.pyplot as plt
import torch
from sklearn.datasets import load_digits
from torch import nn

from macl import DCL, MACL, NTXent, geometry

torch.set_num_threads(1)  # tensors this small are fastest on one core
digits = load_digits()
images = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 16  # (1797, 1, 8, 8)
labels = torch.tensor(digits.target)

# %% [markdown]
# ## Two views of every image
#
# A contrastive loss compares two random views of the same sample. Here a view is the digit moved
# by up to one pixel, brighter or darker, with a little noise.


# %%
# alt: Eight digits, and below each two random views of it
def view(batch, generator):
    """A random view of (N, 1, 8, 8) images: shifted, scaled in brightness, with noise."""
    padded = nn.functional.pad(batch, (1, 1, 1, 1))
    windows = padded.unfold(2, 8, 1).unfold(3, 8, 1)  # (N, 1, 3, 3, 8, 8)
    row, column = torch.randint(0, 3, (2, len(batch)), generator=generator)
    moved = windows[torch.arange(len(batch)), :, row, column]
    brightness = 0.7 + 0.6 * torch.rand(len(batch), 1, 1, 1, generator=generator)
    return moved * brightness + 0.05 * torch.randn(moved.shape, generator=generator)


generator = torch.Generator().manual_seed(0)
shown = [images[:8], view(images[:8], generator), view(images[:8], generator)]
figure, axes = plt.subplots(3, 8, figsize=(8, 3.2))
for line, (name, pictures) in zip(axes, zip(["digit", "view 1", "view 2"], shown)):
    for axis, picture in zip(line, pictures):
        axis.imshow(picture[0], cmap="gray_r", vmin=0, vmax=1)
        axis.set(xticks=[], yticks=[])
    line[0].set_ylabel(name)
figure.suptitle("Eight digits and two random views of each")
figure.tight_layout()

# %% [markdown]
# ## The loop
#
# An encoder, a projector, an optimizer: nothing here is of `macl` but the line that computes the
# loss. `criterion(z1, z2)` returns a scalar; `criterion.contrast(z1, z2)` returns the same scalar
# together with the figures behind it, detached:
#
# - `alignment` A, the mean cosine of the positive pairs,
# - `temperature` τ, as used in this step,
# - `gradient_scale` (n,), the factor W of each anchor.


# %%
def network():
    """An encoder with 64 features, followed by a projector."""
    encoder = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1), nn.ReLU(),
        nn.Flatten(), nn.Linear(512, 64),
    )  # fmt: skip
    return nn.Sequential(encoder, nn.ReLU(), nn.Linear(64, 32))


def train(criterion, batch_size, steps, seed=0):
    """Train; returns the network and a tensor with A, τ and mean W of every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    model = network()
    optimizer = torch.optim.Adam(model.parameters(), lr=2e-3)
    rows = []
    for _ in range(steps):
        batch = images[torch.randint(0, len(images), (batch_size,), generator=generator)]
        z1, z2 = (model(view(batch, generator)) for _ in range(2))
        contrast = criterion.contrast(z1, z2)  # the only line that is ours
        optimizer.zero_grad()
        contrast.loss.backward()
        optimizer.step()
        figures = contrast.alignment, contrast.temperature, contrast.gradient_scale.mean()
        rows.append(torch.stack(figures))
    return model.eval(), torch.stack(rows)


few, few_rows = train(NTXent(temperature=0.1), batch_size=8, steps=1500)
many, many_rows = train(NTXent(temperature=0.1), batch_size=256, steps=300)

# %% [markdown]
# ## What the gradient scale shows
#
# Write x for the margin of an anchor, the logsumexp of its negatives' logits minus the logit of
# its positive. Then
#
# $$L_\text{InfoNCE} = \log(1 + e^{x}), \qquad \nabla L_\text{InfoNCE} = W\,\nabla x,
# \qquad W = \frac{1}{1 + e^{-x}}.$$
#
# W is the probability that the softmax does *not* give to the positive. Once the positive is
# nearer than the negatives, W falls towards 0, and with it the gradient: this is *gradient
# reduction*. With few negatives it happens early, whether or not the encoder is good.


# %%
# alt: Mean gradient scale and alignment over the steps, with 8 and with 256 pairs per batch
def smooth(values, width=25):
    """The mean over the last steps, for a legible curve."""
    return values.unfold(0, width, 1).mean(1)


runs = {"8 pairs per batch": (few, few_rows, 8), "256 pairs per batch": (many, many_rows, 256)}
figure, (left, right) = plt.subplots(1, 2, figsize=(10, 3.4))
for name, (_, rows, _) in runs.items():
    left.plot(smooth(rows[:, 2]), label=name)
    right.plot(smooth(rows[:, 0]), label=name)
    print(f"{name:>20}: mean W over the last 50 steps {rows[-50:, 2].mean():.2f}")
left.set(xlabel="step", ylabel="mean W", ylim=(0, 1), title="Gradient scale of NT-Xent, τ = 0.1")
right.set(xlabel="step", ylabel="A", ylim=(0, 1), title="Alignment of the positives")
left.legend()
figure.tight_layout()

# %% [markdown]
# The mean hides how uneven W is. Each anchor has its own, and an anchor with W near 0 teaches
# nothing in this step. The share of anchors that still count is `contrast.effective_anchors`,
# (ΣW)²/(n ΣW²).

# %%
# alt: Histograms of the gradient scale of each anchor, with 8 and with 256 pairs per batch
figure, axes = plt.subplots(1, 2, figsize=(10, 3))
for axis, (name, (model, _, batch_size)) in zip(axes, runs.items()):
    scales, shares = [], []
    for batch in images[:1536].split(batch_size):
        with torch.no_grad():
            z1, z2 = (model(view(batch, generator)) for _ in range(2))
        contrast = NTXent(temperature=0.1).contrast(z1, z2)
        scales.append(contrast.gradient_scale)
        shares.append(contrast.effective_anchors)
    axis.hist(torch.cat(scales).numpy(), bins=30, range=(0, 1))
    share = torch.stack(shares).mean()
    axis.set(xlabel="W of an anchor", title=f"{name}: effective anchors {share:.0%}")
axes[0].set_ylabel("anchors")
figure.tight_layout()

# %% [markdown]
# ## Losses that keep the gradient
#
# Every loss of the family is a function of the same margin, so their gradients can be drawn over
# x. DCL and FlatNCE drop W; MACL divides by it. `from_similarities` takes similarities that you
# computed yourself, which is all that the picture needs.

# %%
# alt: Slope of NT-Xent, DCL and MACL over the margin
x = torch.linspace(-6, 4, 201)
tau = 0.2
negative = torch.zeros(len(x), 1)
figure, axis = plt.subplots(figsize=(6, 3.6))
for criterion, style in ((NTXent(tau), "-"), (DCL(tau), "--"), (MACL(tau, alpha=0.0), ":")):
    # One negative of similarity 0, so x = −s⁺/τ.
    positive = (-x * tau).clamp(-1, 1).requires_grad_()
    criterion.from_similarities(positive, negative).backward()
    inside = positive.abs() < 1
    slope = -positive.grad * tau * len(x)
    axis.plot(x[inside], slope.detach()[inside], style, label=type(criterion).__name__, linewidth=2)
axis.set(xlabel="margin x", ylabel="∂L/∂x", title="An easy positive (left) teaches NT-Xent little")
axis.legend()
figure.tight_layout()

# %% [markdown]
# ## The temperature follows the model
#
# MACL has a second part: τ = τ₀·[1 + α·(A − A₀)]. While the positives are apart, A is small and a
# low τ spreads the embeddings; once they agree, τ rises, and negatives that may be of the same
# class are pushed less. At the very beginning A is high for a bad reason: an untrained network
# gives nearly the same vector for everything.

# %%
# alt: Alignment and temperature of MACL over the steps
adaptive, rows = train(MACL(temperature=0.1, alpha=1.0, threshold=0.5), batch_size=8, steps=1500)
figure, axis = plt.subplots(figsize=(6, 3.4))
axis.plot(smooth(rows[:, 0]), label="alignment A", color="tab:green")
axis.set(xlabel="step", ylabel="A", ylim=(0, 1), title="MACL with 8 pairs per batch")
second = axis.twinx()
second.plot(smooth(rows[:, 1]), label="temperature τ", color="tab:red")
second.axhline(0.1, color="tab:red", linewidth=0.8, linestyle="--")
second.set_ylabel("τ")
figure.legend(loc="lower right", bbox_to_anchor=(0.88, 0.2))
figure.tight_layout()

# %% [markdown]
# ## How good are the encoders?
#
# Every digit is shown in a random view, and its nearest neighbor among the views of all other
# digits is looked up. One seed of a short run proves nothing about a loss: the two with 8 pairs
# saw 12,000 images, the one with 256 saw 76,800. Tutorial 5 shows how to compare losses so that
# the answer means something.


# %%
@torch.no_grad()
def describe(encoder):
    """How often the nearest other view is of the same digit, and the uniformity of the features."""
    features = encoder(view(images, torch.Generator().manual_seed(1)))
    z = nn.functional.normalize(features)
    similarity = (z @ z.T).fill_diagonal_(-1)
    same = labels[similarity.argmax(1)] == labels
    return same.float().mean().item(), geometry.uniformity(features).item()


torch.manual_seed(0)
for name, model in {
    "untrained": network(),
    "NT-Xent, 8 pairs": few,
    "MACL, 8 pairs": adaptive,
    "NT-Xent, 256 pairs": many,
}.items():
    accuracy, uniformity = describe(model[0])
    print(f"{name:20} 1-NN accuracy {accuracy:6.1%}   uniformity {uniformity:6.2f}")

# %% [markdown]
# ## What to try next
#
# - Change the batch size and τ in `train`, and watch where mean W goes. W also falls when τ is
#   lowered.
# - `macl.diagnose(z1, z2, temperature=0.1)` reads such figures for you and says what to change.
# - A queue of negatives: `criterion(query, key, bank=queue)`. Many processes: `MACL(...,
#   gather=True)`, in tutorial 6.
# - A loss of lightly, pytorch-metric-learning or sentence-transformers in your loop: the folder
#   `examples/` has one file for each.
# - The same on a folder of your own images, without writing a loop: tutorial 2.
