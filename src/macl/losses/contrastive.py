"""A contrastive loss = who is contrasted × temperature × objective."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Literal, TypedDict

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses import objectives
from macl.losses.kernels import select
from macl.losses.kernels.interface import LogitMap, wide
from macl.losses.lazy import lazy
from macl.losses.logits import Logits, temperature_at
from macl.losses.pairs import Bank, BothViews, CrossView, Explicit, Pairs
from macl.losses.temperature import Fixed, Mapped, Temperature
from macl.losses.unit import check_finite, reads_values, unit_rows, unit_views

_BANKLESS = "bank_groups describes a bank: give bank=(K, D) too, or leave it out."

Gather = bool | Literal["ring"]
Negatives = Literal["both", "cross"]
Reduction = Literal["mean", "none"]


class Form(TypedDict, total=False):
    """The keywords that every loss of the family takes; see `ContrastiveLoss`."""

    negatives: Negatives
    symmetric: bool
    reduction: Reduction
    gather: Gather
    kernel: str | None
    validate: bool


@dataclass(frozen=True)
class Contrast:
    """A loss and what it was made of. Everything but `loss` and `per_anchor` is detached."""

    loss: Tensor
    """What to call backward on: a scalar, or (n,) with reduction="none"."""
    per_anchor: Tensor
    """(n,) the loss of each anchor, unweighted."""
    margin: Tensor
    """(n,) x = logsumexp of the negatives' logits − the positive's logit."""
    alignment: Tensor
    """Scalar A, the mean positive similarity over the whole (global) batch."""
    temperature: Tensor
    """τ that was used: a scalar, or (n,) where each anchor has its own (see `temperature_at`)."""
    floored: Tensor
    """Scalar bool: the temperature's floor was acting."""

    @lazy
    def gradient_scale(self) -> Tensor:
        """(n,) W_i = σ(x_i), the factor that InfoNCE's gradient carries."""
        return torch.sigmoid(self.margin)

    @lazy
    def effective_anchors(self) -> Tensor:
        """Scalar (ΣW)²/(n·ΣW²), the share of anchors that InfoNCE learns from, 1/n to 1.

        Computed from the shares W/ΣW = softmax(log W), which do not underflow. 0 if no anchor has a
        negative.
        """
        share = torch.softmax(torch.nn.functional.logsigmoid(self.margin), 0)
        effective = 1 / (len(share) * share.square().sum())
        return torch.where(self.margin.isneginf().all(), 0.0, effective)

    @lazy
    def info_nce(self) -> Tensor:
        """Scalar mean −log P: comparable between objectives, some of which have constant values."""
        return objectives.info_nce(self.margin).mean()


def average(one: Contrast, two: Contrast) -> Contrast:
    """Two contrasts of one step as one: losses and figures halved, anchors side by side."""
    return Contrast(
        loss=(one.loss + two.loss) / 2 if one.loss.ndim == 0 else torch.cat([one.loss, two.loss]),
        per_anchor=torch.cat([one.per_anchor, two.per_anchor]),
        margin=torch.cat([one.margin, two.margin]),
        alignment=(one.alignment + two.alignment) / 2,
        temperature=(
            (one.temperature + two.temperature) / 2
            if one.temperature.ndim == 0
            else torch.cat([one.temperature, two.temperature])
        ),
        floored=one.floored | two.floored,
    )


