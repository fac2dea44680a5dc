"""From measurements to findings: the thresholds, each with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from macl.diagnosis.measure import Contrast, GradientProfile
from macl.diagnosis.result import Finding, Verdict
from macl.diagnosis.space import Space

LOST = (0.25, 0.5)
"""Share of the gradient that is lost, 1 − mean W. W = 1 loses none. From a half on, the learning
rate is in effect less than half of what it says; below a quarter the optimizer's own noise is
larger."""

SILENT = 0.1
"""An anchor with a smaller factor has in effect dropped out of the batch."""

UNIFORM = (0.7, 0.5)
"""Uniformity over that of random directions: 1 is random, 0 is a single point. A pair of cosine c
has the potential exp(2t(c − 1)), so at 0.5 all items are in effect at cosine 0.5 to each other, and
at 0.7 at 0.3. Between the two it is a problem when the weights are flat, as nothing then corrects
it; where they are not, the loss still spreads the items."""

FLAT = 0.75
"""Effective negatives over K. Above it hard negatives hardly weigh more than easy ones."""

SHARP = 0.9
"""Share of the weight that the hardest 5% take: above it the other 95% might as well be absent."""

MISLED = (0.5, 2 / 3)
"""Share of the weight on negatives of the anchor's own class, where that is twice what chance would
give: from a half on the loss parts what belongs together more than it parts classes, and from two
thirds on twice as much. A good encoder with a fitting temperature may well pass the first."""

ALIKE = 0.99
"""Mean cosine of different items (8 degrees): they differ by 1% of their length."""

LINE = 2.0
"""Effective rank: below it the items lie on a line, or nearly."""

RANK = 0.1
"""Effective rank over that of random directions: below it a tenth of the width would do."""

DEAD_SHARE = (0.5, 0.9)
"""Share of the dimensions that do not vary."""

FLOORED = 0.1
"""Share of training in which the floor, and not Eq. 7, made the temperature."""

SPREAD = 0.01
"""Standard deviation of τ over its mean above which anchors have different temperatures."""

ORDER: tuple[Verdict, ...] = ("ok", "watch", "problem")

NAMED = 5
"""How many anchors are named."""


def assess(space: Space, features: Space | None, contrast: Contrast | None) -> list[Finding]:
    """All findings, also those without a problem; of geometry alone where nothing is contrasted."""
    collapse, uniformity = _collapse(space, features), _uniformity(space, contrast)
    if contrast is None:
        return [collapse, uniformity]
    gradient, temperature = _gradient(contrast), _temperature(contrast)
    findings = [collapse, gradient, uniformity, _hard_negatives(space, contrast), temperature]
    if warnings := contrast.config_warnings:
        stated = "; ".join(warning.state for warning in warnings)
        evidence = {name: value for each in warnings for name, value in each.evidence.items()}
        findings.append(Finding("settings of the loss", "watch", f"{stated}.", evidence))
    return findings


def _gradient(contrast: Contrast) -> Finding:
    profile, history, scale = contrast.profile, contrast.history, contrast.mean("scale")
    carried = contrast.mean("carried")
    lost = max(0.0, 1 - carried)
    evidence: dict[str, Any] = {
        "mean_gradient_scale": scale, "mean_carried": carried, "lost": lost
    }  # fmt: skip
    if history is not None:
        for name in ("gradient_scale", "effective_anchors"):
            first, last = getattr(history, name)
            evidence |= {f"first_epoch_{name}": first, f"last_epoch_{name}": last}
    scales, smallest = _quantiles(profile.scale), _smallest(profile, contrast.names)
    silent = (profile.carried < SILENT).float().mean().item()
    evidence |= {
        "effective_anchors": profile.effective_anchors,
        "gradient_scale_quantiles": scales,
        "silent_anchors": silent,
        "smallest": smallest,
    }
    listed = ", ".join(f"{_short(item)} ({value:.2g})" for item, value in smallest.items())
    words = (
        f"{percent(lost)} of the gradient is lost (mean W {scale:.2f}, effective anchors "
        f"{percent(profile.effective_anchors)}, median {scales['50%']:.2f}, a tenth of the anchors "
        f"below {scales['10%']:.2g}; {percent(silent)} of the anchors keep less than "
        f"{percent(SILENT)} of theirs). Smallest W: {listed}."
    )
    if lost < LOST[0] <= 1 - scale:
        name = type(contrast.loss).__name__
        words = f"positives are easy, but {name} does not lose the gradient for it: {words}"
    return Finding("gradient reduction", _above(lost, LOST), words, evidence)


def _uniformity(space: Space, contrast: Contrast | None) -> Finding:
    relative = space.relative_uniformity
    flat = contrast is not None and contrast.mean("effective_share") >= FLAT
    verdict = _above(-relative, (-UNIFORM[0], -UNIFORM[0 if flat else 1]))
    words = (
        f"{percent(relative)} of what random directions have (uniformity {space.uniformity:.2f}, "
        f"random {space.random_uniformity:.2f}); different items have cosine "
        f"{space.mean_similarity:.2f} on average."
    )
    evidence = space.evidence(
        "uniformity", "random_uniformity", "relative_uniformity", "mean_similarity"
    )
    return Finding("uniformity", verdict, "poor: " * (verdict == "problem") + words, evidence)


def _hard_negatives(space: Space, contrast: Contrast) -> Finding:
    confused, effective = contrast.confused, contrast.profile.entropy.exp().mean().item()
    count, top5 = contrast.mean("count"), contrast.mean("top5")
    evidence: dict[str, Any] = {
        "negatives": count,
        "effective_negatives": effective,
        "effective_share": contrast.mean("effective_share"),
        "entropy": contrast.mean("entropy"),
        "most_entropy": math.log(count),
        "weight_of_top_1%": contrast.mean("top1"),
        "weight_of_top_5%": top5,
    }
    words = (
        f"the hardest 5% of the negatives take {percent(top5)} of the weight, the hardest 1% "
        f"{percent(evidence['weight_of_top_1%'])}; in effect {effective:,.0f} of {count:,.0f} "
        "negatives count."
    )
    verdict: Verdict = "watch" if top5 >= SHARP else "ok"
    if space.tolerance is not None:
        evidence["tolerance"] = space.tolerance
        words += f" Tolerance {space.tolerance:.2f}"
        if space.contrast is not None:
            evidence["similarity_between_classes"] = space.contrast
            words += f", against {space.contrast:.2f} between classes"
        words += "."
    if confused is not None:
        evidence |= confused
        base, hardest1, hardest5, weight = confused.values()
        words += (
            f" {percent(base)} of all negatives are of the anchor's own class, "
            f"{percent(hardest1)} of the hardest 1%, {percent(hardest5)} of the "
            f"hardest 5%; they take {percent(weight)} of the weight."
        )
        if weight >= 2 * base:
            verdict = max(verdict, _above(weight, MISLED), key=ORDER.index)
    return Finding("hard negatives", verdict, words, evidence)


def _temperature(contrast: Contrast) -> Finding:
    profile, history, now = contrast.profile, contrast.history, contrast.mean("temperature")
    temperature, alignment = contrast.loss.temperature, contrast.mean("alignment")
    evidence: dict[str, Any] = {"temperature": now, "alignment": alignment}
    words = f"τ is {now:.3g}"
    if (spread := profile.anchor_temperature.std(correction=0).item()) > SPREAD * now:
        quantiles = _quantiles(profile.anchor_temperature)
        evidence |= {"spread": spread, "temperature_quantiles": quantiles}
        low, _, high = quantiles.values()
        words += f" on average over the anchors (from {low:.3g} to {high:.3g} for 80% of them)"
    words += f" at alignment A = {alignment:.2f}"
    if history is not None:
        low, high = history.temperature
        evidence |= {"lowest_in_training": low, "highest_in_training": high}
        if f"{low:.3g}" != f"{high:.3g}":
            words += f"; in training it was between {low:.3g} and {high:.3g}"
    bounds = temperature.alignment_range()
    if bounds is None:
        return Finding("temperature", "ok", f"{words}.", evidence)
    lowest, highest = bounds
    floored = profile.floored.float().mean().item() if history is None else history.floored
    evidence |= {
        "range": (lowest, highest),
        "position": (now - lowest) / (highest - lowest),
        "floor": temperature.floor,
        "floored": floored,
    }
    words += (
        f". Its range for A from −1 to 1 is {lowest:.3g} to {highest:.3g}, so it is at "
        f"{percent(evidence['position'])} of it"
    )
    if floored > 0:
        words += (
            f"; it was at its floor, {temperature.floor:.3g}, in {percent(floored)} of the steps"
        )
    return Finding("temperature", "watch" if floored > FLOORED else "ok", f"{words}.", evidence)


def _collapse(space: Space, features: Space | None) -> Finding:
    spaces = {"embeddings": space}
    if features is not None:
        spaces["encoder's outputs"] = features
    verdict = max((_fullness(space) for space in spaces.values()), key=ORDER.index)
    state = {"ok": "not collapsed", "watch": "partly collapsed", "problem": "collapsed"}[verdict]
    described = "; ".join(
        f"the {name} have effective rank {space.effective_rank:.1f} in {space.dimensions} "
        f"dimensions (random directions {space.random_rank:.1f}), {space.dead_dimensions} dead "
        f"dimensions, and cosine {space.mean_similarity:.2f} between different items"
        for name, space in spaces.items()
    )
    figures = ("effective_rank", "random_rank", "dimensions", "dead_dimensions", "mean_similarity")
    evidence = {name: space.evidence(*figures) for name, space in spaces.items()}
    return Finding("collapse", verdict, f"{state}: {described}.", evidence)


def _fullness(space: Space) -> Verdict:
    """Whether embeddings use the space they have."""
    if space.mean_similarity >= ALIKE or space.effective_rank < LINE:
        return "problem"
    dead = _above(space.dead_dimensions / space.dimensions, DEAD_SHARE)
    return "watch" if dead == "ok" and space.relative_rank < RANK else dead


def _smallest(profile: GradientProfile, named: Sequence[str] | None) -> dict[str, float]:
    """The items with the smallest W, averaged over an item's anchors, by name."""
    items, place = torch.unique(profile.items, return_inverse=True)
    means = torch.bincount(place, weights=profile.scale) / torch.bincount(place)
    values, order = means.topk(min(NAMED, len(means)), largest=False)
    names = [f"row {i}" if named is None else str(named[i]) for i in items[order].tolist()]
    return dict(zip(names, values.tolist(), strict=True))


def _quantiles(values: Tensor) -> dict[str, float]:
    quantiles = torch.quantile(values, values.new_tensor((0.1, 0.5, 0.9))).tolist()
    return dict(zip(("10%", "50%", "90%"), quantiles, strict=True))


def _above(value: float, thresholds: tuple[float, float]) -> Verdict:
    return ORDER[sum(value >= threshold for threshold in thresholds)]


def percent(share: float) -> str:
    """A share in percent."""
    return f"{round(100 * share)}%"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= 50 else f"{text[:49]}…"
