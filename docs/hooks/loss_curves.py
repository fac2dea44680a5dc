"""Figures of the losses, computed by the library itself."""

from __future__ import annotations

import warnings
from functools import partial

import torch
from torch import Tensor

import macl
from macl.losses.ops import CosineTemperature, InverseTanh
from panels import GRID, NEGATIVES, Line, Panel, along_grid, line, one_anchor, rows, value_and_pull

LONELY = torch.linspace(-0.2, 0.2, 15, dtype=torch.float64)
CROWDED = torch.cat([LONELY[:12], torch.tensor([0.7, 0.75, 0.8], dtype=torch.float64)])
"""Negatives of a sample of a rare kind, and of one of a frequent kind."""
NEAR = torch.tensor(0.75, dtype=torch.float64)
"""A positive that is nearer than most negatives."""
NETWORK_STEPS = 300
KINDS = {"some similar negatives": CROWDED, "none": LONELY}


def nt_xent(tau: float = 0.1) -> tuple[Tensor, Tensor]:
    """The line that the others are compared with."""
    return one_anchor(macl.NTXent(tau), tau=tau)


def beside_nt_xent(criterion: macl.ContrastiveLoss, name: str, tau: float = 0.1) -> list[Panel]:
    """A loss beside NT-Xent at the same temperature."""
    own = one_anchor(criterion, tau=tau)
    return value_and_pull([("NT-Xent", "gray", nt_xent(tau)), (name, "own", own)])


def info_nce() -> list[Panel]:
    """Three temperatures."""
    taus = ((0.05, "1"), (0.1, "own"), (0.5, "2"))
    return value_and_pull(
        [(f"τ = {tau:g}", role, one_anchor(macl.InfoNCE(tau), tau=tau)) for tau, role in taus],
        y_range=(-0.5, 20),
    )


def nt_xent_batches() -> list[Panel]:
    """Three batch sizes: 2N − 2 negatives."""
    curves = []
    for batch, role in ((8, "1"), (32, "own"), (256, "2")):
        negatives = torch.linspace(-0.4, 0.6, 2 * batch - 2, dtype=torch.float64)
        curves.append((f"batch {batch}", role, one_anchor(macl.NTXent(0.1), negatives, 0.1)))
    return value_and_pull(curves)


def macl_panels() -> list[Panel]:
    """With and without reweighting; A is the positive's similarity."""
    panels = value_and_pull(
        [
            ("NT-Xent, τ = 0.1", "gray", nt_xent()),
            ("MACL", "own", one_anchor(macl.MACL(0.1), tau=0.1)),
            ("without reweighting", "1", one_anchor(macl.MACL(0.1, reweight=False), tau=0.1)),
        ],
        unit="τ₀·|∂L/∂s⁺|",
    )
    tau = macl.AlignmentAdaptive(0.1, 0.5, 0.0).at(GRID)
    return [
        *panels,
        Panel("Temperature", "alignment A", "τ_a", [line("α = 0.5, A₀ = 0", GRID, tau)]),
    ]


def dclw() -> list[Panel]:
    """The weight depends on the other pairs: here one other, with similarity 0.5."""
    criterion = macl.DCLW(0.1, reduction="none")

    def first(s: Tensor) -> Tensor:
        both = torch.stack([s, torch.full_like(s, 0.5)])
        return criterion.from_similarities(both, NEGATIVES.expand(2, -1))[0]

    dcl = one_anchor(macl.DCL(0.1), tau=0.1)
    return value_and_pull([("DCL", "gray", dcl), ("DCLW", "own", along_grid(first, 0.1))])


def dystress() -> list[Panel]:
    """The loss, and the temperature of a pair."""
    rule = CosineTemperature(0.1, 0.2)
    return [
        *beside_nt_xent(macl.DySTreSS(0.1, 0.2), "DySTreSS"),
        Panel(
            "Temperature of a pair",
            "similarity s",
            "τ(s)",
            [line("0.1 to 0.2", GRID, rule.temperature(GRID))],
        ),
    ]


def temperature_free() -> list[Panel]:
    """The loss, and the logit in place of s/τ."""
    inside = GRID[2:-2]
    lines = [
        line("s/0.1", inside, inside / 0.1, "gray"),
        line("2·artanh s", inside, InverseTanh().value(inside)),
    ]
    return [
        *beside_nt_xent(macl.TemperatureFree(), "temperature-free"),
        Panel("Logit", "similarity s", "g(s)", lines),
    ]


