"""From the arguments of a loss to its pairs; each error names the fix."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal, NamedTuple, TypedDict

import torch
from torch import Tensor
from torch._C._functorch import is_functorch_wrapped_tensor

from macl import distributed
from macl.losses.ops.exclusions import Exclusions, Guide, Listed, Relation
from macl.losses.ops.tiled import wide
from macl.losses.pairs import Block, Pairs, Side
from macl.losses.ring import Ring
from macl.losses.temperature import Mapped
from macl.losses.unit import check_finite, unit_rows, unit_views

if TYPE_CHECKING:
    from macl.losses.base import ContrastiveLoss

Precision = Literal["auto", "float32", "float16"]

Positives = Tensor | tuple[Tensor, ...]
"""(N,) integer labels, (N, L) multi-hot labels, or positions (rows, columns[, weights])."""


class Extra(TypedDict, total=False):
    """What a loss takes besides two views; `ContrastiveLoss.contrast` describes it."""

    bank: Tensor | None
    groups: Tensor | None
    bank_groups: Tensor | None
    hard: Tensor | None
    hard_groups: Tensor | None
    weights: Tensor | None
    bank_is_unit: bool
    indices: Tensor | None
    positives: Positives | None
    guide: tuple[Tensor, ...] | None


class Inputs(NamedTuple):
    """The arguments of `ContrastiveLoss.contrast`, described there."""

    z1: Tensor
    z2: Tensor | None
    bank: Tensor | None = None
    groups: Tensor | None = None
    bank_groups: Tensor | None = None
    hard: Tensor | None = None
    hard_groups: Tensor | None = None
    weights: Tensor | None = None
    bank_is_unit: bool = False
    indices: Tensor | None = None
    positives: Positives | None = None
    guide: tuple[Tensor, ...] | None = None
    halved: bool = False
    """Whether autocast, which is off inside a loss, asks for half precision."""

    def views(self) -> tuple[Tensor, Tensor]:
        """Both views; where there is one view only, that twice."""
        return self.z1, self.z1 if self.z2 is None else self.z2

    def narrowed(self, width: int | None) -> Inputs:
        """The same with the leading coordinates of every embedding alone; None: with all."""
        if width is None:
            return self
        if width > (most := self.z1.shape[1]):
            raise ValueError(f"dims has {width}, and the embeddings have {most} coordinates.")
        given = (self.z2, self.bank, self.hard)
        z2, bank, hard = (None if z is None else z[:, :width] for z in given)
        z1 = self.z1[:, :width]
        return self._replace(z1=z1, z2=z2, bank=bank, hard=hard, bank_is_unit=False)


class _About(NamedTuple):
    """What is known about rows, beside their embeddings."""

    groups: Tensor | None = None
    classes: Tensor | None = None
    guide: Tensor | None = None
    """(n, G) the guide model's unit rows."""
    threshold: Tensor | None = None
    """(n,) the guide's similarity above which a pair of this row does not count."""

    def excluded(
        self, columns: _About, diagonals: tuple[int, ...] = (), listed: Listed | None = None
    ) -> Exclusions:
        """The pairs of these rows with `columns` that do not count."""
        guide = None
        if self.guide is not None and self.threshold is not None and columns.guide is not None:
            guide = Guide(self.guide, columns.guide, self.threshold)
        groups = _relation(self.groups, columns.groups)
        classes = _relation(self.classes, columns.classes)
        return Exclusions(diagonals, groups, classes, listed=listed, guide=guide)

    def mapped(self, change: Callable[..., Tensor], *others: _About) -> _About:
        """`change` of every part that is there, with the same part of `others`."""
        if self is _NOTHING:
            return self
        parts = zip(self, *others, strict=True)
        return _About(*(None if part[0] is None else change(*part) for part in parts))


_NOTHING = _About()


