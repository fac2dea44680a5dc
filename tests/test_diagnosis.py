"""What `diagnose` measures, against loops and theory, and what it says of constructed cases."""

from __future__ import annotations

import copy
import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import macl
from macl import (
    DCL,
    DCLW,
    HCL,
    MACL,
    ContrastiveLoss,
    DualTemperature,
    DySTreSS,
    FastCLIP,
    FlatNCE,
    InfoNCE,
    ISogCLR,
    NTXent,
    SigLIP,
    SogCLR,
    SupCon,
    TemperatureFree,
    TempNet,
)  # fmt: skip
from macl.diagnosis import diagnose
from macl.diagnosis.measure import GradientProfile
from macl.diagnosis.measure import gradient_profile as profile_of
from macl.diagnosis.space import describe, false_negatives
from macl.losses.build import Inputs


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def views(n: int = 12, d: int = 6, seed: int = 0, apart: float = 0.5) -> tuple[Tensor, Tensor]:
    """Two views of n items, the second `apart` from the first."""
    z1 = noise(n, d, seed=seed)
    return z1, z1 + apart * noise(n, d, seed=seed + 1)


def profile(loss: ContrastiveLoss, **extra: Tensor) -> GradientProfile:
    z1, z2 = views()
    return profile_of(loss, Inputs(z1, z2, indices=torch.arange(12), **extra))


