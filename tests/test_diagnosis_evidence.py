"""The advice of a diagnosis names what our own study found in settings alike."""

from __future__ import annotations

import json
import sys
from importlib import resources
from pathlib import Path

import pytest
import torch

from macl import NTXent, diagnose
from macl.diagnosis import evidence
from macl.diagnosis.evidence import Gain, gain_at
from macl.diagnosis.result import Advice

ROOT = Path(__file__).parents[1]
ADVISE = sys.modules["macl.diagnosis.advise"]  # the name in the package is the function
CONTENT = json.loads(resources.files("macl.diagnosis").joinpath("evidence.json").read_text("utf-8"))


def test_every_bin_is_found_by_its_middle() -> None:
    assert CONTENT["bins"]
    for found in CONTENT["bins"]:
        lowest, highest = found["effective_anchors"]
        gain = gain_at((lowest + highest) / 2)
        assert gain is not None
        assert gain.mean == found["mean"]
        assert gain.settings == found["settings"] >= 1
        assert gain.extremes[0] <= gain.mean <= gain.extremes[1]
        if gain.interval is not None:
            assert gain.settings >= 3
            assert gain.interval[0] < gain.mean < gain.interval[1]


def test_the_source_is_a_page_of_the_documentation() -> None:
    assert (ROOT / CONTENT["source"]).is_file()


def easy_positives() -> list[Advice]:
    """Advice where W is small."""
    generator = torch.Generator().manual_seed(0)
    z1 = torch.randn(8, 64, generator=generator)
    z2 = z1 + 0.01 * torch.randn(8, 64, generator=generator)
    return diagnose(z1, z2, loss=NTXent(0.1)).advice


def test_an_uncertain_gain_is_not_called_one() -> None:
    def gain(interval: tuple[float, float] | None) -> Gain:
        extremes = (0.4, 1.6)
        return Gain(0.0, 0.5, 1.0, interval, extremes, 3, ("images",), "DCL", "page.md")

    assert "DCL gained +1.0 [+0.5, +2.0] points over 3 settings (page.md)" in gain((0.5, 2.0)).words
    assert "showed no certain gain" in gain((-0.5, 2.0)).words
    assert "gained +0.4 to +1.6 points in 3 settings" in gain(None).words
    assert gain((0.5, 2.0)).certain
    assert gain(None).certain
    assert not gain((-0.5, 2.0)).certain
    one = Gain(0.2, 0.5, -0.8, None, (-0.8, -0.8), 1, ("images",), "DCL", "page.md")
    assert not one.certain
    assert "DCL changed the score by -0.8 points in 1 setting (page.md)" in one.words


@pytest.mark.parametrize(
    ("interval", "word"), [((0.6, 1.8), "Use a loss"), ((-0.6, 1.8), "Compare with a loss")]
)
def test_what_the_study_does_not_show_is_to_be_compared(
    interval: tuple[float, float], word: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown = Gain(0.0, 1.0, 1.2, interval, (-1.0, 2.0), 14, ("images",), "DCL", "page.md")
    monkeypatch.setattr(ADVISE, "gain_at", lambda effective: shown)
    assert easy_positives()[0].change.startswith(word)


def test_advice_to_reweight_carries_the_study(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = Gain(0.0, 1.0, 1.2, (0.6, 1.8), (0.1, 2.0), 14, ("images",), "DCL", "page.md")
    asked: list[float] = []

    def found(effective: float) -> Gain:
        asked.append(effective)
        return shown

    monkeypatch.setattr(ADVISE, "gain_at", found)
    first = easy_positives()[0]
    assert first.change.startswith("Use a loss that keeps the gradient")
    assert shown.words in first.reason
    assert first.evidence["gain"] == 1.2
    assert first.evidence["settings"] == 14
    assert 0 < asked[0] <= 1


def test_without_a_bin_there_is_no_claim(monkeypatch: pytest.MonkeyPatch) -> None:
    assert evidence.gain_at(2.0) is None
    monkeypatch.setattr(ADVISE, "gain_at", lambda effective: None)
    z = torch.randn(8, 64, generator=torch.Generator().manual_seed(0))
    advice = diagnose(z, z + 1e-3, loss=NTXent(0.1)).advice
    assert "settings like this one" not in advice[0].reason
