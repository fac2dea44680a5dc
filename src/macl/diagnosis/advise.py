"""From findings to changes: what to turn, which way, and on what evidence.

Keys such as `loss.temperature` are those of a recipe; in code they are the arguments of the loss.
"""

from __future__ import annotations

import math

from macl.diagnosis.judge import FLAT, LOST, alignment_of, kept, percent, temperature_of
from macl.diagnosis.measure import Measured
from macl.diagnosis.told import Advice, Finding
from macl.losses import MACL, AlignmentAdaptive, ContrastiveLoss

USUAL = 0.2
"""The highest of the fixed temperatures that the paper's baselines use (0.05 sentences, 0.1 SimCLR,
0.2 MoCo and graphs): where to start from when a temperature is far above."""

MOST_TIMES = 64
"""More negatives than this many times what is there are no advice that anyone can follow."""


def advise(measured: Measured, loss: ContrastiveLoss, findings: list[Finding]) -> list[Advice]:
    """What to change, the most telling first; nothing where all is well."""
    found = {finding.name: finding for finding in findings}
    verdict = {name: finding.verdict for name, finding in found.items()}
    if verdict["collapse"] == "problem":  # the other figures are then those of a single point
        return [_restart(found["collapse"])]
    advice = []
    if verdict["gradient reduction"] != "ok":
        advice += _keep_gradient(measured, loss)
        if verdict["uniformity"] == "ok" and verdict["hard negatives"] == "watch":
            advice.append(_warm(measured, loss, found["hard negatives"]))
    # Where the weights part classes from within, to spread the items further is the wrong way.
    if verdict["hard negatives"] == "problem":
        advice.append(_tolerate(measured, loss, found["hard negatives"]))
    elif verdict["uniformity"] != "ok":
        advice.append(_spread(measured, loss))
    if verdict["temperature"] != "ok":
        advice.append(_leave_floor(measured, loss, found["temperature"]))
    if verdict["collapse"] == "watch":
        advice.append(_use_width(found["collapse"]))
    return advice


def _restart(collapse: Finding) -> Advice:
    return Advice(
        "Train again with a lower learning rate and less weight decay, and look at the loss of the "
        "first epoch.",
        "The encoder is collapsed: different items have the same embedding, from where no setting "
        "of the loss brings it back.",
        collapse.evidence,
    )


def _keep_gradient(measured: Measured, loss: ContrastiveLoss) -> list[Advice]:
    scale, carried = kept(measured)
    change = (
        "Switch reweighting on: loss.reweight=true."
        if isinstance(loss, MACL)
        else "Use a loss that keeps the gradient: loss=macl (reweighted), dcl or flat-nce."
    )
    advice = [
        Advice(
            change,
            f"{percent(1 - carried)} of the gradient is lost; dividing each anchor's loss by its W "
            "gives it back.",
            {"lost": 1 - carried},
        )
    ]
    times, weighed = 1, measured.weighed
    while times < MOST_TIMES and weighed.with_more_negatives(times) < 1 - LOST[0]:
        times *= 2
    reached = weighed.with_more_negatives(times)
    if times > 1 and reached >= 1 - LOST[0]:
        now = weighed.count.mean().item()
        what = "method.queue_size" if measured.has_bank else "batch_size"
        advice.append(
            Advice(
                f"Or contrast with more negatives: {what} {times} times as large.",
                f"By Proposition 1 mean W would rise from {scale:.2f} to about {reached:.2f} with "
                f"{times * now:,.0f} negatives in place of {now:,.0f}.",
                {"negatives": now, "gradient_scale": scale, "times": times, "then": reached},
            )
        )
    return advice