FORMS: dict[str, tuple[ContrastiveLoss, dict[str, Tensor]]] = {
    "both": (NTXent(0.2), {}),
    "both, duplicates": (NTXent(0.2), {"groups": torch.arange(12) // 2}),
    "cross": (InfoNCE(0.2, symmetric=False), {}),
    "cross, both ways, hard": (InfoNCE(0.2), {"hard": noise(4, 6, seed=5)}),
    "cross, hard, duplicates": (
        InfoNCE(0.2),
        {
            "hard": noise(4, 6, seed=5),
            "groups": torch.arange(12) // 2,
            "hard_groups": torch.tensor([0, 0, 3, 99]),
        },
    ),
    "bank": (MACL(0.2), {"bank": noise(40, 6, seed=6)}),
}


@pytest.mark.parametrize("form", FORMS)
def test_margins_are_those_of_the_loss_in_every_form(form: str) -> None:
    loss, extra = FORMS[form]
    z1, z2 = views()
    result = loss.contrast(z1, z2, **extra)
    sample = profile(loss, **extra)
    torch.testing.assert_close(sample.margin, result.margin)
    torch.testing.assert_close(sample.scale, result.gradient_scale)
    assert sample.temperature.tolist() == [pytest.approx(result.temperature.item())]
    assert sample.alignment.tolist() == [pytest.approx(result.alignment.item())]


def test_small_chunks_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = profile(HCL())
    monkeypatch.setattr(sys.modules[GradientProfile.__module__], "CHUNK", 50)
    parts = profile(HCL())
    for name in ("items", "margin", "carried", "count", "entropy", "top1", "top5"):
        torch.testing.assert_close(getattr(whole, name), getattr(parts, name))


@pytest.mark.parametrize("loss", [InfoNCE(0.2), NTXent(0.2), MACL(0.2, reweight=False)])
def test_info_nce_carries_the_gradient_scale(loss: ContrastiveLoss) -> None:
    sample = profile(loss)
    torch.testing.assert_close(sample.carried, sample.scale)


@pytest.mark.parametrize("loss", [DCL(0.2), FlatNCE(0.2), MACL(0.2)])
def test_reweighting_losses_carry_all(loss: ContrastiveLoss) -> None:
    sample = profile(loss)
    torch.testing.assert_close(sample.carried, torch.ones_like(sample.carried))


def test_dual_and_weighted_losses_carry_their_own_factors() -> None:
    hot = profile(NTXent(2.0))
    torch.testing.assert_close(profile(DualTemperature(0.2, beta=10)).carried, hot.scale)
    assert profile(DCLW(0.2)).carried.mean().item() == pytest.approx(1)
    no_debiasing = HCL(0.2, beta=0, tau_plus=0)  # then it is InfoNCE with K/K as its weight
    torch.testing.assert_close(profile(no_debiasing).carried, profile(NTXent(0.2)).scale)


def test_weights_of_negatives_equal_a_loop() -> None:
    z1, z2 = views(n=30)
    sample = profile_of(InfoNCE(0.3, symmetric=False), Inputs(z1, z2, indices=torch.arange(30)))
    u1, u2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
    for i in range(30):
        weights = torch.tensor(
            [math.exp(float(u1[i] @ u2[j]) / 0.3) for j in range(30) if j != i],
            dtype=torch.float64,
        )
        weights /= weights.sum()
        ranked = sorted(weights.tolist(), reverse=True)
        assert sample.count[i] == 29
        assert sample.top1[i].item() == pytest.approx(ranked[0])  # 1% of 29, one at least
        assert sample.top5[i].item() == pytest.approx(sum(ranked[:2]))
        assert sample.entropy[i].item() == pytest.approx(-(weights * weights.log()).sum().item())


def test_more_negatives_are_foretold_by_proposition_1() -> None:
    bank = noise(20, 6, seed=3)
    once, thrice = (profile(NTXent(0.2), bank=b) for b in (bank, bank.repeat(3, 1)))
    assert once.with_more_negatives(3) == pytest.approx(thrice.scale.mean().item())


def test_twice_the_temperature_is_foretold() -> None:
    torch.testing.assert_close(profile(NTXent(0.2)).hotter, profile(NTXent(0.4)).scale)


def test_parting_one_class_is_a_problem_that_a_higher_temperature_mends() -> None:
    # Ten classes of ten, each a tight bundle: at a low temperature all weight falls inside it.
    labels = torch.arange(100) % 10
    centers = 3 * torch.eye(10, 32, dtype=torch.float64)[labels]
    z1, z2 = (centers + noise(100, 32, seed=s) / 4 for s in (1, 2))
    result = diagnose(z1, z2, loss=MACL(0.05), labels=labels)
    assert "hard negatives" in result.problems
    found = result["hard negatives"].evidence
    assert found["false_negatives"] == pytest.approx(9 / 99)
    assert found["weight_of_false_negatives"] > 2 / 3
    for loss, words in (
        (MACL(0.05), "raise loss.alpha"),
        (MACL(0.05, threshold=0.99), "lower loss.threshold (A0) below A"),
        (DCL(0.05), "loss.temperature from 0.05 to about 0.1; or let it rise with alignment"),
    ):
        (advice,) = diagnose(z1, z2, loss=loss, labels=labels).advice
        assert advice.change.startswith("Raise the temperature")
        assert words in advice.change
    assert diagnose(z1, z2, loss=MACL(1.0), labels=labels)["hard negatives"].verdict == "ok"


def test_false_negatives_equal_a_loop() -> None:
    z1, z2 = views(n=40)
    labels = torch.arange(40) % 4
    result = false_negatives(z1, z2, labels, 0.3)
    u1, u2 = F.normalize(z1, dim=1), F.normalize(z2, dim=1)
    base, top1, top5, weight = [], [], [], []
    for i in range(40):
        others = [j for j in range(40) if j != i]
        others.sort(key=lambda j: -float(u1[i] @ u2[j]))
        same = [float(labels[i] == labels[j]) for j in others]
        push = [math.exp(float(u1[i] @ u2[j]) / 0.3) for j in others]
        base.append(sum(same) / 39)
        top1.append(same[0])
        top5.append(sum(same[:2]) / 2)
        weight.append(sum(p * s for p, s in zip(push, same, strict=True)) / sum(push))
    loops = (base, top1, top5, weight)
    assert [*result.values()] == pytest.approx([sum(per_anchor) / 40 for per_anchor in loops])
    assert [*result] == [
        "false_negatives",
        "false_negatives_in_top_1%",
        "false_negatives_in_top_5%",
        "weight_of_false_negatives",
    ]


def test_a_space_is_measured_beside_random_directions() -> None:
    result = describe(noise(300, 16))
    assert result.relative_uniformity == pytest.approx(1, abs=0.02)
    assert result.relative_rank == pytest.approx(1, abs=0.02)
    assert (result.items, result.dimensions, result.dead_dimensions) == (300, 16, 0)
    lame = noise(300, 16)
    lame[:, :5] = 1.0
    lame[:, 0] += 1e-6 * noise(300)
    assert (
        describe(lame * 10 / lame.norm(dim=1, keepdim=True)).dead_dimensions == 0
    )  # rows differ in length
    flat = F.normalize(lame[:, 5:], dim=1)
    assert describe(torch.cat([torch.ones(300, 5), flat], dim=1)).dead_dimensions == 5


@given(st.integers(0, 2**31), st.integers(2, 4))
def test_similarities_within_and_between_classes_equal_a_loop(seed: int, classes: int) -> None:
    z, labels = noise(9, 4, seed=seed), torch.arange(9) % classes
    result = describe(z, labels)
    u = F.normalize(z, dim=1)
    pairs = [(i, j) for i in range(9) for j in range(9) if i != j]
    within = [float(u[i] @ u[j]) for i, j in pairs if labels[i] == labels[j]]
    between = [float(u[i] @ u[j]) for i, j in pairs if labels[i] != labels[j]]
    assert result.tolerance == pytest.approx(sum(within) / len(within), abs=1e-9)
    assert result.contrast == pytest.approx(sum(between) / len(between), abs=1e-9)


def test_classes_without_pairs_are_left_out() -> None:
    assert describe(noise(5, 4), torch.arange(5)).tolerance is None
    one = describe(noise(5, 4), torch.zeros(5, dtype=torch.int64))
    assert one.tolerance == pytest.approx(one.mean_similarity)
    assert one.contrast is None


def test_easy_positives_in_a_small_batch_are_gradient_reduction() -> None:
    z1, z2 = views(16, 64, apart=0.05)
    z1[7] = z2[7] = -z1.sum(0)  # far from all others
    names = [f"picture {i}" for i in range(16)]
    names[7] = "a long\nname" + "." * 99
    result = macl.diagnose(z1, z2, temperature=0.1, names=names)
    assert result.problems == ("gradient reduction",)
    found = result["gradient reduction"]
    assert found.evidence["lost"] > 0.9
    assert names[7] in found.evidence["smallest"]
    assert f"a long name{'.' * 38}… (" in found.words  # 50 characters of it
    assert any("loss=macl" in advice.change for advice in result.advice)
    for loss in (MACL(0.1), DCL(0.1), FlatNCE(0.1)):
        assert diagnose(z1, z2, loss=loss).problems == ()
    switched = diagnose(z1, z2, loss=MACL(0.1, reweight=False))
    assert any("loss.reweight=true" in advice.change for advice in switched.advice)


def test_the_batch_that_is_advised_restores_the_gradient() -> None:
    z1, z2 = views(512, 16, apart=0.3)
    small = diagnose(z1, z2, loss=NTXent(0.2), batch_size=8)
    assert "gradient reduction" in small.problems
    (advice,) = (a for a in small.advice if "batch_size" in a.change)
    times = advice.evidence["times"]
    large = diagnose(z1, z2, loss=NTXent(0.2), batch_size=8 * times)
    assert large["gradient reduction"].verdict == "ok"
    assert large["gradient reduction"].evidence["mean_gradient_scale"] == pytest.approx(
        advice.evidence["then"], abs=0.1
    )


def test_a_bank_is_advised_to_grow() -> None:
    z1, z2 = views(32, 16, apart=0.1)
    result = diagnose(z1, z2, loss=NTXent(0.2), bank=noise(16, 16, seed=9))
    assert any("method.queue_size" in advice.change for advice in result.advice)


def test_gathered_items_at_a_high_temperature_are_poor_uniformity() -> None:
    center = 2 * torch.ones(24)
    z1, z2 = (z + center for z in views(128, 24, apart=0.3))
    result = diagnose(z1, z2, loss=MACL(1.0))
    assert result.problems == ("uniformity",)
    assert "poor" in result["uniformity"].words
    assert any("Lower the temperature" in advice.change for advice in result.advice)
    # At a low one the weights are sharp already: it is not the temperature.
    cold = diagnose(z1, z2, loss=MACL(0.02))
    assert cold.problems == ("uniformity",)
    assert not any("temperature:" in advice.change for advice in cold.advice)


@pytest.mark.parametrize(
    "z",
    [
        torch.ones(64, 16) + 1e-3 * noise(64, 16).float(),
        torch.zeros(64, 16),
        torch.outer(noise(64).float(), noise(16, seed=1).float()),
    ],
    ids=["one point", "zero", "one line"],
)
def test_collapse_is_named_and_alone_advised_on(z: Tensor) -> None:
    result = diagnose(z, z.clone())
    assert "collapse" in result.problems
    assert result["collapse"].words.startswith("collapsed")
    assert len(result.advice) == 1
    assert "learning rate" in result.advice[0].change
    healthy = noise(64, 16).float()
    below = diagnose(healthy, healthy + 0.5 * noise(64, 16, seed=3).float(), features=z)
    assert "collapse" in below.problems


def test_a_narrow_band_is_partly_collapsed() -> None:
    z1, z2 = (F.pad(z, (0, 12)) for z in views(200, 4, apart=0.5))
    result = diagnose(z1, z2, loss=MACL(0.1))
    assert result["collapse"].verdict == "watch"
    assert result["collapse"].evidence["embeddings"]["dead_dimensions"] == 12
    assert any("projector" in advice.change for advice in result.advice)


def test_the_advised_alpha_and_threshold_keep_off_the_floor() -> None:
    z1, z2 = views(64, 16, apart=2.0)
    loss = MACL(0.05, alpha=2.0, threshold=0.9)
    result = diagnose(z1, z2, loss=loss)
    found = result["temperature"]
    assert found.verdict == "watch"
    assert found.evidence["floored"] == 1
    assert found.evidence["range"] == pytest.approx((0.05 * (1 - 2 * 1.9), 0.05 * (1 + 2 * 0.1)))
    (advice,) = (a for a in result.advice if "loss.alpha" in a.change)
    alpha, threshold = advice.evidence["alpha"], advice.evidence["threshold"]
    for better in (MACL(0.05, alpha, 0.9), MACL(0.05, 2.0, threshold)):
        assert diagnose(z1, z2, loss=better)["temperature"].verdict == "ok"


def test_the_temperature_is_placed_in_its_range() -> None:
    z1, z2 = views(64, 16, apart=1.0)
    result = diagnose(z1, z2, loss=MACL(0.1, 0.5, 0.2))["temperature"].evidence
    assert result["range"] == pytest.approx((0.1 * (1 - 0.6), 0.1 * (1 + 0.4)))
    assert result["position"] == pytest.approx((result["alignment"] + 1) / 2)
    assert result["temperature"] == pytest.approx(0.1 * (1 + 0.5 * (result["alignment"] - 0.2)))


@given(st.integers(0, 2**31), st.floats(0.05, 1), st.floats(0.01, 100))
def test_the_scale_of_embeddings_says_nothing(seed: int, tau: float, scale: float) -> None:
    z1, z2 = views(seed=seed)
    one, other = diagnose(z1, z2, tau), diagnose(z1 * scale, z2 / scale, tau)
    assert [f.verdict for f in one.findings] == [f.verdict for f in other.findings]
    lost = [d["gradient reduction"].evidence["lost"] for d in (one, other)]
    assert lost[0] == pytest.approx(lost[1], abs=1e-6)


def test_a_diagnosis_is_json_and_readable() -> None:
    z1, z2 = views(16, 64, apart=0.05)
    result = diagnose(z1, z2, labels=torch.arange(16) % 2, features=z1.relu())
    again = json.loads(json.dumps(result.as_dict()))
    assert [f["name"] for f in again["findings"]] == [f.name for f in result.findings]
    assert again["advice"][0]["evidence"]["lost"] > 0.5
    for part in ("gradient reduction [problem]", "Advice:", "Tolerance", "16 items"):
        assert part in str(result)
    with pytest.raises(KeyError):
        result["weather"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"temperature": 0.1, "loss": NTXent()}, "not both"),
        ({"labels": torch.zeros(3, dtype=torch.int64)}, "labels has 3 entries"),
        ({"names": ["a"]}, "names has 1 entries"),
        ({"batch_size": 1}, "batch_size must be 2"),
        ({"bank": torch.ones(4, 5)}, "bank must be"),
        ({"z2": torch.full((12, 6), math.nan, dtype=torch.float64)}, "NaN"),
        ({"z2": torch.ones(11, 6, dtype=torch.float64)}, "same shape"),
        ({"z1": torch.ones(1, 6), "z2": torch.ones(1, 6)}, "no negatives"),
        ({"z1": torch.ones(0, 6), "z2": torch.ones(0, 6)}, "empty"),
    ],
)
def test_mistakes_are_told(change: dict[str, object], words: str) -> None:
    z1, z2 = views()
    with pytest.raises(ValueError, match=words):
        diagnose(**({"z1": z1, "z2": z2} | change))  # type: ignore[arg-type]


