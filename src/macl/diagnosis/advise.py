"""From findings to changes: which setting, in which direction, on what evidence.

Keys such as `loss.temperature` are those of a recipe; in code they are the arguments of the loss.
"""

from __future__ import annotations

from macl.diagnosis.assess import FLAT, LOST, alignment_of, concerns, kept, percent, temperature_now
from macl.diagnosis.evidence import Gain, gain_at
from macl.diagnosis.measure import Measured
from macl.diagnosis.result import Advice, Finding
from macl.diagnosis.weighing import Weighed
from macl.losses import MACL, ContrastiveLoss

USUAL = 0.2
"""The highest of the fixed temperatures that the paper's baselines use (0.05 sentences, 0.1 SimCLR,
0.2 MoCo and graphs): where to start from when a temperature is far above."""

MOST_TIMES = 64
"""More negatives than this many times the present number cannot be had in practice."""


def advise(
    measured: Measured, loss: ContrastiveLoss | None, findings: list[Finding]
) -> list[Advice]:
    """What to change, the most important first; empty where no finding asks for a change."""
    found = {finding.name: finding for finding in findings}
    verdict = {name: finding.verdict for name, finding in found.items()}
    if verdict["collapse"] == "problem":  # the other figures are then those of a single point
        return [_restart(found["collapse"])]
    advice = []
    weighed = measured.weighed
    if weighed is not None and loss is not None:
        if verdict["gradient reduction"] != "ok":
            advice += _keep_gradient(measured, weighed, loss, found["gradient reduction"])
            if verdict["uniformity"] == "ok" and verdict["hard negatives"] == "watch":
                advice.append(_warm(measured, weighed, loss, found["hard negatives"]))
        # Where the weights separate items of one class, spreading them further is wrong.
        if verdict["hard negatives"] == "problem":
            advice.append(_tolerate(measured, weighed, loss, found["hard negatives"]))
        elif verdict["uniformity"] != "ok":
            advice.append(_spread(measured, weighed, loss))
        if verdict["temperature"] != "ok":
            advice.append(_leave_floor(measured, weighed, loss, found["temperature"]))
        advice += [Advice(c.change, c.reason, c.evidence) for c in concerns(weighed, loss)]
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


def _keep_gradient(
    measured: Measured, weighed: Weighed, loss: ContrastiveLoss, reduction: Finding
) -> list[Advice]:
    scale, carried = kept(measured, weighed)
    gain = _studied(reduction)
    keeping = (
        "reweighting: loss.reweight=true."
        if isinstance(loss, MACL)
        else "a loss that keeps the gradient: loss=macl (reweighted), dcl or flat-nce."
    )
    change = f"Use {keeping}" if gain is None or gain.certain else f"Compare with {keeping}"
    advice = [
        Advice(
            change,
            f"{percent(1 - carried)} of the gradient is lost; dividing each anchor's loss by its W "
            f"gives it back.{f' {gain.words}' if gain else ''}",
            {"lost": 1 - carried, **(gain.values if gain else {})},
        )
    ]
    times = 1
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


def _studied(reduction: Finding) -> Gain | None:
    """What our study found at this ESS: that of the last epoch, or else of the sample."""
    found = reduction.evidence
    effective = found.get("last_epoch_effective_anchors", found.get("effective_anchors"))
    return None if effective is None else gain_at(effective)


def _warm(measured: Measured, weighed: Weighed, loss: ContrastiveLoss, hard: Finding) -> Advice:
    now = temperature_now(measured, weighed, loss)
    scale, then = weighed.scale.mean().item(), weighed.hotter.mean().item()
    top5 = hard.evidence["weight_of_top_5%"]
    return Advice(
        f"Or raise the temperature: {_to(loss, now, 2 * now)}.",
        f"At twice the temperature mean W of these embeddings is {then:.2f} and not {scale:.2f} "
        f"(Proposition 2), and the hardest 5% of the negatives no longer take {percent(top5)} of "
        "the weight.",
        {"temperature": now, "gradient_scale": scale, "then": then, "weight_of_top_5%": top5},
    )


def _spread(measured: Measured, weighed: Weighed, loss: ContrastiveLoss) -> Advice:
    share = weighed.effective_share.mean().item()
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
    now = temperature_now(measured, weighed, loss)
    return Advice(
        f"Lower the temperature: {_to(loss, now, min(now / 2, USUAL))}.",
        f"Uniformity is {percent(relative)} of that of random directions, and at τ = {now:.3g} "
        f"near and far negatives weigh nearly the same ({percent(share)} of them count in effect): "
        "nothing pushes near ones away.",
        evidence | {"temperature": now},
    )


def _tolerate(measured: Measured, weighed: Weighed, loss: ContrastiveLoss, hard: Finding) -> Advice:
    alignment = alignment_of(measured, weighed)
    now = temperature_now(measured, weighed, loss)
    other = loss.temperature.settings_to_rise(alignment)
    change = (
        f"Raise the temperature: {_to(loss, now, 2 * now)}; or "
        f"{other or 'let it rise with alignment: loss=macl'}"
    )
    return Advice(
        f"{change}.",
        f"{percent(hard.evidence['weight_of_false_negatives'])} of the repulsion separates items "
        "of one class: the temperature is so low that the nearest items, which are mostly of the "
        "anchor's own class, get nearly all of it.",
        hard.evidence,
    )


def _leave_floor(
    measured: Measured, weighed: Weighed, loss: ContrastiveLoss, found: Finding
) -> Advice:
    history = measured.history
    lowest = alignment_of(measured, weighed) if history is None else history.lowest_alignment
    settings = loss.temperature.settings_above_floor(lowest)
    floored = found.evidence["floored"]
    changes = " or ".join(f"loss.{name} to {value:g}" for name, value in settings.items())
    return Advice(
        f"Lower {changes}.",
        f"The temperature was at its floor in {percent(floored)} of the steps; with either change "
        f"τ follows the alignment from its lowest value, {lowest:.2f}, on.",
        {"floored": floored, "lowest_alignment": lowest, **settings},
    )


def _use_width(collapse: Finding) -> Advice:
    return Advice(
        "Try weaker augmentation or a narrower projector (method.projector.widths).",
        "The embeddings use a small part of their width.",
        collapse.evidence,
    )


def _to(loss: ContrastiveLoss, now: float, then: float) -> str:
    """The change of setting that takes τ from `now` to `then`."""
    keys = loss.temperature_keys
    if not keys:
        name = type(loss).__name__
        return f"{name} has no such setting; use loss=nt-xent with loss.temperature={then:.2g}"
    if keys != ("temperature",):
        return f"multiply {' and '.join(f'loss.{key}' for key in keys)} by about {then / now:.2g}"
    set_to = loss.temperature.temperature
    start = now if set_to is None else set_to
    kind = " (τ0)" if loss.temperature.alignment_range() is not None else ""
    return f"loss.temperature{kind} from {start:.3g} to about {start * then / now:.2g}"