class _Columns:
    """`rows` of this rank as columns: themselves, those of all ranks, or passed block by block."""

    def __init__(self, loss: ContrastiveLoss, rows: int) -> None:
        gather = loss.active_gather
        self.gathers, self.rings = gather is True, gather == "ring"
        self.alone = not gather
        """Whether this rank's rows are all the columns there are."""
        self.sizes = [rows] if self.alone else distributed.batch_sizes(rows)
        self.start = sum(self.sizes[: distributed.rank()]) if self.gathers else 0
        """The first of this rank's columns."""

    def of(self, rows: Tensor) -> Tensor:
        """The columns that are held here, with gradient."""
        return distributed.gather(rows, self.sizes) if self.gathers else rows

    def ring(self, views: int = 1) -> Ring | None:
        """What brings the others' columns."""
        return Ring([views * size for size in self.sizes]) if self.rings else None


def build_pairs(loss: ContrastiveLoss, inputs: Inputs) -> Pairs:
    """The pairs of a batch, with rows at length 1; a ValueError if arguments do not agree."""
    _check(loss, inputs)
    z1, z2 = inputs.z1, inputs.z2
    unit = unit_rows(z1, "z1") if z2 is None else unit_views(z1, z2)
    rows = _stored(unit, inputs, loss.precision)
    if inputs.bank is None and (z2 is None or loss.negatives == "both"):
        return _both(loss, inputs, rows, 1 if z2 is None else 2)
    one, two = (rows, rows) if z2 is None else rows.split([z1.shape[0], z2.shape[0]])
    if inputs.bank is None:
        return _cross(loss, inputs, one, two)
    keys = unit_extra(inputs.bank, "bank", unit, inputs.bank_is_unit)
    return _bank(loss, inputs, one, two, keys)


def _stored(unit: Tensor, inputs: Inputs, precision: Precision) -> Tensor:
    """Unit rows as float16 off the CPU: of half-precision embeddings, under autocast, or if asked.

    They fit its range, have tf32's mantissa, are multiplied at the full rate of tensor cores with
    float32 sums, and take half the bytes between ranks.
    """
    half = precision == "float16"
    if precision == "auto":
        half = inputs.halved or inputs.z1.dtype in (torch.float16, torch.bfloat16)
    return unit.half() if half and not unit.is_cpu and unit.dtype == torch.float32 else unit


def _both(loss: ContrastiveLoss, inputs: Inputs, rows: Tensor, views: int) -> Pairs:
    """NT-Xent: the anchors of both views against all rows of both; or one view against itself."""
    n, several = rows.shape[0] // views, inputs.positives is not None
    place = _Columns(loss, n)
    about = _about(loss, inputs)[:views]
    if place.gathers:  # this rank's anchors, one view after the other, against every rank's rows
        anchors, columns = rows.split(n), torch.cat([place.of(view) for view in rows.split(n)])
        known = _stacked([view.mapped(place.of) for view in about])
        span = sum(place.sizes)
        twins = tuple(place.start + k * span for k in range(views))
    else:
        anchors, columns, known = (rows,), rows, _stacked(about)
        about, span, twins = [known], n, (0, n, -n) if views == 2 else (0,)
    sides = []
    for k, view in enumerate(anchors):
        self_at = place.start + k * span
        listed = _listed(inputs, rows, k if place.gathers else None, place.start, span)
        exclude = about[k].excluded(known, (self_at,) if several else twins, listed)
        block = Block(columns, exclude, place.ring(views))
        if several:
            positives = block._replace(exclude=_only_positives(exclude))
            sides.append(Side(view, (block,), positives=positives, self_at=self_at))
        else:
            partner = anchors[1 - k] if place.gathers else None
            sides.append(Side(view, (block,), partner, (n, -n) if place.alone else ()))
    sure = views == 2 and isinstance(inputs.positives, Tensor)
    return Pairs(sides, kernel=loss.kernel, sure=sure)


