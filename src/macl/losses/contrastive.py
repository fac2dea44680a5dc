"""A contrastive loss = who is contrasted × temperature × objective."""

from __future__ import annotations

import warnings
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar, Literal, TypedDict

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses import fused, small, spread
from macl.losses.checks import check_views
from macl.losses.concerns import Acting, Concern
from macl.losses.context import TrainingContext
from macl.losses.contrast import Contrast, average
from macl.losses.forms import form_pairs
from macl.losses.inputs import Inputs, Terms
from macl.losses.kernels import select
from macl.losses.kernels.interface import LogitMap
from macl.losses.logits import Logits, temperature_at
from macl.losses.pairs import Explicit, Pairs
from macl.losses.positives import SeveralPositives
from macl.losses.temperature import Fixed, LearnedTemperature, Mapped, Temperature
from macl.losses.unit import check_finite, reads_values

__all__ = ["Contrast", "ContrastiveLoss", "Form", "average"]

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

    takes_indices: ClassVar[bool] = False
    """Whether `contrast` takes `indices`, the (N,) positions of the samples in the data set."""
    takes_labels: ClassVar[bool] = False
    """Whether `contrast` takes `labels`, the (N,) integer classes of the samples."""
    takes_bank: ClassVar[bool] = True
    """Whether `contrast` takes a bank of negatives."""
    scales_with_temperature: ClassVar[bool] = False
    """Whether the loss, and with it the gradient, is multiplied by τ, as the global objectives."""
    temperature_keys: ClassVar[tuple[str, ...]] = ("temperature",)
    """The arguments that set the level of τ; empty where there is none."""
    temperature_range: spread.Range | None = None
    """Bounds of τ for its histogram, where each anchor has its own."""
    bounds_temperature: ClassVar[bool] = True
    """Whether the gradient carries W; without, a learned τ runs to its lower bound."""
    needs_negatives: ClassVar[bool] = True
    """Whether a batch of a single pair, which has no negatives, is refused."""
    pair_function: str | None = None
    """The objective as a function of one pair's margin, a name in `kernels.functions`; None where
    it is not one, so that an anchor has a single positive."""

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""
        self.temperature.setup(context)

    def advance(self, step: int) -> None:
        """Called after every optimiser step with the number of steps taken so far."""
        self.temperature.advance(step)

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
        if isinstance(self.temperature, LearnedTemperature) and not self.bounds_temperature:
            name, lowest = type(self).__name__, self.temperature.lowest
            warnings.warn(
                f"{name} with a learned temperature: its gradient does not carry W, so wherever a "
                f"positive is nearer than every negative, {name} falls without limit as τ → 0 and "
                f"τ runs to its lower bound ({lowest:g}). Use InfoNCE or NTXent, or a fixed τ.",
                stacklevel=3,
            )

    def concerns(self, acting: Acting) -> list[Concern]:
        """What of this loss' own settings does not fit a sample on which it acts so."""
        return []

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
        indices: Tensor | None = None,
        positives: Tensor | None = None,
    ) -> Tensor:
        """The loss of two views, row i of `z1` ↔ row i of `z2`; see `contrast`.

        Without the other figures, hence a little faster.
        """
        inputs = Inputs(
            z1, z2, bank, groups, bank_groups, hard, hard_groups, weights, bank_is_unit,
            indices, positives,
        )  # fmt: skip
        return self._loss(inputs)

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
        indices: Tensor | None = None,
        positives: Tensor | None = None,
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
            indices: (N,) positions of the samples in the data set, for losses with state per
                sample (`takes_indices`); the others ignore them.
            positives: (N,) integers; rows of one number are positives of each other, and not
                negatives. The loss of an anchor is the mean over its positives. For objectives
                that are a function of one pair's margin, at one τ (`pair_function`).
        """
        inputs = Inputs(
            z1, z2, bank, groups, bank_groups, hard, hard_groups, weights, bank_is_unit,
            indices, positives,
        )  # fmt: skip
        return self._evaluate(inputs)

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
            if self.checks(value) and not bool(value.detach().isfinite().all()):
                raise ValueError(f"{name} has NaN or infinite values; similarities are in [-1, 1].")
        dtype = torch.float64 if torch.float64 in (pos.dtype, neg.dtype) else torch.float32
        with _full_precision(pos.device.type):
            pairs = Explicit(pos.to(dtype), neg.to(dtype))
            return self._contrast(pairs, Inputs(pos[:, None], None)).loss

    def checks(self, value: Tensor) -> bool:
        """Whether values are checked, which reads them back from the device."""
        return self.validate or reads_values(value)

    def _loss(self, inputs: Inputs) -> Tensor:
        if inputs.are_views_alone():
            for closed in (small.loss, fused.loss):
                if (loss := closed(self, *inputs.views())) is not None:
                    return loss
        with _full_precision(inputs.z1.device.type):
            pairs = self._pairs(inputs)
            if self.temperature.adapts:
                alignment = distributed.global_mean(pairs.positive)
            else:
                dtype = torch.promote_types(inputs.z1.dtype, torch.float32)
                # Only its type and device count.
                alignment = torch.empty((), dtype=dtype, device=inputs.z1.device)
            terms = self._terms(pairs, alignment, inputs, figures=False)
            return self._reduce(terms, inputs.weights)

    def _evaluate(self, inputs: Inputs) -> Contrast:
        with _full_precision(inputs.z1.device.type):
            return self._contrast(self._pairs(inputs), inputs)

    def _pairs(self, inputs: Inputs) -> Pairs:
        z1, z2 = inputs.views()
        check_views(z1, z2)
        self._check_weights(inputs.weights, len(z1))
        if self.validate and not reads_values(z1):  # where they are read, `unit_rows` checks
            extra = {"bank": inputs.bank, "hard": inputs.hard}
            for name, rows in {"z1": z1, "z2": z2, **extra}.items():
                if rows is not None:
                    check_finite(rows, name)
        if inputs.positives is not None and self.pair_function is None:
            raise ValueError(
                f"{type(self).__name__} takes one positive per anchor: leave positives out, or use "
                "SupCon, InfoNCE, NTXent, DCL, FlatNCE or MACL."
            )
        gather = self.gather if distributed.world_size() > 1 else False
        if self.gather and not gather:
            distributed.warn_if_alone()
        pairs = form_pairs(inputs, self.negatives, self.symmetric, gather, self.needs_negatives)
        pairs.kernel = self.kernel
        return pairs

    def _terms(self, pairs: Pairs, alignment: Tensor, inputs: Inputs, figures: bool) -> Terms:
        """What the loss of this batch is made of; margins may be left out without `figures`."""
        logits = self.temperature(alignment)
        if isinstance(pairs, SeveralPositives) and self.pair_function is not None:
            negatives = pairs.logsumexp(logits)
            per_anchor = pairs.mean_over_positives(negatives, logits, self.pair_function)
            x = negatives - pairs.mean_positive_logit(logits) if figures else None
            return Terms(logits, x, per_anchor)
        x = pairs.margin(logits)
        return Terms(logits, x, self.objective(pairs, logits, x))

    def _contrast(self, pairs: Pairs, inputs: Inputs) -> Contrast:
        alignment = distributed.global_mean(pairs.positive)
        terms = self._terms(pairs, alignment, inputs, figures=True)
        assert terms.margin is not None
        floored = self.temperature.is_floored(alignment)
        margin = terms.margin.detach()
        temperature = temperature_at(pairs.positive, terms.logits)
        bounds = self.temperature_range
        if temperature.ndim == 0 or (bounds is not None and bounds[0] >= bounds[1]):
            bounds = None  # one τ for all
        summaries = None
        if distributed.world_size() > 1:  # exchanged here: every rank is here
            summaries = spread.of_every_rank(spread.summary(margin, temperature, bounds))
        return Contrast(
            loss=self._reduce(terms, inputs.weights),
            per_anchor=terms.per_anchor,
            margin=margin,
            alignment=alignment,
            temperature=temperature,
            floored=floored if terms.floored is None else terms.floored,
            own=terms.own or {},
            bounds=bounds,
            summaries=summaries,
        )

    def _reduce(self, terms: Terms, weights: Tensor | None) -> Tensor:
        per_anchor, counted = terms.per_anchor, terms.counted
        n = len(per_anchor)
        if weights is not None:
            weights = weights.to(per_anchor).repeat(n // len(weights))
            per_anchor = per_anchor * weights
        if counted is not None:
            weights = counted if weights is None else weights * counted
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
        if self.checks(weights) and not bool((weights.isfinite() & (weights >= 0)).all()):
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
