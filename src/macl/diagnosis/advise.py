"""From findings to changes: which setting, in which direction, on what evidence.

Keys such as `loss.temperature` are those of a recipe; in code they are the arguments of the loss.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from importlib import resources

from macl.diagnosis.assess import FLAT, LOST, percent
from macl.diagnosis.measure import Contrast
from macl.diagnosis.result import Advice, Finding
from macl.diagnosis.space import Space
from macl.losses import MACL, ContrastiveLoss

USUAL = 0.2
"""The highest of the fixed temperatures that the paper's baselines use (0.05 sentences, 0.1 SimCLR,
0.2 MoCo and graphs): where to start from when a temperature is far above."""

MOST_TIMES = 64
"""More negatives than this many times the present number cannot be had in practice."""


@dataclass(frozen=True)
class Gain:
    """The gain of a loss without the factor W over InfoNCE, in settings alike in ESS."""

    modality: str
    effective_anchors: Sequence[float]
    """The range of ESS = (ΣW)²/(NΣW²) of InfoNCE in these settings."""
    mean: float
    """In points of each setting's own score."""
    interval: Sequence[float] | None
    """Its 95% interval over settings; None where there are too few for one."""
    range: Sequence[float]
    """The smallest and the largest gain of a setting."""
    settings: int
    loss: str
    source: str
    """The page with the table."""

    @property
    def certain(self) -> bool:
        """Whether the interval, or where there is none every setting, lies above 0."""
        return (self.interval or self.range)[0] > 0

    @property
    def words(self) -> str:
        """One sentence for the advice."""
        count = f"{self.settings} setting{'s' * (self.settings != 1)} ({self.source})"
        ess = "ESS {:g} to {:g}".format(*self.effective_anchors)
        start = f"In settings like this one ({self.modality}, {ess}) {self.loss}"
        if self.interval is not None:
            verdict = "gained" if self.certain else "showed no certain gain:"
            span = "[{:+.1f}, {:+.1f}]".format(*self.interval)
            return f"{start} {verdict} {self.mean:+.1f} {span} points over {count}."
        verb = "gained" if self.certain else "changed the score by"
        span = " to ".join(dict.fromkeys(f"{value:+.1f}" for value in self.range))
        return f"{start} {verb} {span} points in {count}."


def advise(
    space: Space, contrast: Contrast | None, findings: Mapping[str, Finding]
) -> list[Advice]:
    """What to change, the most important first; empty where no finding asks for a change."""
    collapse = findings["collapse"]
    if collapse.verdict == "problem":  # the other values are then those of a single point
        return [
            Advice(
                "Train again with a lower learning rate and less weight decay, and look at the "
                "loss of the first epoch.",
                "The encoder is collapsed: different items have the same embedding, from where no "
                "setting of the loss brings it back.",
                collapse.evidence,
            )
        ]
    advice = []
    if contrast is not None:
        reduction, hard = findings["gradient reduction"], findings["hard negatives"]
        is_uniform = findings["uniformity"].verdict == "ok"
        if reduction.verdict != "ok":
            advice += _keep_gradient(contrast)
            if is_uniform and hard.verdict == "watch":
                advice.append(_warm(contrast, hard))
        # Where the weights separate items of one class, spreading them further is wrong.
        if hard.verdict == "problem":
            advice.append(_tolerate(contrast, hard))
        elif not is_uniform:
            advice.append(_spread(contrast, space.relative_uniformity))
        if findings["temperature"].verdict != "ok":
            advice.append(_leave_floor(contrast, findings["temperature"]))
        advice += [Advice(w.change, w.reason, w.evidence) for w in contrast.config_warnings]
    if collapse.verdict == "watch":
        advice.append(
            Advice(
                "Try weaker augmentation or a narrower projector (method.projector.widths).",
                "The embeddings use a small part of their width.",
                collapse.evidence,
            )
        )
    return advice


