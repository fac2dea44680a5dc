"""Figures of the temperatures, of the training methods, and of losses.md."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

import macl
from loss_curves import LOSS_FIGURES
from macl.geometry import gradient_scale, negative_weights, proposition1, proposition2
from macl.losses.objectives import dual, objective
from macl.methods.queue import Queue
from panels import GRID, NEGATIVES, Line, Panel, line, rows

TAUS = torch.logspace(-2, 0, 81, dtype=torch.float64)


def fixed() -> list[Panel]:
    """Value, gradient scale and weights of the negatives at a fixed τ."""
    values, scales = {}, {}
    for s, role in ((0.9, "1"), (0.6, "own"), (0.2, "2")):
        pos = torch.tensor([s], dtype=torch.float64)
        loss = [macl.NTXent(float(t)).from_similarities(pos, NEGATIVES[None]) for t in TAUS]
        scale = [gradient_scale(pos, NEGATIVES[None], float(t))[0] for t in TAUS]
        values[s] = line(f"s⁺ = {s:g}", TAUS, torch.stack(loss), role)
        scales[s] = line(f"s⁺ = {s:g}", TAUS, torch.stack(scale), role)
    weights = [
        line(f"τ = {t:g}", NEGATIVES, negative_weights(NEGATIVES[None], t)[0], role)
        for t, role in ((0.05, "1"), (0.1, "own"), (0.5, "2"))
    ]
    return [
        Panel("Value", "τ", "NT-Xent", list(values.values()), log_x=True),
        Panel("Gradient scale", "τ", "W", list(scales.values()), log_x=True),
        Panel("Weights of the negatives", "similarity of the negative", "P̂", weights),
    ]


def adaptive() -> list[Panel]:
    """τ_a and W against the alignment."""
    lines, scales = [], []
    for alpha, threshold, role in ((0.0, 0.0, "gray"), (0.5, 0.0, "own"), (2.0, 0.8, "1")):
        rule = macl.AlignmentAdaptive(0.1, alpha, threshold)
        tau = rule.at(GRID)
        label = f"α = {alpha:g}, A₀ = {threshold:g}" if alpha else "α = 0: fixed"
        lines.append(line(label, GRID, tau, role))
        scale = [
            gradient_scale(a[None], NEGATIVES[None], t)[0] for a, t in zip(GRID, tau, strict=True)
        ]
        scales.append(line(label, GRID, torch.stack(scale), role))
    return [
        Panel("Temperature, τ₀ = 0.1", "alignment A", "τ_a", lines),
        Panel("Gradient scale at s⁺ = A", "alignment A", "W", scales),
    ]


def cosine() -> list[Panel]:
    """τ and W over the steps."""
    rule = macl.CosineSchedule(0.1, 1.0, 200)
    steps, taus = torch.arange(401, dtype=torch.float64), []
    pos = torch.tensor([0.6], dtype=torch.float64)
    criterion = macl.NTXent(rule)
    anchor, positive, negatives = rows(torch.cat([pos, NEGATIVES])).split([1, 1, len(NEGATIVES)])
    for _ in steps:
        taus.append(criterion.contrast(anchor, positive, bank=negatives).temperature)
        rule.advance()
    tau = torch.stack(taus)
    scale = torch.stack([gradient_scale(pos, NEGATIVES[None], float(t))[0] for t in tau])
    return [
        Panel("Temperature", "optimizer step", "τ", [line("0.1 to 1, period 200", steps, tau)]),
        Panel("Gradient scale", "optimizer step", "W", [line("s⁺ = 0.6", steps, scale)]),
    ]


def learned() -> list[Panel]:
    """The loss as a function of τ, and the slope that moves it."""
    values, slopes = [], []
    cases = (
        ("NT-Xent, s⁺ = 0.4", macl.NTXent, 0.4, "own"),
        ("NT-Xent, s⁺ = 0.8", macl.NTXent, 0.8, "1"),
    )
    for label, kind, s, role in cases:
        value, slope = [], []
        for t in TAUS:
            rule = macl.LearnedTemperature(float(t), 0.005, 2.0)
            criterion = kind(rule)
            loss = criterion.from_similarities(torch.tensor([s]), NEGATIVES[None].float())
            (gradient,) = torch.autograd.grad(loss, list(criterion.parameters()))
            value.append(loss.detach())
            slope.append(gradient)
        values.append(line(label, TAUS, torch.stack(value), role))
        slopes.append(line(label, TAUS, torch.stack(slope), role))
    slopes.append(Line("0", [0.01, 1.0], [0.0, 0.0], "gray", dashed=True))
    return [
        Panel("Value", "τ", "loss", values, log_x=True, y_range=(0, 8)),
        Panel("Gradient", "τ", "∂L/∂ log τ", slopes, log_x=True, y_range=(-4, 4)),
    ]


def auto() -> list[Panel]:
    """KL/log K over τ for one anchor, and the path of τ from three start values."""
    shares = []
    for t in TAUS:
        p = negative_weights(NEGATIVES[None], float(t))[0]
        shares.append(1 + (p * p.log()).sum() / math.log(len(NEGATIVES)))
    target = Line("ρ = 0.44", [0.01, 1.0], [0.44, 0.44], "gray", dashed=True)
    pos = torch.tensor([0.7], dtype=torch.float64)
    steps, paths = torch.arange(41, dtype=torch.float64), []
    for start, role in ((1.0, "1"), (0.2, "own"), (0.05, "2")):
        rule = macl.AutoTemperature(temperature=start, tau_min=0.01)
        criterion, taus = macl.NTXent(rule), []
        for _ in steps:
            taus.append(rule.log_temperature.exp())
            criterion.from_similarities(pos, NEGATIVES[None])
        paths.append(line(f"from τ = {start:g}", steps, torch.stack(taus), role))
    return [
        Panel(
            "Concentration", "τ", "KL(P̂ ‖ uniform) / log K",
            [line("15 negatives", TAUS, torch.stack(shares)), target], log_x=True,
        ),
        Panel("Path", "training step", "τ", paths),
    ]  # fmt: skip


def scale_by_count(counts: Tensor, s: float = 0.7, tau: float = 0.1) -> Tensor:
    """W of an anchor with K negatives spread evenly over [−0.4, 0.6]."""
    pos = torch.tensor([s], dtype=torch.float64)
    spread = [torch.linspace(-0.4, 0.6, int(k), dtype=torch.float64)[None] for k in counts]
    return torch.stack([gradient_scale(pos, negatives, tau)[0] for negatives in spread])


def simclr() -> list[Panel]:
    """What the batch size does to the value and to the gradient scale."""
    batches = torch.tensor([2**i for i in range(2, 14)], dtype=torch.float64)
    pulls = [
        line(f"τ = {tau:g}", batches, scale_by_count(2 * batches - 2, tau=tau), role)
        for tau, role in ((0.05, "1"), (0.1, "own"), (0.5, "2"))
    ]
    values = [
        Line(each.label, each.x, (-torch.log1p(-torch.tensor(each.y))).tolist(), each.role)
        for each in pulls
    ]
    return [
        Panel("Value, s⁺ = 0.7", "batch size N", "NT-Xent = −log(1 − W)", values, log_x=True),
        Panel(
            "Gradient scale, s⁺ = 0.7", "batch size N", "W with 2N − 2 negatives", pulls, log_x=True
        ),
    ]


def moco() -> list[Panel]:
    """What the queue does to the gradient scale; how old the key encoder is."""
    counts = torch.tensor([2**i for i in range(4, 17)], dtype=torch.float64)
    scales = [
        line(f"τ = {tau:g}", counts, scale_by_count(counts, tau=tau), role)
        for tau, role in ((0.1, "1"), (0.15, "own"), (0.2, "2"))
    ]
    ages = torch.logspace(0, 4, 81, dtype=torch.float64)
    weights = [
        line(f"m = {m:g}", ages, 1 - m**ages, role) for m, role in ((0.99, "1"), (0.999, "own"))
    ]
    return [
        Panel("Gradient scale, s⁺ = 0.7", "rows of the queue K", "W", scales, log_x=True),
        Panel(
            "Age of the key encoder", "steps", "share of it younger than this", weights, log_x=True
        ),
    ]


def nnclr() -> list[Panel]:
    """How near the nearest of a support set is, for random directions."""
    generator = torch.Generator().manual_seed(0)
    sizes, lines = [2**i for i in range(3, 15)], []
    for width, role in ((32, "1"), (128, "own"), (256, "2")):
        queries = torch.nn.functional.normalize(torch.randn(64, width, generator=generator))
        nearest = []
        for size in sizes:
            queue = Queue(size, width)
            queue.push(torch.nn.functional.normalize(torch.randn(size, width, generator=generator)))
            nearest.append((queue.nearest(queries) * queries).sum(1).mean())
        lines.append(line(f"D = {width}", torch.tensor(sizes), torch.stack(nearest), role))
    return [
        Panel(
            "Similarity of the nearest row",
            "rows of the support set",
            "random directions",
            lines,
            log_x=True,
        ),
        Panel(
            "Gradient scale against s⁺",
            "similarity of the positive s⁺",
            "W",
            [
                line(
                    "511 negatives, τ = 0.1",
                    GRID,
                    torch.cat([scale_by_count(torch.tensor([511]), float(s)) for s in GRID]),
                )
            ],
        ),
    ]


def family() -> list[Panel]:
    """Value and |dL/dx| of each objective against the margin x."""
    # Dual temperature needs a second margin: here that of K equal negatives, for which
    # x(τ) = log K + d/τ, d being negative minus positive similarity, taken at τ_β = 10 τ.
    x = torch.linspace(-10, 10, 401, dtype=torch.float64)
    log_k = math.log(8)
    x_beta = log_k + (x - log_k) / 10
    # Lines that cover each other differ in width.
    curves: list[tuple[str, Callable[[Tensor], Tensor], str, float]] = [
        ("DCL", partial(objective, "identity"), "1", 6.0),
        ("FlatNCE", partial(objective, "one"), "3", 4.0),
        ("MACL", partial(objective, "nll_over_scale"), "own", 1.8),
        ("Dual (τ_β = 10τ, K = 8)", lambda x: dual(x, x_beta), "2", 2.2),
        ("InfoNCE / NT-Xent", partial(objective, "softplus"), "gray", 2.2),
    ]
    values, slopes = [], []
    for name, curve, role, width in curves:
        style = {"dashed": name == "FlatNCE", "width": width}
        margin = x.clone().requires_grad_()
        value = curve(margin)
        (slope,) = torch.autograd.grad(value.sum(), margin)
        values.append(line(name, x, value, role, **style))
        slopes.append(line(name, x, slope, role, **style))
    axis = "margin x   (easy positive ←   → hard positive)"
    return [
        Panel("Value", axis, "loss of one anchor", values, y_range=(-4, 10)),
        Panel("Gradient", axis, "dL/dx", slopes, y_range=(-0.03, 1.15)),
    ]


def gradient_scales() -> list[Panel]:
    """The paper's Figure 2: W_i against K and τ, positive similarity 1, negatives −1."""
    k = torch.logspace(0, 6, 121, dtype=torch.float64)
    left = [
        line(f"τ = {tau:g}", k, proposition1(k, temperature=tau), role)
        for tau, role in ((0.1, "own"), (0.2, "1"), (0.3, "2"), (0.5, "4"), (1.0, "3"))
    ]
    taus = torch.linspace(0.02, 2, 199, dtype=torch.float64)
    right = [
        line(f"K = {count}", taus, proposition2(taus, k=count), role)
        for count, role in ((16, "own"), (64, "1"), (256, "2"), (4096, "4"), (65536, "3"))
    ]
    return [
        Panel(
            "more negatives: W → 1", "number of negatives K", "gradient scale W", left, log_x=True
        ),
        Panel("higher temperature: W → K/(K+1)", "temperature τ", "gradient scale W", right),
    ]


