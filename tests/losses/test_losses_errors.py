"""Wrong input: a ValueError that names the thing and says what to do."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import macl
from macl import DCLW, HCL, MACL, DualTemperature, InfoNCE, NTXent

Z = torch.randn(4, 3, generator=torch.Generator().manual_seed(0))
BANK = torch.randn(5, 3, generator=torch.Generator().manual_seed(1))
CROSS = InfoNCE()


def spoiled(value: float) -> Tensor:
    z = Z.clone()
    z[2, 1] = value
    return z


CALLS: dict[str, tuple[Callable[[], object], str]] = {
    "one row less": (lambda: NTXent()(Z, Z[:3]), "same shape"),
    "another width": (lambda: NTXent()(Z, Z[:, :2]), "same shape"),
    "three dimensions": (lambda: NTXent()(Z[None], Z[None]), r"\(N, D\)"),
    "no columns": (lambda: NTXent()(Z[:, :0], Z[:, :0]), r"\(N, D\)"),
    "empty": (lambda: NTXent()(Z[:0], Z[:0]), "empty"),
    "integers": (lambda: NTXent()(Z.long(), Z.long()), "floating point"),
    "two types": (lambda: NTXent()(Z, Z.double()), "agree in type"),
    "a single pair": (lambda: NTXent()(Z[:1], Z[:1]), "bank"),
    "a single pair, cross": (lambda: CROSS(Z[:1], Z[:1]), "drop_last"),
    "NaN": (lambda: NTXent()(spoiled(torch.nan), Z), "z1 has NaN.*row 2.*learning rate"),
    "infinity": (lambda: NTXent()(Z, spoiled(-torch.inf)), "z2 has NaN or infinite"),
    "NaN in the bank": (lambda: NTXent()(Z, Z, bank=spoiled(torch.nan)), "bank has NaN"),
    "bank of another width": (lambda: NTXent()(Z, Z, bank=BANK[:, :2]), r"bank must be \(K, 3\)"),
    "empty bank": (lambda: NTXent()(Z, Z, bank=BANK[:0]), "K ≥ 1"),
    "one-dimensional bank": (lambda: NTXent()(Z, Z, bank=BANK[0]), "bank must be"),
    "hard with a bank": (lambda: CROSS(Z, Z, bank=BANK, hard=BANK), "append them to the bank"),
    "hard with both views": (lambda: NTXent()(Z, Z, hard=BANK), 'negatives="cross"'),
    "hard of another width": (lambda: CROSS(Z, Z, hard=BANK[:, :2]), "hard must be"),
    "groups too short": (lambda: NTXent()(Z, Z, groups=torch.arange(3)), r"groups.*\(4,\)"),
    "groups as a column": (lambda: NTXent()(Z, Z, groups=torch.ones(4, 1).long()), "groups"),
    "groups as floats": (lambda: NTXent()(Z, Z, groups=torch.ones(4)), "integer"),
    "groups without the bank's": (
        lambda: NTXent()(Z, Z, bank=BANK, groups=torch.arange(4)),
        "groups and bank_groups",
    ),
    "the bank's groups too short": (
        lambda: NTXent()(Z, Z, bank=BANK, groups=torch.arange(4), bank_groups=torch.arange(4)),
        r"bank_groups.*\(5,\)",
    ),
    "bank groups without a bank": (
        lambda: NTXent()(Z, Z, bank_groups=torch.arange(5)),
        "give bank=",
    ),
    "hard groups alone": (
        lambda: CROSS(Z, Z, hard=BANK, hard_groups=torch.arange(5)),
        "give hard and groups",
    ),
    "hard groups too short": (
        lambda: CROSS(Z, Z, hard=BANK, groups=torch.arange(4), hard_groups=torch.arange(4)),
        r"hard_groups.*\(5,\)",
    ),
    "weights too short": (lambda: NTXent()(Z, Z, weights=torch.ones(2)), r"weights.*\(4,\)"),
    "weights, one per anchor": (lambda: NTXent()(Z, Z, weights=torch.ones(8)), "per pair"),
    "no weights": (lambda: NTXent()(Z, Z, weights=torch.ones(0)), "weights"),
    "negative weights": (lambda: NTXent()(Z, Z, weights=-torch.ones(4)), "0 or more"),
    "NaN weights": (lambda: NTXent()(Z, Z, weights=torch.full((4,), torch.nan)), "finite"),
    "similarities: other lengths": (
        lambda: MACL().from_similarities(torch.ones(3, 1), torch.ones(4, 2)),
        "pos",
    ),
    "similarities: no negatives": (
        lambda: MACL().from_similarities(torch.ones(3, 1), torch.ones(3, 0)),
        "K ≥ 1",
    ),
    "similarities: NaN": (
        lambda: MACL().from_similarities(torch.ones(3, 1), torch.full((3, 2), torch.nan)),
        "neg has NaN",
    ),
    "negatives": (lambda: NTXent(negatives="all"), '"both" or "cross"'),  # type: ignore[arg-type]
    "reduction": (lambda: NTXent(reduction="sum"), '"mean" or "none"'),  # type: ignore[arg-type]
    "sigma": (lambda: DCLW(sigma=0.0), "sigma"),
    "dual beta": (lambda: DualTemperature(beta=-1.0), "beta"),
    "HCL beta": (lambda: HCL(beta=-1.0), "beta"),
    "HCL tau_plus": (lambda: HCL(tau_plus=1.0), "tau_plus"),
}


@pytest.mark.parametrize("call", CALLS)
def test_a_mistake_is_explained(call: str) -> None:
    wrong, message = CALLS[call]
    with pytest.raises(ValueError, match=message):
        wrong()


def test_a_single_pair_is_welcome_with_a_bank_or_hard_negatives() -> None:
    assert NTXent()(Z[:1], Z[:1], bank=BANK).isfinite()
    assert InfoNCE(symmetric=False)(Z[:1], Z[:1], hard=BANK).isfinite()


def test_weights_of_zero_leave_nothing_to_learn() -> None:
    z = Z.clone().requires_grad_()
    value = MACL()(z, BANK[:4], weights=torch.zeros(4))
    (gradient,) = torch.autograd.grad(value, z)
    assert value == 0
    assert bool((gradient == 0).all())


def test_a_criterion_prints_its_form() -> None:
    shown = repr(MACL(0.1, 0.5, negatives="cross", symmetric=False))
    assert "alpha=0.5" in shown
    assert "negatives=cross, one direction" in shown


def test_names_of_version_0_2_warn_and_work() -> None:
    made = {
        "CosineSchedule": lambda: macl.CosineSchedule(lowest=0.2, highest=0.4),
        "DySTreSS": lambda: macl.DySTreSS(lowest=0.2, highest=0.4),
        "FastCLIP": lambda: macl.FastCLIP(0.3, lowest=0.2, highest=0.4),
    }
    for name, build in made.items():
        with pytest.warns(DeprecationWarning, match=rf"{name}\((lowest|highest)=…\) is now tau_"):
            built = build()
        bounds = built.temperature_range if name == "FastCLIP" else (built.tau_min, built.tau_max)
        assert tuple(bounds) == (0.2, 0.4)
    with pytest.warns(DeprecationWarning, match="variant"):
        assert macl.SupCon(form="in").variant == "in"
    with pytest.warns(DeprecationWarning, match="extra_metrics"):
        assert NTXent().contrast(torch.eye(3), torch.eye(3)).own == {}
