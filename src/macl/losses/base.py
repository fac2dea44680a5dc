"""A contrastive loss = who is contrasted × temperature × objective."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypedDict, Unpack

import torch
from torch import Tensor, nn

from macl import distributed
from macl.losses.build import Extra, Inputs, Precision, build_pairs
from macl.losses.objectives import objective
from macl.losses.ops import operator
from macl.losses.ops.maps import LogitMap, Logits
from macl.losses.ops.tiled import Values
from macl.losses.output import (
    ConfigWarning,
    LossBehavior,
    LossOutput,
    Range,
    Terms,
    full_precision,
    halved,
)
from macl.losses.pairs import Explicit, Pairs
from macl.losses.temperature import (
    LearnedTemperature,
    Statistics,
    StepInfo,
    Temperature,
    TrainingContext,
    as_temperature,
)
from macl.losses.unit import reads_values

if TYPE_CHECKING:
    from torch import distributed as dist

Gather = bool | Literal["ring"]
Negatives = Literal["both", "cross"]
Reduction = Literal["mean", "none"]
Dims = Sequence[int | None]


class PairOptions(TypedDict, total=False):
    """The keywords that every loss of the family takes; see `ContrastiveLoss`."""

    negatives: Negatives
    symmetric: bool
    reduction: Reduction
    gather: Gather
    kernel: str | None
    validate: bool
    dims: Dims | None
    dim_weights: Sequence[float] | None
    guide_margin: float
    guide_relative: bool
    precision: Precision
    process_group: Any


class ContrastiveLoss(nn.Module):
    """Base of the family; a subclass names its `pair_function`, or defines `objective`.

        criterion = InfoNCE(temperature=0.1)
        criterion(z1, z2).backward()

    Args:
        temperature: τ, a number, "auto", or a `Temperature`; or a `LogitMap`, g(s) in place of
            s/τ.
        negatives: "both" (2N anchors, 2N−2 negatives from both views) or "cross" (other view only,
            N−1 negatives). Without effect when a bank is given.
        symmetric: with "cross", contrast in both directions and average.
        reduction: "mean", or "none" for one value per anchor.
        gather: use every rank's keys when torch.distributed is initialized. True holds all of them
            on every rank; "ring" passes them on block by block, for batches whose keys are too
            large to be held: memory O(n·D) per rank, the same loss and gradients.
        kernel: implementation of the operator: "dense", "tiled", "triton" or "auto"; default the
            environment variable MACL_KERNEL, or "auto". See `macl.losses.selected`.
        validate: check values (NaN, infinity, weights) on every device. Without, they are checked
            on the CPU only, as reading them waits for the device; elsewhere such input gives NaN.
            Under torch.compile a check ends the graph.
        dims: widths of leading coordinates, each normalized anew, such as (64, 128, None); the loss
            is the mean over them (Kusupati et al. 2022, Matryoshka). None stands for all.
        dim_weights: weights of `dims` in a sum, in place of the mean.
        guide_margin: of `guide=`: a negative is excluded if the guide finds it more similar to the
            anchor than the positive less this margin.
        guide_relative: the margin is a share of the positive's similarity.
        precision: of unit rows on a GPU. "float32" are multiplied as such (by Triton in three
            float16 products, as accurate); "float16" in one product, at the rate of bf16 with the
            mantissa of tf32. "auto" is float16 for half-precision embeddings, and under autocast.
            Sums are float32 always.
        process_group: the ranks whose keys `gather` uses; None: all of them.
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
    temperature_range: Range | None = None
    """Bounds of τ for its histogram, where each anchor has its own."""
    bounds_temperature: ClassVar[bool] = True
    """Whether the gradient carries W; without, a learned τ runs to its lower bound."""
    shows_statistics: ClassVar[bool] = True
    """Whether `Temperature.observe` is called, for temperatures that want statistics."""
    needs_negatives: ClassVar[bool] = True
    """Whether a batch of a single pair, which has no negatives, is refused."""
    pair_function: str | None = None
    """The objective as a function of one pair's margin, a name in `objectives.FUNCTIONS`; None
    where it is not one, so that an anchor has a single positive."""

    def __init__(
        self,
        temperature: float | str | Temperature | LogitMap = 0.1,
        *,
        negatives: Negatives = "both",
        symmetric: bool = True,
        reduction: Reduction = "mean",
        gather: Gather = False,
        kernel: str | None = None,
        validate: bool = False,
        dims: Dims | None = None,
        dim_weights: Sequence[float] | None = None,
        guide_margin: float = 0.0,
        guide_relative: bool = False,
        precision: Precision = "auto",
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        if negatives not in ("both", "cross"):
            raise ValueError(f'negatives is "both" or "cross", got {negatives!r}.')
        if reduction not in ("mean", "none"):
            raise ValueError(f'reduction is "mean" or "none", got {reduction!r}.')
        if gather not in (True, False, "ring"):
            raise ValueError(f'gather is True, False or "ring", got {gather!r}.')
        self.temperature = as_temperature(temperature, self.bounds_temperature)
        if self.temperature.wants_statistics and not self.shows_statistics:
            raise ValueError(
                f"{type(self).__name__} does not show its negatives to a temperature that adapts "
                'to them, such as "auto": use a number, or another loss.'
            )
        if precision not in ("auto", "float32", "float16"):
            raise ValueError(f'precision is "auto", "float32" or "float16", got {precision!r}.')
        self.negatives, self.symmetric = negatives, symmetric
        self.reduction, self.gather = reduction, gather
        self.kernel, self.validate = operator.wanted(kernel), validate
        self.guide_margin, self.guide_relative = float(guide_margin), guide_relative
        self.precision, self.process_group = precision, process_group
        self.dims, self.dim_weights = _checked_dims(dims, dim_weights, reduction)
        self._steps_taken = 0
        if self.dims and self.takes_indices:
            raise ValueError(
                f"{type(self).__name__} keeps averages per sample of one width: leave dims out."
            )
        if isinstance(self.temperature, LearnedTemperature) and not self.bounds_temperature:
            name, lowest = type(self).__name__, self.temperature.tau_min
            warnings.warn(
                f"{name} with a learned temperature: its gradient does not carry W, so wherever a "
                f"positive is nearer than every negative, {name} falls without limit as τ → 0 and "
                f"τ runs to its lower bound ({lowest:g}). Use InfoNCE or NTXent, or a fixed τ.",
                stacklevel=3,
            )

    def setup(self, context: TrainingContext) -> None:
        """Called once before training, and before a checkpoint is loaded."""
        self.temperature.setup(context)

    def advance(self, step: int) -> None:
        """Called after every optimizer step with the number of steps taken so far."""
        self._steps_taken = step
        self.temperature.advance(step)

    def config_warnings(self, behavior: LossBehavior) -> list[ConfigWarning]:
        """What of this loss' own settings does not fit a sample on which it behaves so."""
        return []

    def objective(self, pairs: Pairs, logits: Logits, values: Values) -> Tensor:
        """(n,) loss of each anchor, from its logsumexp and its positive's logit in `values`."""
        if self.pair_function is None:
            raise NotImplementedError
        return objective(self.pair_function, values.margin, pairs.complete)

    def objective_of(self, pairs: Pairs, logits: Logits) -> Tensor:
        """(n,) `objective`, from a pass of its own."""
        return self.objective(pairs, logits, pairs.evaluate(logits))

    def forward(self, z1: Tensor, z2: Tensor, **extra: Unpack[Extra]) -> Tensor:
        """The loss of two views, row i of `z1` ↔ row i of `z2`; see `contrast`."""
        return self.evaluate(Inputs(z1, z2, **extra)).loss

    def contrast(self, z1: Tensor, z2: Tensor, **extra: Unpack[Extra]) -> LossOutput:
        """The loss with the metrics that it is made of.

        Args:
            z1: (N, D) anchors of any scale; normalized inside.
            z2: (N, D) positives, row by row.
            extra: any of the following.

        Keyword Args:
            bank (Tensor): (K, D) negatives of every anchor, instead of the batch's own.
            groups (Tensor): (N,) integers; rows of one group are never each other's negatives.
            bank_groups (Tensor): (K,) the same for the bank.
            hard (Tensor): (H, D) further negatives of every anchor in `z1` (with
                negatives="cross").
            hard_groups (Tensor): (H,) the same for them; without, they are of no group.
            weights (Tensor): (N,) weight of each pair in the mean.
            bank_is_unit (bool): the bank's rows have length 1: they are used as they are, neither
                copied nor checked. A bank that needs no gradient may change before the backward
                pass.
            indices (Tensor): (N,) positions of the samples in the data set, for losses with state
                per sample (`takes_indices`) and temperatures that use them.
            positives (Tensor | tuple): which pairs are positives, in place of row i ↔ row i: (N,)
                integers or (N, L) multi-hot labels, rows that share one being positives of each
                other and not negatives; or a tuple (rows, columns[, weights]) of positions in `z1`
                and `z2`, which then may differ in length (with negatives="cross"). The loss of an
                anchor is the mean over its positives. For objectives that are a function of one
                pair's margin (`pair_function`).
            guide (tuple): (g1, g2) embeddings of both views by a fixed guide model; a negative that
                the guide finds more similar to the anchor than its positive is excluded (Solatorio
                2024, GISTEmbed). A third entry judges the hard negatives.
        """
        return self.evaluate(Inputs(z1, z2, **extra), per_anchor=True).synchronize()

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
        with full_precision(pos.device.type):
            pairs = Explicit(pos.to(dtype), neg.to(dtype))
            return self.of_pairs(pairs, Inputs(pos[:, None], None)).loss

    def checks(self, value: Tensor) -> bool:
        """Whether values are checked, which reads them back from the device."""
        return self.validate or reads_values(value)

    @property
    def active_gather(self) -> Gather:
        """`gather` among several processes, False in a single one."""
        return self.gather if distributed.world_size() > 1 else False

    def evaluate(self, inputs: Inputs, per_anchor: bool = False) -> LossOutput:
        """The loss; with `per_anchor`, that of each anchor has a gradient too."""
        if self.process_group is not None:
            with distributed.among(self.process_group):
                return self._evaluate(inputs, per_anchor).synchronize()
        return self._evaluate(inputs, per_anchor)

    def _evaluate(self, inputs: Inputs, per_anchor: bool) -> LossOutput:
        """The loss, or that of each of `dims`, added up."""
        device = inputs.z1.device.type if isinstance(inputs.z1, Tensor) else "meta"
        if halved(device):
            inputs = inputs._replace(halved=True)
        with full_precision(device):
            if not self.dims:
                return self.of_pairs(self.pairs(inputs), inputs, per_anchor)
            parts = [inputs.narrowed(dim) for dim in self.dims]
            outputs = [self.of_pairs(self.pairs(part), part, per_anchor) for part in parts]
        sizes = [part.z1.shape[1] for part in parts]
        whole = outputs[sizes.index(max(sizes))]
        for size, output in zip(sizes, outputs, strict=True):
            whole.added[f"loss_{size}"] = output.loss.detach().mean()
        weights = self.dim_weights or [1 / len(outputs)] * len(outputs)
        losses = [weight * out.loss for weight, out in zip(weights, outputs, strict=True)]
        whole.loss = torch.stack(losses).sum(0)
        return whole

    def of_pairs(self, pairs: Pairs, inputs: Inputs, per_anchor: bool = True) -> LossOutput:
        """The loss of pairs that are formed already."""
        step = StepInfo(pairs, inputs.indices, self._steps_taken)
        found = None
        plain_mean = inputs.weights is None and not per_anchor and self._is_mean_of_function
        if plain_mean and pairs.one_matrix:
            found = self._mean_at_once(pairs, step)
        if found is None:
            terms = self.terms(pairs, step, inputs)
            found = self._reduce(terms, inputs.weights), terms
        return LossOutput(*found, step, self.temperature.is_floored, self.temperature_range)

    @property
    def _is_mean_of_function(self) -> bool:
        """Whether the loss is the mean of f(x), and nothing more."""
        kind = type(self)
        return (
            kind.terms is ContrastiveLoss.terms
            and kind.objective is ContrastiveLoss.objective
            and self.reduction == "mean"
            and not self.temperature.wants_statistics
        )

    def _mean_at_once(self, pairs: Pairs, step: StepInfo) -> tuple[Tensor, Terms] | None:
        """The loss from the one step that gives value and gradient, where there is such a step."""
        function, logits = self.pair_function, self.temperature(step)
        assert function is not None
        found = pairs.mean_objective(logits, function)
        if found is None:
            return None
        mean, x = found
        return mean, Terms(
            logits, lambda: objective(function, x), x, extra_metrics=self._temperature_metrics()
        )

    def pairs(self, inputs: Inputs) -> Pairs:
        """Who is contrasted with whom, from the arguments of `contrast`."""
        if self.gather and not self.active_gather:
            distributed.warn_if_alone()
        return build_pairs(self, inputs)

    def terms(self, pairs: Pairs, step: StepInfo, inputs: Inputs) -> Terms:
        """What the loss of this batch is made of."""
        logits = self.temperature(step)
        values = self.pass_over(pairs, logits)
        if values.positive is not None:
            per_anchor, extra = self.objective(pairs, logits, values), self._temperature_metrics()
            return Terms(logits, per_anchor, lambda: values.margin, extra_metrics=extra)
        assert self.pair_function is not None
        per_anchor = pairs.mean_over_positives(values.lse, logits, self.pair_function)
        return self.terms_of_several(
            pairs, logits, per_anchor, lambda: values.lse - pairs.mean_positive_logit(logits)
        )

    def terms_of_several(
        self, pairs: Pairs, logits: Logits, per_anchor: Tensor, margin: Callable[[], Tensor]
    ) -> Terms:
        """Terms where anchors have any number of positives; those without do not count."""
        counted = None
        if not pairs.all_have_positives:
            counted = (pairs.positive_count > 0).to(per_anchor.dtype)
        extra = {"positives_per_anchor": lambda: pairs.positive_count.mean()}
        return Terms(logits, per_anchor, margin, counted, extra_metrics=extra)

    def _temperature_metrics(self) -> dict[str, Callable[[], Tensor]]:
        return {name: value.clone for name, value in self.temperature.extra_metrics().items()}

    def pass_over(self, pairs: Pairs, logits: Logits) -> Values:
        """Logsumexps and positives' logits; the temperature sees their statistics if it wants."""
        if not (self.temperature.wants_statistics and self.training):
            return pairs.evaluate(logits)
        if not isinstance(logits, Tensor):
            raise ValueError("a temperature that wants statistics gives τ, not a map.")
        values = pairs.evaluate(logits, statistics=True)
        rows = None if isinstance(pairs, Explicit) else pairs.rows
        log_count = pairs.log_count()
        self.temperature.observe(Statistics.of(values, logits.detach(), log_count, rows))
        return values

    def _reduce(self, terms: Terms, weights: Tensor | None) -> Tensor:
        per_anchor, counted = terms.per_anchor, terms.counted
        assert isinstance(per_anchor, Tensor)
        n = per_anchor.shape[0]
        if weights is not None:
            weights = weights.to(per_anchor).repeat(n // len(weights))
            per_anchor = per_anchor * weights
        if counted is not None:
            weights = counted if weights is None else weights * counted
        if self.reduction == "none":
            return per_anchor
        gathers = bool(self.active_gather)
        if weights is None and not gathers:
            return per_anchor.mean()
        # A mean over the local anchors. Ranks that hold fewer (a short last batch), or other
        # weights, count for less: data parallelism divides by the number of ranks, so do we.
        mass = per_anchor.new_full((), n) if weights is None else weights.sum()
        if gathers:
            mass = distributed.global_sum(mass) / distributed.world_size()
        # All weights 0: nothing to learn from, so 0 and not 0/0.
        return per_anchor.sum() / mass.clamp(min=torch.finfo(mass.dtype).tiny)

    def extra_repr(self) -> str:
        """Shown by print(criterion)."""
        direction = {True: ", symmetric", False: ", one direction"}[self.symmetric]
        return f"negatives={self.negatives}" + direction * (self.negatives == "cross")


def _checked_dims(
    dims: Dims | None, weights: Sequence[float] | None, reduction: str
) -> tuple[tuple[int | None, ...] | None, tuple[float, ...] | None]:
    if dims is None:
        if weights is not None:
            raise ValueError("dim_weights weigh the widths in dims: give dims too.")
        return None, None
    widths = tuple(dims)
    if not widths or not all(d is None or (isinstance(d, int) and d >= 1) for d in widths):
        raise ValueError(
            f"dims holds widths of leading coordinates, such as (64, 128, None), got {dims!r}."
        )
    if weights is not None and len(weights) != len(widths):
        raise ValueError(f"dim_weights has {len(weights)} entries for {len(widths)} dims.")
    if reduction != "mean":
        raise ValueError('dims averages losses of several widths: leave reduction="mean".')
    return widths, None if weights is None else tuple(map(float, weights))
