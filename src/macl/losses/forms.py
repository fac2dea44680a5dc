"""From the arguments of a loss to the form of its pairs."""

from __future__ import annotations

import torch

from macl.losses.checks import check_enough, check_groups, unit_extra
from macl.losses.cross_view import CrossView
from macl.losses.inputs import Inputs
from macl.losses.pairs import Bank, BothViews, Pairs
from macl.losses.positives import SeveralPositives
from macl.losses.unit import unit_rows, unit_views

_BANKLESS = "bank_groups describes a bank: give bank=(K, D) too, or leave it out."


def form_pairs(
    inputs: Inputs,
    negatives: str,
    symmetric: bool,
    gather: bool | str,
    needs_negatives: bool = True,
) -> Pairs:
    """The pairs of a batch, with rows at length 1; the settings are those of `ContrastiveLoss`.

    Raises:
        ValueError: arguments that do not fit together.
    """
    z1, z2 = inputs.views()
    bank, groups, bank_groups = inputs.bank, inputs.groups, inputs.bank_groups
    hard, hard_groups = inputs.hard, inputs.hard_groups
    if inputs.positives is not None:
        return SeveralPositives.of(inputs, negatives, symmetric, gather)
    check_groups("groups", groups, len(z1))
    if hard_groups is not None and (hard is None or groups is None):
        raise ValueError(
            "hard_groups compares hard negatives with the batch: give hard and groups too."
        )
    if bank is None and negatives == "both":
        if hard is not None:
            raise ValueError('hard needs negatives="cross", where anchors are the first view.')
        if bank_groups is not None:
            raise ValueError(_BANKLESS)
        check_enough(z1, bool(gather) or not needs_negatives)
        return BothViews(unit_rows(torch.cat([z1, z2]), "z1", "z2"), groups, gather)
    z1, z2 = unit_views(z1, z2)
    if bank is not None:
        if hard is not None:
            raise ValueError(
                "hard adds negatives to a batch; with a bank, append them to the bank."
            )
        if (groups is None) != (bank_groups is None):
            raise ValueError("with a bank, give groups and bank_groups, or neither.")
        bank = unit_extra(bank, "bank", z1, inputs.bank_is_unit)
        check_groups("bank_groups", bank_groups, len(bank))
        return Bank(z1, z2, bank, groups, bank_groups)
    if bank_groups is not None:
        raise ValueError(_BANKLESS)
    if hard is None:
        check_enough(z1, bool(gather) or not needs_negatives)
    else:
        hard = unit_extra(hard, "hard", z1)
        check_groups("hard_groups", hard_groups, len(hard))
    return CrossView(z1, z2, groups, gather, symmetric, hard, hard_groups)