INDICES = torch.arange(12)
OWN: dict[str, Callable[[], ContrastiveLoss]] = {
    "dystress": lambda: DySTreSS(0.1, 0.3),
    "dystress, cross": lambda: DySTreSS(0.1, 0.3, negatives="cross"),
    "temperature-free": TemperatureFree,
    "siglip": lambda: SigLIP(0.2, -4.0),
    "sogclr": lambda: SogCLR(0.2, size=12),
    "isogclr": lambda: ISogCLR(0.2, size=12),
    "isogclr, cross": lambda: ISogCLR(0.2, size=12, negatives="cross"),
    "fastclip": lambda: FastCLIP(0.2, size=12, version=2, rho=1.0),
    "tempnet": lambda: TempNet(6, size=12, rho=1.0),
    "supcon": lambda: SupCon(0.2),
}


def trained(loss: ContrastiveLoss) -> ContrastiveLoss:
    """After some steps, in which a temperature per sample moves."""
    loss.double().train()
    for seed in range(5):
        z1, z2 = views(seed=seed, apart=0.1 + 0.2 * seed)
        own = {"indices": INDICES} if loss.takes_indices else {}
        loss.contrast(z1, z2, **own)
    return loss


@pytest.mark.parametrize("name", OWN)
def test_weights_are_those_of_losses_with_logits_of_their_own(name: str) -> None:
    loss = trained(OWN[name]())
    before = copy.deepcopy(loss.state_dict())
    sample = profile(loss)
    assert loss.training
    for key, value in loss.state_dict().items():
        assert torch.equal(value, before[key]), key
    own = {"indices": INDICES} if loss.takes_indices else {}
    result = loss.eval().contrast(*views(), **own)
    torch.testing.assert_close(sample.margin, result.margin)
    torch.testing.assert_close(
        sample.anchor_temperature, result.temperature.expand(len(result.margin))
    )
    assert sample.temperature.tolist() == [pytest.approx(result.temperature.mean().item())]