def _warm(measured: Measured, loss: ContrastiveLoss, hard: Finding) -> Advice:
    now, scale = temperature_of(measured, loss), measured.weighed.scale.mean().item()
    then, top5 = measured.weighed.hotter.mean().item(), hard.evidence["weight_of_top_5%"]
    return Advice(
        f"Or raise the temperature: {_to(loss, now, 2 * now)}.",
        f"At twice the temperature mean W of these embeddings is {then:.2f} and not {scale:.2f} "
        f"(Proposition 2), and the hardest 5% of the negatives no longer take {percent(top5)} of "
        "the weight.",
        {"temperature": now, "gradient_scale": scale, "then": then, "weight_of_top_5%": top5},
    )


def _spread(measured: Measured, loss: ContrastiveLoss) -> Advice:
    share = measured.weighed.effective_share.mean().item()
    relative = measured.space.relative_uniformity
    evidence = {"relative_uniformity": relative, "effective_share": share}
    if share < FLAT:
        what = "method.queue_size" if measured.has_bank else "batch_size"
        return Advice(
            f"Train longer, or with a larger {what}.",
            f"Uniformity is {percent(relative)} of that of random directions, yet the weights "
            f"already favour near negatives ({percent(share)} of them count): it is not the "
            "temperature that holds the items together.",
            evidence,
        )
    now = temperature_of(measured, loss)
    return Advice(
        f"Lower the temperature: {_to(loss, now, min(now / 2, USUAL))}.",
        f"Uniformity is {percent(relative)} of that of random directions, and at τ = {now:.3g} "
        f"near and far negatives weigh nearly the same ({percent(share)} of them count in effect): "
        "nothing pushes near ones away.",
        evidence | {"temperature": now},
    )


def _tolerate(measured: Measured, loss: ContrastiveLoss, hard: Finding) -> Advice:
    now, alignment = temperature_of(measured, loss), alignment_of(measured)
    kind = loss.temperature
    change = f"Raise the temperature: {_to(loss, now, 2 * now)}"
    if isinstance(kind, AlignmentAdaptive) and kind.alpha > 0:
        change += (
            "; or raise loss.alpha, as A lies above A0"
            if alignment > kind.threshold
            else f"; or lower loss.threshold (A0) below A = {alignment:.2f}, from where τ rises"
        )
    else:
        change += "; or let it rise with alignment: loss=macl"
    return Advice(
        f"{change}.",
        f"{percent(hard.evidence['weight_of_false_negatives'])} of the push parts items of one "
        "class: the temperature is so low that the nearest items, which are mostly of the anchor's "
        "own class, get nearly all of it.",
        hard.evidence,
    )


def _leave_floor(measured: Measured, loss: ContrastiveLoss, found: Finding) -> Advice:
    kind = loss.temperature
    assert isinstance(kind, AlignmentAdaptive)  # only there is a floor
    history = measured.history
    lowest = alignment_of(measured) if history is None else history.lowest_alignment
    room = 1 - kind.floor / kind.temperature
    # Rounded down, so that what is printed is enough.
    alpha = math.floor(100 * room / (kind.threshold - lowest)) / 100
    threshold = math.floor(100 * (lowest + room / kind.alpha)) / 100
    floored = found.evidence["floored"]
    return Advice(
        f"Lower loss.alpha to {alpha:g} or loss.threshold (A0) to {threshold:g}.",
        f"The floor made the temperature in {percent(floored)} of the steps; with either change τ "
        f"follows the alignment from its lowest value, {lowest:.2f}, on.",
        {
            "floored": floored,
            "lowest_alignment": lowest,
            "alpha": alpha,
            "threshold": threshold,
        },
    )


def _use_width(collapse: Finding) -> Advice:
    return Advice(
        "Try weaker augmentation or a narrower projector (method.projector.widths).",
        "The embeddings use a small part of their width.",
        collapse.evidence,
    )


def _to(loss: ContrastiveLoss, now: float, then: float) -> str:
    """The change of setting that takes τ from `now` to `then`."""
    kind = loss.temperature
    if isinstance(kind, AlignmentAdaptive):
        start = kind.temperature
        return f"loss.temperature (τ0) from {start:.3g} to about {start * then / now:.2g}"
    return f"loss.temperature from {now:.3g} to about {then:.2g}"