def _cross(loss: ContrastiveLoss, inputs: Inputs, z1: Tensor, z2: Tensor) -> Pairs:
    """InfoNCE: the rows of one view against those of the other, in one direction or both."""
    first = _Columns(loss, z1.shape[0])
    second = first if z1.shape[0] == z2.shape[0] else _Columns(loss, z2.shape[0])
    about_one, about_two, *about_hard = _about(loss, inputs)
    several, listed = inputs.positives is not None, None
    if isinstance(inputs.positives, tuple):
        listed = Listed(*positions(inputs.positives, z1))
    directions = [(z1, about_one, z2, about_two, second, listed)]
    if loss.symmetric:
        flipped = None if listed is None else Listed(listed.columns, listed.rows, listed.weights)
        directions.append((z2, about_two, z1, about_one, first, flipped))
    sides = []
    for rows, own, columns, other, place, at in directions:
        if at is not None:
            at = at._replace(columns=at.columns + place.start)
        exclude = own.excluded(other.mapped(place.of), () if several else (place.start,), at)
        block = Block(place.of(columns), exclude, place.ring())
        if several:
            positives = block._replace(exclude=_only_positives(exclude))
            sides.append(Side(rows, (block,), positives=positives))
        else:
            sides.append(Side(rows, (block,), columns, (0,) if place.alone else ()))
    if inputs.hard is not None:
        hard = unit_extra(inputs.hard, "hard", z1)
        place = _Columns(loss, len(hard))
        known = _About(inputs.hard_groups, guide=about_hard[0].guide if about_hard else None)
        exclude = about_one.excluded(known.mapped(place.of))
        block = Block(place.of(hard), exclude, place.ring())
        sides[0] = sides[0]._replace(blocks=(*sides[0].blocks, block))
    joint = loss.symmetric and first.alone and inputs.hard is None
    return Pairs(sides, joint, loss.kernel, sure=listed is None)


def _bank(loss: ContrastiveLoss, inputs: Inputs, z1: Tensor, z2: Tensor, keys: Tensor) -> Pairs:
    """MoCo: anchors against a bank of keys, the same on every rank, so nothing is gathered."""
    check_groups("bank_groups", inputs.bank_groups, keys.shape[0])
    block = Block(keys, _About(inputs.groups).excluded(_About(inputs.bank_groups)))
    if inputs.positives is None:
        return Pairs([Side(z1, (block,), z2)], kernel=loss.kernel)
    if isinstance(inputs.positives, tuple):
        own = Exclusions(listed=Listed(*positions(inputs.positives, z1)))
    else:
        classes = Relation(inputs.positives, inputs.positives)
        own = Exclusions(classes=classes, only_classes=True)
    side = Side(z1, (block,), positives=Block(z2, own))
    return Pairs([side], kernel=loss.kernel, sure=own.listed is None)


def _about(loss: ContrastiveLoss, inputs: Inputs) -> list[_About]:
    """What is known of each view's rows, and of hard negatives that a guide judges."""
    groups = inputs.groups
    classes = inputs.positives if isinstance(inputs.positives, Tensor) else None
    if inputs.guide is None:
        known = _NOTHING if groups is None and classes is None else _About(groups, classes)
        return [known, known]
    with torch.no_grad():
        units = [unit_rows(g.detach(), "guide") for g in inputs.guide]
        similarity = (units[0] * units[1]).sum(1)
        unit_of_margin = similarity.abs() if loss.guide_relative else 1.0
        threshold = similarity - loss.guide_margin * unit_of_margin
    return [_About(groups, classes, unit, threshold) for unit in units]


def _stacked(views: list[_About]) -> _About:
    """Several views as one, one below the other."""
    one, *rest = views
    return one.mapped(lambda *parts: torch.cat(parts), *rest) if rest else one


def _listed(inputs: Inputs, like: Tensor, k: int | None, start: int, span: int) -> Listed | None:
    """(r, c) as entries of the rows of view k (None: of both) against those of both views."""
    if not isinstance(inputs.positives, tuple):
        return None
    r, c, weights = positions(inputs.positives, like)
    if k is None:
        return Listed(torch.cat([r, c + span]), torch.cat([c + span, r]), weights.repeat(2))
    return Listed(r, c + start + span, weights) if k == 0 else Listed(c, r + start, weights)