@pytest.mark.parametrize("name", ["dystress", "temperature-free", "supcon"])
def test_they_carry_the_gradient_scale_too(name: str) -> None:
    sample = profile(OWN[name]())
    torch.testing.assert_close(sample.carried, sample.scale)


@pytest.mark.parametrize("name", ["sogclr", "isogclr", "isogclr, cross", "fastclip", "tempnet"])
def test_global_objectives_lose_no_gradient(name: str) -> None:
    sample = profile(trained(OWN[name]()))
    torch.testing.assert_close(sample.carried, torch.ones_like(sample.carried))
    torch.testing.assert_close(sample.pushed, sample.carried)


def test_the_pull_and_push_of_siglip() -> None:
    z1, z2 = (F.normalize(z, dim=1) for z in views())
    sample = profile(SigLIP(0.2, -2.0).double())
    for i in range(12):
        s = [(z1[i] @ z2[j]).item() for j in range(12)]
        assert sample.carried[i].item() == pytest.approx(1 / (1 + math.exp(s[i] / 0.2 - 2)), 1e-6)
        push = sum(1 / (1 + math.exp(2 - s[j] / 0.2)) for j in range(12) if j != i)
        assert sample.pushed[i].item() == pytest.approx(push, 1e-6)


def test_negatives_of_supcon_are_of_other_labels() -> None:
    labels = INDICES % 3
    sample = profile_of(SupCon(0.2), Inputs(*views(), indices=INDICES, positives=labels))
    assert sample.count.tolist() == [16.0] * 24
    found = diagnose(*views(40, 20), loss=SupCon(0.2), labels=torch.arange(40) % 4)
    assert "weight_of_false_negatives" not in found["hard negatives"].evidence