def siglip() -> list[Panel]:
    """Value, pull on the positive, push on one negative."""
    criterion = macl.SigLIP(0.1, bias=-10.0)

    def push(bias: float) -> Tensor:
        with torch.no_grad():
            criterion.bias.fill_(bias)
        one = torch.zeros(1, dtype=torch.float64)
        _, slope = along_grid(lambda s: criterion.from_similarities(one, s[None, None]), 0.1)
        return -slope

    lines = [
        line(f"b = {b:g}", GRID, push(b), role)
        for b, role in ((-10.0, "own"), (-5.0, "1"), (0.0, "2"))
    ]
    return [
        *beside_nt_xent(macl.SigLIP(0.1, bias=-10.0), "SigLIP, b = −10"),
        Panel("Push on a negative", "similarity of the negative", "τ·∂L/∂s⁻", lines),
    ]


def supcon() -> list[Panel]:
    """Two positives of one class: one at similarity 0.8, the other varies."""

    def loss(variant: str) -> tuple[Tensor, Tensor]:
        criterion = macl.SupCon(0.1, variant, reduction="none")  # type: ignore[arg-type]
        labels = torch.tensor([0, 0, 0, *range(1, len(NEGATIVES) + 1)])

        def first(s: Tensor) -> Tensor:
            similar = torch.cat([torch.stack([torch.full_like(s, 0.8), s]), NEGATIVES])
            return criterion(rows(similar), labels=labels)[0]

        return along_grid(first, 0.1)

    return value_and_pull(
        [
            ("NT-Xent, this positive alone", "gray", nt_xent()),
            ("out", "own", loss("out")),
            ("in", "1", loss("in")),
        ]
    )


def banked(criterion: macl.ContrastiveLoss, positive: Tensor, negatives: Tensor) -> Tensor:
    """Loss of one anchor against a bank, for losses with state; the anchor is sample 0."""
    made = rows(torch.cat([positive[None], negatives]))
    return criterion(made[:1], made[1:2], bank=made[2:], indices=torch.zeros(1, dtype=torch.long))


def sogclr() -> list[Panel]:
    """Value and pull; and the push of a batch whose negatives are harder than the average."""
    shifts = torch.linspace(-0.3, 0.3, 61, dtype=torch.float64)
    lines = []
    for gamma, role in ((1.0, "gray"), (0.9, "1"), (0.5, "own"), (0.1, "2")):
        criterion = macl.SogCLR(0.1, size=1, gamma=gamma)
        banked(criterion, NEAR, NEGATIVES)  # the history: u = g
        criterion.eval()
        pushes = []
        for shift in shifts:
            negatives = (NEGATIVES + shift).clone().requires_grad_()
            (slope,) = torch.autograd.grad(banked(criterion, NEAR, negatives), negatives)
            pushes.append(slope.sum())
        lines.append(line(f"γ = {gamma:g}", shifts, torch.stack(pushes), role))
    return [
        *value_and_pull(
            [
                ("τ·DCL", "gray", _scaled(one_anchor(macl.DCL(0.1)), 0.1)),
                ("SogCLR", "own", _first_visit(macl.SogCLR(0.1, size=1))),
            ],
            unit="|∂L/∂s⁺|",
        ),
        Panel("Push of one batch", "its negatives are nearer by", "Σ ∂L/∂s⁻ = g/u", lines),
    ]


def _scaled(curve: tuple[Tensor, Tensor], factor: float) -> tuple[Tensor, Tensor]:
    return curve[0] * factor, curve[1] * factor


def _first_visit(criterion: macl.ContrastiveLoss) -> tuple[Tensor, Tensor]:
    criterion.eval()
    return along_grid(partial(banked, criterion, negatives=NEGATIVES))


def visits(criterion: macl.ContrastiveLoss, negatives: Tensor, count: int = 60) -> Tensor:
    """τ of one sample over its visits."""
    taken = []
    for _ in range(count):
        made = rows(torch.cat([NEAR[None], negatives]))
        found = criterion.contrast(
            made[:1], made[1:2], bank=made[2:], indices=torch.zeros(1, dtype=torch.long)
        )
        taken.append(found.temperature.detach().reshape(-1)[0].double())
    return torch.stack(taken)


def isogclr() -> list[Panel]:
    """Value and pull at the start; then the temperature of two samples over their visits."""
    count = torch.arange(60, dtype=torch.float64)
    lines = [
        line(label, count, visits(macl.ISogCLR(0.1, size=1, rho=0.4), negatives), role)
        for (label, negatives), role in zip(KINDS.items(), ("own", "1"), strict=True)
    ]
    return [
        *value_and_pull(
            [("ISogCLR, τ = 0.1", "own", _first_visit(macl.ISogCLR(0.1, size=1)))], unit="|∂L/∂s⁺|"
        ),
        Panel("Temperature of a sample", "visit", "τ_i (ρ = 0.4)", lines),
    ]