def _relation(rows: Tensor | None, columns: Tensor | None) -> Relation | None:
    return None if rows is None or columns is None else Relation(rows, columns)


def _only_positives(exclude: Exclusions) -> Exclusions:
    """What selects the positives among the same columns."""
    if exclude.listed is not None:
        return Exclusions(listed=exclude.listed)
    return Exclusions(exclude.diagonals, classes=exclude.classes, only_classes=True)


def _check(loss: ContrastiveLoss, inputs: Inputs) -> None:
    (z1, z2), positives = inputs.views(), inputs.positives
    bank, hard, groups = inputs.bank, inputs.hard, inputs.groups
    check_views(z1, z2, equal=not isinstance(positives, tuple))
    if inputs.weights is not None:
        _check_weights(loss, inputs.weights, z1.shape[0])
    if loss.validate:
        for name, rows in (("z1", z1), ("z2", z2), ("bank", bank), ("hard", hard)):
            if rows is not None:
                check_finite(rows, name)
    if positives is not None:
        if isinstance(loss.temperature, Mapped) or loss.pair_function is None:
            raise ValueError(
                f"{type(loss).__name__} takes one positive per anchor: leave positives out, or use "
                "SupCon, InfoNCE, NTXent, DCL, FlatNCE or MACL."
            )
        check_positives(positives, z1.shape[0], z2.shape[0])
        if z1.shape[0] != z2.shape[0]:
            if loss.negatives == "both":
                raise ValueError('views of different lengths need negatives="cross".')
            if groups is not None or inputs.guide is not None:
                raise ValueError("groups and guide belong to pairs: give views of one length.")
    check_groups("groups", groups, z1.shape[0])
    if inputs.hard_groups is not None and (hard is None or groups is None):
        raise ValueError(
            "hard_groups compares hard negatives with the batch: give hard and groups too."
        )
    if inputs.bank_groups is not None and bank is None:
        raise ValueError("bank_groups describes a bank: give bank=(K, D) too, or leave it out.")
    if inputs.guide is not None:
        _check_guide(loss, inputs, inputs.guide)
    if bank is not None:
        if hard is not None:
            raise ValueError(
                "hard adds negatives to a batch; with a bank, append them to the bank."
            )
        if (groups is None) != (inputs.bank_groups is None):
            raise ValueError("with a bank, give groups and bank_groups, or neither.")
    elif hard is not None:
        if loss.negatives == "both":
            raise ValueError('hard needs negatives="cross", where anchors are the first view.')
        check_groups("hard_groups", inputs.hard_groups, len(hard))
    elif z1.shape[0] < 2 and loss.needs_negatives and not loss.active_gather:
        raise ValueError(
            "a single pair has no negatives in its batch: give at least two pairs (N ≥ 2; a loader "
            "with drop_last=True avoids a last batch of one), or a bank=(K, D) of negatives."
        )


def _check_weights(loss: ContrastiveLoss, weights: Tensor, pairs: int) -> None:
    if weights.shape != (pairs,):
        raise ValueError(
            f"weights holds one number per pair, ({pairs},), got {tuple(weights.shape)}."
        )
    if loss.checks(weights) and not bool((weights.isfinite() & (weights >= 0)).all()):
        raise ValueError("weights must be finite and 0 or more; they weigh pairs in a mean.")


def _check_guide(loss: ContrastiveLoss, inputs: Inputs, guide: tuple[Tensor, ...]) -> None:
    lengths = [len(view) for view in inputs.views()]
    if inputs.hard is not None and len(guide) == 3:
        lengths.append(len(inputs.hard))
    if (
        not isinstance(guide, tuple)
        or len(guide) != len(lengths)
        or any(g.ndim != 2 or len(g) != n for g, n in zip(guide, lengths, strict=True))
        or len({g.shape[1] for g in guide}) != 1
    ):
        raise ValueError(
            "guide holds the guide model's embeddings of both views, (g1, g2), (N, G) each, and of "
            "the hard negatives, if there are any and they are to be judged too."
        )
    if inputs.bank is not None:
        raise ValueError(
            "guide compares rows of the batch; a bank has no embeddings of the guide: use groups "
            "and bank_groups, or leave it out."
        )
    if loss.guide_relative and not 0 <= loss.guide_margin < 1:
        raise ValueError(f"a relative guide_margin lies between 0 and 1, got {loss.guide_margin}.")