SETTINGS: dict[str, tuple[Callable[[], ContrastiveLoss], str, str]] = {
    "rho": (lambda: ISogCLR(0.05, size=40, rho=9.0), "not below log K = 4.36", "Lower loss.rho"),
    "bound": (lambda: ISogCLR(1.0, size=40), "bounds for 100% of the anchors", "loss.tau_max"),
    "monotone": (lambda: DySTreSS(0.01, 1.0), "does not increase", "closer together"),
    "high b": (lambda: SigLIP(0.1, 5.0), "the repulsion is", "Start loss.bias at about"),
    "low b": (lambda: SigLIP(0.1, -40.0), "the attraction is", "Start loss.bias at about"),
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("case", SETTINGS)
def test_a_loss_states_what_of_its_settings_does_not_fit(case: str) -> None:
    build, state, change = SETTINGS[case]
    found = diagnose(*views(40, 20), loss=build())
    assert found["settings of the loss"].verdict == "watch"
    assert state in found["settings of the loss"].words
    assert any(change in advice.change for advice in found.advice)
    json.dumps(found.as_dict())


@pytest.mark.parametrize("name", OWN)
def test_settings_that_fit_are_no_finding(name: str) -> None:
    found = diagnose(*views(apart=0.5), loss=trained(OWN[name]()))
    assert not [f for f in found.findings if f.name == "settings of the loss"]
    assert json.dumps(found.as_dict())


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        (DySTreSS(20.0, 40.0), "multiply loss.tau_min and loss.tau_max by about 0."),
        (NTXent(20.0), "loss.temperature from 20 to about 0.2"),
    ],
)
def test_a_lower_temperature_is_set_by_the_keys_of_the_loss(
    loss: ContrastiveLoss, expected: str
) -> None:
    z1 = noise(60, 8) + 2.5
    found = diagnose(z1, z1 + 0.1 * noise(60, 8, seed=1), loss=loss)
    assert any(expected in advice.change for advice in found.advice), found.advice