class ContrastiveLoss(nn.Module):
    """Base of the family; subclasses say in `objective` what they make of the pairs.

    Args:
        temperature: τ, a number or a `Temperature`; or a `LogitMap`, g(s) in the place of s/τ.
        negatives: "both" (2N anchors, 2N−2 negatives from both views) or "cross" (other view only,
            N−1 negatives). Without effect when a bank is given.
        symmetric: with "cross", contrast in both directions and average.
        reduction: "mean", or "none" for one value per anchor.
        gather: use every rank's keys when torch.distributed is initialised. True holds all of them
            on every rank; "ring" passes them on block by block, for batches whose keys are too
            large to be held: memory O(n·D) per rank, the same loss and gradients.
        kernel: implementation of the streamed operator: "torch", "triton" or "auto"; default the
            environment variable MACL_KERNEL, or "auto". See `macl.losses.kernels.selected`.
        validate: check values (NaN, infinity, weights) on every device. Without, they are checked
            on the CPU only, as reading them waits for the device; elsewhere such input gives NaN.
            Under torch.compile a check ends the graph.
    """

    def __init__(
        self,
        temperature: float | Temperature | LogitMap = 0.1,
        *,
        negatives: Negatives = "both",
        symmetric: bool = True,
        reduction: Reduction = "mean",
        gather: Gather = False,
        kernel: str | None = None,
        validate: bool = False,
    ) -> None:
        super().__init__()
        if negatives not in ("both", "cross"):
            raise ValueError(f'negatives is "both" or "cross", got {negatives!r}.')
        if reduction not in ("mean", "none"):
            raise ValueError(f'reduction is "mean" or "none", got {reduction!r}.')
        if gather not in (True, False, "ring"):
            raise ValueError(f'gather is True, False or "ring", got {gather!r}.')
        if isinstance(temperature, LogitMap):
            temperature = Mapped(temperature)
        self.temperature = (
            temperature if isinstance(temperature, Temperature) else Fixed(temperature)
        )
        self.negatives, self.symmetric = negatives, symmetric
        self.reduction, self.gather = reduction, gather
        self.kernel, self.validate = select.checked(kernel), validate

    def objective(self, pairs: Pairs, logits: Logits, x: Tensor) -> Tensor:
        """(n,) loss of each anchor, given its margin x at these `logits` (τ or a map)."""
        raise NotImplementedError

    def forward(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        bank: Tensor | None = None,
        groups: Tensor | None = None,
        bank_groups: Tensor | None = None,
        hard: Tensor | None = None,
        hard_groups: Tensor | None = None,
        weights: Tensor | None = None,
        bank_is_unit: bool = False,
    ) -> Tensor:
        """The loss of two views, row i of `z1` ↔ row i of `z2`; see `contrast`.

        Without the other figures, hence a little faster.
        """
        with _full_precision(z1.device.type):
            pairs = self._pairs(z1, z2, bank, groups, bank_groups, hard, hard_groups, bank_is_unit)
            self._check_weights(weights, len(z1))
            if self.temperature.adapts:
                alignment = distributed.global_mean(pairs.positive)
            else:
                dtype = torch.promote_types(z1.dtype, torch.float32)
                alignment = torch.zeros((), dtype=dtype, device=z1.device)
            return self._reduce(self._losses(pairs, alignment)[2], weights)

    def contrast(
        self,
        z1: Tensor,
        z2: Tensor,
        *,
        bank: Tensor | None = None,
        groups: Tensor | None = None,
        bank_groups: Tensor | None = None,
        hard: Tensor | None = None,
        hard_groups: Tensor | None = None,
        weights: Tensor | None = None,
        bank_is_unit: bool = False,
    ) -> Contrast:
        """The loss with the figures that it is made of.

        Args:
            z1: (N, D) anchors of any scale; normalised inside.
            z2: (N, D) positives, row by row.
            bank: (K, D) negatives of every anchor, instead of the batch's own.
            groups: (N,) integers; rows of one group are never each other's negatives.
            bank_groups: (K,) the same for the bank.
            hard: (H, D) further negatives of every anchor in `z1` (with negatives="cross").
            hard_groups: (H,) the same for them; without, they are of no group.
            weights: (N,) weight of each pair in the mean.
            bank_is_unit: the bank's rows have length 1: they are used as they are, neither copied
                nor checked. A bank that needs no gradient may change before the backward pass.
        """
        with _full_precision(z1.device.type):
            pairs = self._pairs(z1, z2, bank, groups, bank_groups, hard, hard_groups, bank_is_unit)
            self._check_weights(weights, len(z1))
            return self._contrast(pairs, weights)

    def from_similarities(self, pos: Tensor, neg: Tensor) -> Tensor:
        """Algorithm 1 of the paper: `pos` (N, 1) or (N,), `neg` (N, K) similarities in [−1, 1]."""
        if pos.ndim == 2 and pos.shape[1] == 1:
            pos = pos[:, 0]
        if pos.ndim != 1 or neg.ndim != 2 or len(pos) != len(neg) or 0 in neg.shape:
            raise ValueError(
                f"from_similarities takes pos (N, 1) and neg (N, K) with N, K ≥ 1, got "
                f"{tuple(pos.shape)} and {tuple(neg.shape)}."
            )
        for name, value in (("pos", pos), ("neg", neg)):
            if self._checks(value) and not bool(value.detach().isfinite().all()):
                raise ValueError(f"{name} has NaN or infinite values; similarities are in [-1, 1].")
        dtype = torch.float64 if torch.float64 in (pos.dtype, neg.dtype) else torch.float32
        with _full_precision(pos.device.type):
            return self._contrast(Explicit(pos.to(dtype), neg.to(dtype)), None).loss

    def _checks(self, value: Tensor) -> bool:
        """Whether values are checked, which reads them back from the device."""
        return self.validate or reads_values(value)

    def _pairs(
        self,
        z1: Tensor,
        z2: Tensor,
        bank: Tensor | None,
        groups: Tensor | None,
        bank_groups: Tensor | None,
        hard: Tensor | None,
        hard_groups: Tensor | None,
        bank_is_unit: bool,
    ) -> Pairs:
        _check_views(z1, z2)
        if self.validate and not reads_values(z1):  # where they are read, `unit_rows` checks
            extra = {"bank": bank, "hard": hard}
            for name, rows in {"z1": z1, "z2": z2, **extra}.items():
                if rows is not None:
                    check_finite(rows, name)
        pairs = self._form(z1, z2, bank, groups, bank_groups, hard, hard_groups, bank_is_unit)
        pairs.kernel = self.kernel
        return pairs

    def _form(
        self,
        z1: Tensor,
        z2: Tensor,
        bank: Tensor | None,
        groups: Tensor | None,
        bank_groups: Tensor | None,
        hard: Tensor | None,
        hard_groups: Tensor | None,
        bank_is_unit: bool,
    ) -> Pairs:
        _check_groups("groups", groups, len(z1))
        if hard_groups is not None and (hard is None or groups is None):
            raise ValueError(
                "hard_groups compares hard negatives with the batch: give hard and groups too."
            )
        gather = self.gather if distributed.world_size() > 1 else False
        if self.gather and not gather:
            distributed.warn_if_alone()
        if bank is None and self.negatives == "both":
            if hard is not None:
                raise ValueError('hard needs negatives="cross", where anchors are the first view.')
            if bank_groups is not None:
                raise ValueError(_BANKLESS)
            _check_enough(z1, gather)
            return BothViews(unit_rows(torch.cat([z1, z2]), "z1", "z2"), groups, gather)
        z1, z2 = unit_views(z1, z2)
        if bank is not None:
            if hard is not None:
                raise ValueError(
                    "hard adds negatives to a batch; with a bank, append them to the bank."
                )
            if (groups is None) != (bank_groups is None):
                raise ValueError("with a bank, give groups and bank_groups, or neither.")
            bank = _unit_extra(bank, "bank", z1, bank_is_unit)
            _check_groups("bank_groups", bank_groups, len(bank))
            return Bank(z1, z2, bank, groups, bank_groups)
        if bank_groups is not None:
            raise ValueError(_BANKLESS)
        if hard is None:
            _check_enough(z1, gather)
        else:
            hard = _unit_extra(hard, "hard", z1)
            _check_groups("hard_groups", hard_groups, len(hard))
        return CrossView(z1, z2, groups, gather, self.symmetric, hard, hard_groups)

    def _losses(self, pairs: Pairs, alignment: Tensor) -> tuple[Logits, Tensor, Tensor]:
        """τ or the map, the margins and the loss of each anchor."""
        logits = self.temperature(alignment)
        x = pairs.margin(logits)
        return logits, x, self.objective(pairs, logits, x)

    def _contrast(self, pairs: Pairs, weights: Tensor | None) -> Contrast:
        alignment = distributed.global_mean(pairs.positive)
        logits, x, per_anchor = self._losses(pairs, alignment)
        return Contrast(
            loss=self._reduce(per_anchor, weights),
            per_anchor=per_anchor,
            margin=x.detach(),
            alignment=alignment,
            temperature=temperature_at(pairs.positive, logits),
            floored=self.temperature.is_floored(alignment),
        )

    def _reduce(self, per_anchor: Tensor, weights: Tensor | None) -> Tensor:
        n = len(per_anchor)
        if weights is not None:
            weights = weights.to(per_anchor).repeat(n // len(weights))
            per_anchor = per_anchor * weights
        if self.reduction == "none":
            return per_anchor
        if weights is None and not (self.gather and distributed.world_size() > 1):
            return per_anchor.mean()
        # A mean over the local anchors. Ranks that hold fewer (a short last batch), or other
        # weights, count for less: data parallelism divides by the number of ranks, so do we.
        mass = per_anchor.new_full((), n) if weights is None else weights.sum()
        if self.gather and distributed.world_size() > 1:
            mass = distributed.global_sum(mass) / distributed.world_size()
        # All weights 0: nothing to learn from, so 0 and not 0/0.
        return per_anchor.sum() / mass.clamp(min=torch.finfo(mass.dtype).tiny)

    def _check_weights(self, weights: Tensor | None, pairs: int) -> None:
        if weights is None:
            return
        if weights.shape != (pairs,):
            raise ValueError(
                f"weights holds one number per pair, ({pairs},), got {tuple(weights.shape)}."
            )
        if self._checks(weights) and not bool((weights.isfinite() & (weights >= 0)).all()):
            raise ValueError("weights must be finite and 0 or more; they weigh pairs in a mean.")

    def extra_repr(self) -> str:
        """Shown by print(criterion)."""
        direction = {True: ", symmetric", False: ", one direction"}[self.symmetric]
        return f"negatives={self.negatives}" + direction * (self.negatives == "cross")


def _full_precision(device_type: str) -> AbstractContextManager[None]:
    """No autocast inside; entering its context costs as much as a small matrix product."""
    if device_type != "meta" and torch.is_autocast_enabled(device_type):
        return torch.autocast(device_type, enabled=False)
    return nullcontext()


def _check_views(z1: Tensor, z2: Tensor) -> None:
    if z1.ndim != 2 or z1.shape != z2.shape or z1.shape[1] == 0:
        raise ValueError(
            f"the two views must have the same shape (N, D), got {tuple(z1.shape)} and "
            f"{tuple(z2.shape)}. Row i of the second is the positive of row i of the first."
        )
    if not (z1.is_floating_point() and z2.is_floating_point()):
        raise ValueError(f"embeddings must be floating point, got {z1.dtype} and {z2.dtype}.")
    if z1.dtype != z2.dtype or z1.device != z2.device:
        raise ValueError(
            f"the two views must agree in type and device, got {z1.dtype} on {z1.device} and "
            f"{z2.dtype} on {z2.device}."
        )
    if len(z1) == 0:
        raise ValueError("the batch is empty; give at least one pair and a bank, or two pairs.")


def _check_enough(z1: Tensor, gather: Gather) -> None:
    if len(z1) < 2 and not gather:
        raise ValueError(
            "a single pair has no negatives in its batch: give at least two pairs (N ≥ 2; a loader "
            "with drop_last=True avoids a last batch of one), or a bank=(K, D) of negatives."
        )


def _check_groups(name: str, groups: Tensor | None, rows: int) -> None:
    if groups is not None and (groups.shape != (rows,) or groups.is_floating_point()):
        raise ValueError(
            f"{name} holds one integer per row, ({rows},), got {groups.dtype} "
            f"{tuple(groups.shape)}."
        )


def _unit_extra(rows: Tensor, name: str, like: Tensor, is_unit: bool = False) -> Tensor:
    if rows.ndim != 2 or len(rows) == 0 or rows.shape[1] != like.shape[1]:
        raise ValueError(
            f"{name} must be (K, {like.shape[1]}) with K ≥ 1 to match the views, "
            f"got {tuple(rows.shape)}."
        )
    return (wide(rows) if is_unit else unit_rows(rows, name)).to(like.dtype)
