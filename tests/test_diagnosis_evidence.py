"""The advice of a diagnosis names what our own study found in settings alike."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

from macl import NTXent, diagnose
from macl.diagnosis.advise import Gain, gains_at
from macl.diagnosis.result import Advice

ROOT = Path(__file__).parents[1]
ADVISE = sys.modules["macl.diagnosis.advise"]  # the name in the package is the function
CONTENT = json.loads(resources.files("macl.diagnosis").joinpath("evidence.json").read_text("utf-8"))


def test_every_bin_is_found_by_its_middle() -> None:
    assert CONTENT["gains"]
    for entry in CONTENT["gains"]:
        lowest, highest = entry["effective_anchors"]
        (gain,) = gains_at((lowest + highest) / 2, entry["modality"])
        assert gain.mean == entry["mean"]
        assert gain.settings == entry["settings"] >= 1
        assert gain.range[0] <= gain.mean <= gain.range[1]
        if gain.interval is not None:
            assert gain.settings >= 3
            assert gain.interval[0] < gain.mean < gain.interval[1]


def test_a_modality_is_given_its_own_settings_alone() -> None:
    every = {gain.modality for gain in gains_at(0.9)}
    assert every == {"text", "images", "graphs"}
    assert [gain.modality for gain in gains_at(0.9, "text")] == ["text"]
    assert gains_at(0.3, "text") == []  # images alone were studied there


def test_the_source_is_a_page_of_the_documentation() -> None:
    assert (ROOT / CONTENT["source"]).is_file()


def easy_positives() -> list[Advice]:
    """Advice where W is small."""
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(8, 64, generator=generator)
    z2 = z1 + 0.01 * torch.randn(8, 64, generator=generator)
    return diagnose(z1, z2, loss=NTXent(0.1)).advice


def gain(
    mean: float = 1.0,
    interval: tuple[float, float] | None = None,
    extremes: tuple[float, float] = (0.4, 1.6),
    settings: int = 3,
) -> Gain:
    return Gain("images", (0.0, 0.5), mean, interval, extremes, settings, "DCL", "page.md")


def test_an_uncertain_gain_is_not_called_one() -> None:
    certain, uncertain = gain(interval=(0.5, 2.0)), gain(interval=(-0.5, 2.0))
    assert "DCL gained +1.0 [+0.5, +2.0] points over 3 settings (page.md)" in certain.words
    assert "showed no certain gain" in uncertain.words
    assert "gained +0.4 to +1.6 points in 3 settings" in gain().words
    assert certain.certain
    assert gain().certain
    assert not uncertain.certain
    one = gain(-0.8, None, (-0.8, -0.8), 1)
    assert not one.certain
    assert "DCL changed the score by -0.8 points in 1 setting (page.md)" in one.words


@pytest.mark.parametrize(
    ("interval", "word"), [((0.6, 1.8), "Use a loss"), ((-0.6, 1.8), "Compare with a loss")]
)
def test_what_the_study_does_not_show_is_to_be_compared(
    interval: tuple[float, float], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = gain(1.2, interval, (-1.0, 2.0), 14)
    monkeypatch.setattr(ADVISE, "gains_at", lambda effective, modality: [shown])
    assert easy_positives()[0].change.startswith(word)


def test_advice_to_reweight_carries_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = gain(1.2, (0.6, 1.8), (0.1, 2.0), 14)
    asked: list[float] = []

    def studied(effective: float, modality: str | None) -> list[Gain]:
        asked.append(effective)
        return [shown]

    monkeypatch.setattr(ADVISE, "gains_at", studied)
    first = easy_positives()[0]
    assert first.change.startswith("Use a loss that keeps the gradient")
    assert shown.words in first.reason
    (evidence,) = first.evidence["studied"]
    assert (evidence["mean"], evidence["settings"]) == (1.2, 14)
    assert 0 < asked[0] <= 1


def test_without_a_study_the_advice_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    assert gains_at(2.0) == []
    monkeypatch.setattr(ADVISE, "gains_at", lambda effective, modality: [])
    first = easy_positives()[0]
    assert first.change.startswith("Compare with")
    assert "settings like this one" not in first.reason
    assert "Our study has no setting with an ESS near" in first.reason