def test_effective_anchors_by_loop() -> None:
    sample = profile(NTXent(0.2))
    total = squares = 0.0
    for weight in sample.scale.tolist():
        total += weight
        squares += weight**2
    assert sample.effective_anchors == pytest.approx(total**2 / (len(sample.scale) * squares))

    def of(margin: Tensor) -> float:
        return replace(sample, margin=margin).effective_anchors

    # A common factor cancels, as in Adam's step; small squares do not underflow.
    small = torch.tensor([-70.0, -71.0, -72.0])  # W = σ(x) ≈ exp(x)
    assert of(small) == pytest.approx(of(small - 20))
    assert of(torch.full((7,), 50.0)) == pytest.approx(1)
    assert of(torch.tensor([0.0, -math.inf, -math.inf, -math.inf])) == pytest.approx(0.25)
    assert of(torch.full((4,), -math.inf)) == 0


def test_the_verdict_is_one_line_and_comes_first() -> None:
    z = noise(16, 64)
    result = diagnose(z, z + 1e-3 * noise(16, 64, seed=1), loss=NTXent(0.1))
    assert result.verdict.startswith("problem: gradient reduction")
    assert str(result).splitlines()[0] == result.verdict
    calm = diagnose(*views(n=64, d=64, apart=1.0), loss=DCL(0.5))
    assert calm.verdict == "ok: nothing calls for a change."
