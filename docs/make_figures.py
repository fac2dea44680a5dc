"""Draw the figures of losses.md from the library itself: python docs/make_figures.py"""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")

import matplotlib.pyplot as plt
import torch
from matplotlib.axes import Axes
from torch import Tensor

from macl.geometry import proposition1, proposition2
from macl.losses import AlignmentAdaptive, objectives

FIGURES = Path(__file__).parent / "figures"
# Okabe & Ito's palette, distinguishable with any colour vision
BLUE, ORANGE, GREEN, RED, PURPLE = "#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7"

plt.rcParams.update(
    {
        "figure.facecolor": "white",
        "font.size": 12,
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "grid.alpha": 0.25,
        "lines.linewidth": 2.2,
        "legend.frameon": False,
        "savefig.dpi": 110,
    }
)


def family() -> None:
    """Value and |dL/dx| of each objective against the margin x."""
    # Dual temperature needs a second margin: here that of K equal negatives, for which
    # x(τ) = log K + d/τ, d being negative minus positive similarity, taken at τ_β = 10 τ.
    x = torch.linspace(-10, 10, 401, dtype=torch.float64)
    log_k = math.log(8)
    x_beta = log_k + (x - log_k) / 10
    curves: list[tuple[str, Callable[[Tensor], Tensor], str, Any, float]] = [
        ("DCL", objectives.dcl, ORANGE, "-", 5),
        ("FlatNCE", objectives.flat_nce, PURPLE, (0, (2.5, 2.5)), 3.5),
        ("MACL", objectives.reweighted, RED, "-", 1.5),
        (
            r"Dual ($\tau_\beta = 10\tau$, $K = 8$)",
            lambda x: objectives.dual(x, x_beta),
            GREEN,
            "-",
            2.2,
        ),
        ("InfoNCE / NT-Xent", objectives.info_nce, BLUE, "-", 2.2),
    ]
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained")
    for name, objective, colour, style, width in curves:
        margin = x.clone().requires_grad_()
        value = objective(margin)
        (slope,) = torch.autograd.grad(value.sum(), margin)
        left.plot(x, value.detach(), ls=style, color=colour, label=name, lw=width)
        right.plot(x, slope, ls=style, color=colour, lw=width)
    left.set(title="Value", ylabel="loss of one anchor", ylim=(-4, 10))
    right.set(title="Gradient magnitude", ylabel=r"$dL/dx$", ylim=(-0.03, 1.15))
    left.legend(loc="upper left")
    right.annotate("DCL, FlatNCE, MACL", (-9.7, 1.04), color="0.25", va="bottom")
    right.annotate("Dual", (-9.7, 0.75), color=GREEN, va="bottom")
    right.annotate("InfoNCE", (-9.7, 0.03), color=BLUE, va="bottom")
    for axes in (left, right):
        axes.set_xlabel("margin $x$   (easy positive ←   → hard positive)")
        axes.axvline(0, color="0.6", lw=0.8)
    save("family", figure)


def gradient_scale() -> None:
    """The paper's Figure 2: W_i against K and τ, positive similarity 1, negatives −1."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.9), layout="constrained")
    k = torch.logspace(0, 6, 400, dtype=torch.float64)
    for tau, colour in ((0.1, RED), (0.2, ORANGE), (0.3, GREEN), (0.5, BLUE), (1.0, PURPLE)):
        left.plot(k, proposition1(k, temperature=tau), color=colour, label=f"τ = {tau:g}")
    left.set(
        xscale="log",
        xlabel="number of negatives $K$",
        ylabel="gradient scale $W$",
        title=r"more negatives: $W \to 1$",
    )
    temperatures = torch.linspace(0.02, 2, 400, dtype=torch.float64)
    for count, colour in ((16, RED), (64, ORANGE), (256, GREEN), (4096, BLUE), (65536, PURPLE)):
        right.plot(
            temperatures, proposition2(temperatures, k=count), color=colour, label=f"K = {count}"
        )
    right.set(xlabel=r"temperature $\tau$", title=r"higher temperature: $W \to K/(K+1)$")
    for axes in (left, right):
        axes.set_ylim(-0.03, 1.05)
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, -0.16), ncols=3)
    save("gradient_scale", figure)


def temperature() -> None:
    """τ_a against the alignment A for several α and A₀, and where the floor acts."""
    figure, (left, right) = plt.subplots(1, 2, figsize=(10, 4.3), layout="constrained", sharey=True)
    settings: tuple[tuple[Axes, float, float, str, str], ...] = (
        (left, 0.0, 0.0, "α = 0 (fixed)", "0.45"),
        (left, 0.5, 0.0, "α = 0.5", BLUE),
        (left, 1.0, 0.0, "α = 1", GREEN),
        (left, 2.0, 0.0, "α = 2", RED),
        (right, 0.5, 0.0, "α = 0.5, A₀ = 0", BLUE),
        (right, 0.5, 0.6, "α = 0.5, A₀ = 0.6", GREEN),
        (right, 2.0, 0.8, "α = 2, A₀ = 0.8 (sentences)", RED),
    )
    a = torch.linspace(-1, 1, 401, dtype=torch.float64)
    for axes, alpha, threshold, name, colour in settings:
        rule = AlignmentAdaptive(1.0, alpha, threshold)
        tau, floored = rule(a), rule.is_floored(a)
        axes.plot(a, tau.where(~floored, math.nan), color=colour, label=name)
        axes.plot(a, tau.where(floored, math.nan), "--", color=colour)
    left.set(title="A₀ = 0", ylabel=r"$\tau_a / \tau_0$")
    right.set(title="with a threshold")
    for axes in (left, right):
        axes.set(xlabel="alignment $A$", ylim=(0, 3.1), xlim=(-1, 1), xticks=(-1, -0.5, 0, 0.5, 1))
        axes.legend(loc="upper left")
    left.annotate(r"dashed: the floor $\tau_0/10$", (-0.4, 0.05), color=RED, fontsize=11)
    right.annotate(
        r"the formula is $\leq 0$ for $A \leq 0.3$", (-0.72, 0.15), color=RED, fontsize=11
    )
    save("temperature", figure)


def save(name: str, figure: plt.Figure) -> None:
    """Write figures/NAME.png."""
    FIGURES.mkdir(exist_ok=True)
    figure.savefig(FIGURES / f"{name}.png", metadata={"Software": None})
    plt.close(figure)


if __name__ == "__main__":
    family()
    gradient_scale()
    temperature()