def check_views(z1: Tensor, z2: Tensor, equal: bool = True) -> None:
    """Two (N, D) views of one floating type on one device, N ≥ 1."""
    compiling = torch.compiler.is_compiling()
    for name, z in (("z1", z1), ("z2", z2)):
        if not isinstance(z, Tensor):
            raise ValueError(f"{name} is a tensor (N, D), got {type(z).__name__}.")
        if not compiling and is_functorch_wrapped_tensor(z):
            raise ValueError(
                "transforms of torch.func (grad, vmap, jacrev) are not supported: use "
                "torch.autograd.grad or loss.backward(), and a loop over batches for vmap."
            )
        if z.ndim != 2 or z.shape[1] == 0:
            raise ValueError(
                f"embeddings are two-dimensional, (N, D): {name} has the shape {tuple(z.shape)}. "
                "Pool or flatten it to one row per sample."
            )
    if z1.shape[1] != z2.shape[1] or (equal and z1.shape[0] != z2.shape[0]):
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
    if z1.shape[0] == 0:
        raise ValueError("the batch is empty; give at least one pair and a bank, or two pairs.")


def check_groups(name: str, groups: Tensor | None, rows: int) -> None:
    """(rows,) integers."""
    if groups is None:
        return
    if not isinstance(groups, Tensor):
        raise ValueError(f"{name} is a tensor of integers, got {type(groups).__name__}.")
    if groups.shape != (rows,) or groups.is_floating_point():
        raise ValueError(
            f"{name} holds one integer per row, ({rows},), got {groups.dtype} "
            f"{tuple(groups.shape)}."
        )


def check_positives(positives: Positives, rows: int, columns: int) -> None:
    """Labels, multi-hot labels, or positions, see `Positives`."""
    name = "positives (or labels)"
    if isinstance(positives, Tensor):
        if positives.ndim == 2:
            if len(positives) != rows or rows != columns:
                raise ValueError(
                    f"{name} holds one row of labels per pair, ({rows}, L), got "
                    f"{tuple(positives.shape)}."
                )
            return
        check_groups(name, positives, rows)
        return
    if not (
        isinstance(positives, tuple)
        and len(positives) in (2, 3)
        and all(isinstance(part, Tensor) and part.ndim == 1 for part in positives)
        and len({len(part) for part in positives}) == 1
        and not any(part.is_floating_point() for part in positives[:2])
    ):
        raise ValueError(
            f"{name} is (N,) integers, (N, L) multi-hot, or a tuple (rows, columns) or "
            "(rows, columns, weights) of equally long tensors: the positions of the positive pairs."
        )


def unit_extra(rows: Tensor, name: str, like: Tensor, is_unit: bool = False) -> Tensor:
    """(K, D) additional rows at length 1, in the type of the views."""
    if rows.ndim != 2 or rows.shape[0] == 0 or rows.shape[1] != like.shape[1]:
        raise ValueError(
            f"{name} must be (K, {like.shape[1]}) with K ≥ 1 to match the views, "
            f"got {tuple(rows.shape)}."
        )
    return (wide(rows) if is_unit else unit_rows(rows, name)).to(like.dtype)


def positions(positives: tuple[Tensor, ...], like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """(rows, columns, weights) of listed positives; weights of 1 where there are none."""
    rows, columns, *weights = positives
    weight = weights[0] if weights else torch.ones(rows.shape[0], device=rows.device)
    return rows.long(), columns.long(), weight.to(like.dtype)