def temperature() -> list[Panel]:
    """τ_a against the alignment A for several α and A₀, and where the floor acts."""
    panels: list[Panel] = []
    for title, settings in (
        ("A₀ = 0", ((0.0, 0.0, "gray"), (0.5, 0.0, "4"), (1.0, 0.0, "2"), (2.0, 0.0, "own"))),
        ("with a threshold", ((0.5, 0.0, "4"), (0.5, 0.6, "2"), (2.0, 0.8, "own"))),
    ):
        lines = []
        for alpha, threshold, role in settings:
            rule = macl.AlignmentAdaptive(1.0, alpha, threshold)
            lines.append(line(f"α = {alpha:g}, A₀ = {threshold:g}", GRID, rule.at(GRID), role))
        panels.append(Panel(title, "alignment A", "τ_a / τ₀", lines, y_range=(0, 3.1)))
    return panels


FIGURES: dict[str, Callable[[], list[Panel]]] = {
    **LOSS_FIGURES,
    "fixed": fixed,
    "alignment-adaptive": adaptive,
    "cosine": cosine,
    "learned": learned,
    "auto": auto,
    "simclr": simclr,
    "moco": moco,
    "nnclr": nnclr,
}
"""The figure of each method page, by the page's name."""
COMMITTED = {"family": family, "gradient_scale": gradient_scales, "temperature": temperature}
"""Figures that are also files in docs/figures, for the README."""