def _keep_gradient(contrast: Contrast) -> list[Advice]:
    profile, lost = contrast.profile, 1 - contrast.mean("carried")
    keeping = (
        "reweighting: loss.reweight=true."
        if isinstance(contrast.loss, MACL)
        else "a loss that keeps the gradient: loss=macl (reweighted), dcl or flat-nce."
    )
    history = contrast.history
    effective = profile.effective_anchors if history is None else history.effective_anchors[1]
    gains = gains_at(effective, contrast.modality)
    studied = " ".join(gain.words for gain in gains)
    if not gains:
        of = f" of {contrast.modality}" if contrast.modality else ""
        studied = f"Our study has no setting{of} with an ESS near {effective:.2g}."
    certain = bool(gains) and all(gain.certain for gain in gains)
    advice = [
        Advice(
            f"{'Use' if certain else 'Compare with'} {keeping}",
            f"{percent(lost)} of the gradient is lost; dividing each anchor's loss by its W gives "
            f"it back. {studied}".strip(),
            {"lost": lost, "studied": [asdict(gain) for gain in gains]},
        )
    ]
    times = 1
    while times < MOST_TIMES and profile.with_more_negatives(times) < 1 - LOST[0]:
        times *= 2
    reached = profile.with_more_negatives(times)
    if times > 1 and reached >= 1 - LOST[0]:
        now, scale, key = contrast.mean("count"), contrast.mean("scale"), contrast.negatives_key
        advice.append(
            Advice(
                f"Or contrast with more negatives: {key} {times} times as large.",
                f"By Proposition 1 mean W would rise from {scale:.2f} to about {reached:.2f} with "
                f"{times * now:,.0f} negatives in place of {now:,.0f}.",
                {"negatives": now, "gradient_scale": scale, "times": times, "then": reached},
            )
        )
    return advice


def gains_at(effective: float, modality: str | None = None) -> list[Gain]:
    """What the study found where InfoNCE's ESS was near `effective`; of all modalities if None."""
    content = json.loads(resources.files(__package__).joinpath("evidence.json").read_text("utf-8"))
    return [
        Gain(**entry, loss=content["loss"], source=content["source"])
        for entry in content["gains"]
        if entry["effective_anchors"][0] <= effective <= entry["effective_anchors"][1]
        and modality in (None, entry["modality"])
    ]


def _warm(contrast: Contrast, hard: Finding) -> Advice:
    now, scale, then = contrast.mean("temperature"), contrast.mean("scale"), contrast.mean("hotter")
    top5 = hard.evidence["weight_of_top_5%"]
    return Advice(
        f"Or raise the temperature: {_to(contrast.loss, now, 2 * now)}.",
        f"At twice the temperature mean W of these embeddings is {then:.2f} and not {scale:.2f} "
        f"(Proposition 2), and the hardest 5% of the negatives no longer take {percent(top5)} of "
        "the weight.",
        {"temperature": now, "gradient_scale": scale, "then": then, "weight_of_top_5%": top5},
    )


def _spread(contrast: Contrast, relative: float) -> Advice:
    share, now = contrast.mean("effective_share"), contrast.mean("temperature")
    evidence = {"relative_uniformity": relative, "effective_share": share}
    if share < FLAT:
        return Advice(
            f"Train longer, or with a larger {contrast.negatives_key}.",
            f"Uniformity is {percent(relative)} of that of random directions, yet the weights "
            f"already favor near negatives ({percent(share)} of them count): it is not the "
            "temperature that holds the items together.",
            evidence,
        )
    return Advice(
        f"Lower the temperature: {_to(contrast.loss, now, min(now / 2, USUAL))}.",
        f"Uniformity is {percent(relative)} of that of random directions, and at τ = {now:.3g} "
        f"near and far negatives weigh nearly the same ({percent(share)} of them count in effect): "
        "nothing pushes near ones away.",
        evidence | {"temperature": now},
    )


def _tolerate(contrast: Contrast, hard: Finding) -> Advice:
    now, loss = contrast.mean("temperature"), contrast.loss
    other = loss.temperature.settings_to_rise(contrast.mean("alignment"))
    return Advice(
        f"Raise the temperature: {_to(loss, now, 2 * now)}; or "
        f"{other or 'let it rise with alignment: loss=macl'}.",
        f"{percent(hard.evidence['weight_of_false_negatives'])} of the repulsion separates items "
        "of one class: the temperature is so low that the nearest items, which are mostly of the "
        "anchor's own class, get nearly all of it.",
        hard.evidence,
    )


def _leave_floor(contrast: Contrast, temperature: Finding) -> Advice:
    history = contrast.history
    lowest = contrast.mean("alignment") if history is None else history.lowest_alignment
    settings = contrast.loss.temperature.settings_above_floor(lowest)
    floored = temperature.evidence["floored"]
    changes = " or ".join(f"loss.{name} to {value:g}" for name, value in settings.items())
    return Advice(
        f"Lower {changes}.",
        f"The temperature was at its floor in {percent(floored)} of the steps; with either change "
        f"τ follows the alignment from its lowest value, {lowest:.2f}, on.",
        {"floored": floored, "lowest_alignment": lowest, **settings},
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