def fastclip() -> list[Panel]:
    """Value and pull; the schedule of γ; the slope that moves τ in v3."""
    criterion = macl.FastCLIP(size=1, version=1, temperature=0.1, gamma_epochs=18)
    epochs, gammas = torch.arange(31, dtype=torch.float64), []
    for epoch in range(31):
        criterion.set_epoch(epoch)
        gammas.append(criterion.current_gamma())
    taus = torch.logspace(-2, 0, 41, dtype=torch.float64)
    lines = []
    for rho, role in ((0.5, "1"), (1.0, "own"), (2.0, "2")):
        slopes = []
        for tau in taus:
            v3 = macl.FastCLIP(float(tau), size=1, version=3, rho=rho, tau_min=0.005)
            v3.eval()
            (parameter,) = v3.parameters()
            (slope,) = torch.autograd.grad(banked(v3, NEAR, NEGATIVES), parameter)
            slopes.append(slope / tau)
        lines.append(line(f"ρ = {rho:g}", taus, torch.stack(slopes), role))
    lines.append(Line("0", [0.01, 1.0], [0.0, 0.0], "gray", dashed=True))
    return [
        *value_and_pull(
            [("FastCLIP v1, τ = 0.1", "own", _first_visit(macl.FastCLIP(0.1, size=1, version=1)))],
            unit="|∂L/∂s⁺|",
        ),
        Panel("Schedule of γ", "epoch", "γ", [line("E = 18", epochs, torch.stack(gammas))]),
        Panel("Slope of v3 in τ", "τ", "∂F/∂τ", lines, log_x=True, y_range=(-4, 4)),
    ]


def tempnet() -> list[Panel]:
    """Value and pull at the start; then the network trained on two samples."""
    torch.manual_seed(0)
    width = len(NEGATIVES) + 2
    criterion = macl.TempNet(width, size=2, rho=1.0, tau_min=0.02, tau_max=0.5).double()
    start = _first_visit(criterion)
    criterion.train()
    taken: dict[str, list[Tensor]] = {kind: [] for kind in KINDS}
    for _ in range(NETWORK_STEPS):
        losses = []
        for sample, (kind, negatives) in enumerate(KINDS.items()):
            made = rows(torch.cat([NEAR[None], negatives])).roll(sample, dims=1)
            found = criterion.contrast(
                made[:1], made[1:2], bank=made[2:], indices=torch.tensor([sample])
            )
            losses.append(found.loss)
            taken[kind].append(found.temperature.detach().reshape(-1)[0])
        gradients = torch.autograd.grad(
            sum(losses), list(criterion.parameters()), allow_unused=True
        )
        with torch.no_grad():  # steps of equal size, as Adam's first ones are
            for parameter, gradient in zip(criterion.parameters(), gradients, strict=True):
                if gradient is not None:
                    parameter -= 0.01 * gradient.sign()
    steps = torch.arange(NETWORK_STEPS, dtype=torch.float64)
    lines = [
        line(k, steps, torch.stack(v), role)
        for (k, v), role in zip(taken.items(), ("own", "1"), strict=True)
    ]
    return [
        *value_and_pull([("TempNet, untrained network", "own", start)], unit="|∂L/∂s⁺|"),
        Panel("Predicted temperature", "step of the network", "τ_i (ρ = 1)", lines),
    ]


LOSS_FIGURES = {
    "info-nce": info_nce,
    "nt-xent": nt_xent_batches,
    "dcl": lambda: beside_nt_xent(macl.DCL(0.1), "DCL"),
    "dclw": dclw,
    "flat-nce": lambda: beside_nt_xent(macl.FlatNCE(0.1), "FlatNCE"),
    "dual": lambda: beside_nt_xent(macl.DualTemperature(0.1), "Dual"),
    "hcl": lambda: beside_nt_xent(macl.HCL(0.5), "HCL", 0.5),
    "macl": macl_panels,
    "dystress": dystress,
    "temperature-free": temperature_free,
    "siglip": siglip,
    "supcon": supcon,
    "sogclr": sogclr,
    "isogclr": isogclr,
    "fastclip": fastclip,
    "tempnet": tempnet,
}
warnings.filterwarnings("ignore", "rho", UserWarning)
