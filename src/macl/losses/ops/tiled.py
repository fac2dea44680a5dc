"""The operator tile by tile: linear memory on any device, and the reference for all of it.

    l_ij = s_ij/τ or g(s_ij),   s_ij = r_i·c_j,   r and c of length 1
    lse_i = log Σ_j e^{l_ij} over the pairs that count

The backward pass computes the tiles again. A symmetric matrix ("mirror", columns = rows) is
computed in half: a tile above the diagonal serves its rows and its columns.

Unit rows bound the logits. Where e^{±1/τ} and sums of it stay in the type's range, known on the
CPU, exponentials need no maximum subtracted; elsewhere each row's running maximum is, and nothing
is read back to the host. Tiles come in a fixed order, so results repeat bit for bit.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from macl.losses.objectives import FUNCTIONS
from macl.losses.ops.exclusions import Exclusions, Tile
from macl.losses.ops.maps import LogitMap, joined

if TYPE_CHECKING:
    from macl.losses.ring import Ring

Direction = Literal["rows", "both", "mirror"]
"""A logsumexp per row; per row and per column; or of rows against themselves (symmetric)."""

LOG2E, LN2 = math.log2(math.e), math.log(2)
CPU_TILE, ACCELERATOR_TILE = 1024, 2048
"""Side of a tile: full-speed products, and a few megabytes that caches hold."""
_LARGEST_EXPONENT = {torch.float32: 60.0, torch.float64: 700.0}
# In float32, normal from 2^-126 to 2^127: sums of 2^20 terms reach 2^80 at most, so that a gradient
# of 2^-46 divided by one is still a normal number; single terms lie above 2^-60.


class Plan(NamedTuple):
    """What the operator is to compute, besides its tensors."""

    exclude: Exclusions = Exclusions()
    direction: Direction = "rows"
    map: LogitMap | None = None
    statistics: bool = False
    """Whether the logits' mean and mean square under the softmax are results too."""
    function: str = ""
    """f of a pair sum, a name in `objectives.FUNCTIONS`; empty for logsumexps."""
    kernel: str | None = None
    """Implementation, see `operator.selected`."""
    ring: Ring | None = None
    """Brings the columns of other ranks; None: all columns are here."""


class Operands(NamedTuple):
    """The tensors of the operator."""

    rows: Tensor
    """(n, D) of length 1."""
    columns: Tensor
    """(m, D) of length 1; the rows in the direction "mirror"."""
    scale: Tensor | None
    """τ, a scalar or (n,), None with a map; in a pair sum what multiplies s."""
    offset: Tensor | None = None
    """Of a pair sum, a scalar or (n,)."""

    def wide(self) -> tuple[Tensor, Tensor, int, int]:
        """Rows and columns in float32 at least, and how many there are."""
        return wide(self.rows), wide(self.columns), self.rows.shape[0], self.columns.shape[0]

    def line(self) -> tuple[Tensor, Tensor]:
        """Scale and offset of a pair sum."""
        assert self.scale is not None
        assert self.offset is not None
        return self.scale, self.offset


class Values(NamedTuple):
    """Results by anchor: (k,), the rows and, in the direction "both", the columns after them."""

    lse: Tensor
    """Or the sum over pairs."""
    mean: Tensor | None = None
    """Σ_j P̂_ij·l_ij; 0 for an anchor without negatives."""
    square: Tensor | None = None
    """Σ_j P̂_ij·l_ij²."""
    positive: Tensor | None = None
    """Logits of the positives, where an anchor has one; the operator leaves them to the caller."""

    @property
    def margin(self) -> Tensor:
        """x = lse − positive, where the positives are known."""
        assert self.positive is not None
        return self.lse - self.positive

    def added(self, other: Values) -> Values:
        """The sums over the pairs of both."""
        return Values(self.lse.add_(other.lse))

    def merged(self, other: Values) -> Values:
        """The results over the negatives of both; `positive` is that of the first."""
        # torch.logaddexp has the gradient NaN where both are −inf; here it is 0 there.
        finite = other.lse.clamp(min=torch.finfo(other.lse.dtype).min)
        both = torch.logaddexp(self.lse, finite)
        lse = torch.where(other.lse.isneginf(), self.lse, both)
        if self.mean is None or other.mean is None or self.square is None or other.square is None:
            return Values(lse, positive=self.positive)
        share = torch.sigmoid(other.lse.detach() - self.lse.detach()).nan_to_num(0.0)
        mean, square = self.mean.lerp(other.mean, share), self.square.lerp(other.square, share)
        return Values(lse, mean, square, self.positive)


class Held(NamedTuple):
    """What `dense` keeps of a matrix for the backward pass."""

    e: Tensor
    """(n, m) exponentials, 0 where excluded; each row's maximum subtracted unless bounded. Of a
    pair sum f'."""
    total: Tensor | None = None
    """(k,) their sums by row, and by column after them."""
    by_column: Tensor | None = None
    """(n, m) the same with each column's maximum subtracted, in the direction "both"."""
    slope: Tensor | None = None
    """(n, m) dl/ds of a map."""


def wide(x: Tensor) -> Tensor:
    """Half precision as float32; float32 and float64 as they are."""
    return x if x.dtype in (torch.float32, torch.float64) else x.float()


def exponent_scale(rows: Tensor, temperature: Tensor | None, map: LogitMap | None) -> float | None:
    """log2(e)/τ where one τ, or a map (1), keeps e^{±l} and sums of it in range; else None.

    τ is read on the CPU alone.
    """
    if map is not None:
        bound, scale = map.largest(), 1.0
    elif temperature is None or temperature.ndim or not temperature.is_cpu:
        return None
    else:
        tau = temperature.item()
        bound = 1 / tau if tau else math.inf
        scale = LOG2E * bound
    limit = _LARGEST_EXPONENT.get(rows.dtype, 60.0)
    return scale if LOG2E * bound <= limit else None  # None for NaN


def tiles(n: int, m: int, device: torch.device, mirror: bool = False) -> list[Tile]:
    """All tiles of an n×m matrix, or with `mirror` those on and above the diagonal."""
    side = CPU_TILE if device.type == "cpu" else ACCELERATOR_TILE
    return [
        Tile(top, min(top + side, n), left, min(left + side, m))
        for top in range(0, n, side)
        for left in range(top if mirror else 0, m, side)
    ]


def logits_of(
    scaled: Tensor, columns: Tensor, map: LogitMap | None, out: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """l of rows that are divided by τ already, and dl/ds where a map makes it vary."""
    s = torch.mm(scaled, columns.T, out=out)
    return (s, None) if map is None else map.value_and_derivative(s)


def over(rows: Tensor, temperature: Tensor | None, scale: float | None) -> Tensor:
    """r times `scale` where that is known, else r/τ; the rows themselves where a map follows."""
    if temperature is None:
        return rows
    return times(rows, temperature.reciprocal()) if scale is None else rows * scale


class _Sums:
    """n sums Σ e^l over tiles, with moments of l and Σ e^l·c where asked for.

    `bounded`: exponentials need no maximum subtracted. `whole`: there is one tile, so nothing is
    added to what was before. `filled`: every sum is known to have a term.
    """

    def __init__(
        self, n: int, like: Tensor, bounded: bool, statistics: bool, whole: bool, filled: bool
    ) -> None:
        self._bounded, self._whole, self._filled = bounded, whole, whole and filled
        self._peak = like if bounded or whole else like.new_full((n,), -math.inf)
        self._sums = [] if whole else list(like.new_zeros(3 if statistics else 1, n))
        self._statistics = statistics
        self._pull: Tensor | None = None

    @property
    def total(self) -> Tensor:
        """(n,) Σ e^l, less the maximum."""
        return self._sums[0]

    def add(self, place: slice, logits: Tensor, e: Tensor, dim: int) -> Tensor:
        """Add a tile: its logits, −inf where excluded, or with a bound `e` = e^l, 0 there.

        Returns the exponentials.
        """
        scale = None
        if not self._bounded:
            peak = logits.amax(dim)
            if not self._whole:
                peak = torch.maximum(self._peak[place], peak)
            center = peak if self._filled else _finite(peak)  # −inf less −inf would be NaN
            e = torch.exp(logits - center.unsqueeze(dim))
            if self._whole:
                self._peak = center
            else:
                scale = torch.exp(self._peak[place] - center)
                self._peak[place] = peak
        sums = [e.sum(dim)]
        if self._statistics:
            finite = _finite(logits)
            first = e * finite
            sums += [first.sum(dim), first.mul_(finite).sum(dim)]
        if self._whole:
            self._sums = sums
            return e
        for total, more in zip(self._sums, sums, strict=True):
            if scale is not None:
                total[place] *= scale
            total[place] += more
        if self._pull is not None and scale is not None:
            self._pull[place] *= scale.unsqueeze(1)
        return e

    def add_pull(self, place: slice, weights: Tensor, columns: Tensor) -> None:
        """Add Σ_j weights_ij·c_j of a tile that was added."""
        if self._pull is None:
            self._pull = columns.new_zeros(len(self.total), columns.shape[1])
        self._pull[place].addmm_(weights, columns)

    @property
    def center(self) -> Tensor:
        """(n,) what was subtracted, unless bounded."""
        return self._peak if self._whole else _finite(self._peak)

    def moments(self) -> Tensor:
        """(2, n) mean of l and of l² under the softmax."""
        return torch.stack(self._sums[1:]) / nonzero(self.total)

    def normalized_pull(self) -> Tensor | None:
        """(n, D) Σ_j P̂_ij·c_j."""
        return None if self._pull is None else self._pull / nonzero(self.total)[:, None]


def forward(
    given: Operands, plan: Plan, pull: bool = False, hold: bool = False
) -> tuple[Values, Tensor | None, Held | None]:
    """The logsumexps of rows over columns, and what comes with them.

    With `pull` also (n, D) Σ_j P̂_ij·(dl/ds)_ij·c_j, for a gradient that reads no columns; with
    `hold` the matrix is one tile, which is kept for the backward pass.
    """
    rows, columns, n, m = given.wide()
    map, mirror, both = plan.map, plan.direction == "mirror", plan.direction == "both"
    scale = exponent_scale(rows, given.scale, map)
    bounded, scaled = scale is not None, over(rows, given.scale, scale)
    kind = (rows, bounded, plan.statistics, hold, not plan.exclude.may_empty(min(n, m)))
    by_row = _Sums(n, *kind)
    by_column = _Sums(m, *kind) if both else by_row
    parts = [Tile(0, n, 0, m)] if hold else tiles(n, m, rows.device, mirror)
    scratch, held = _scratch(rows, [] if hold else parts), None
    for tile in parts:
        out = None if hold else _view(scratch, tile)
        logits, slope = logits_of(scaled[tile.rows], columns[tile.columns], map, out)
        e = logits
        if bounded:
            if plan.statistics and map is None:
                logits = logits * LN2  # in nats
            e = e.exp2_() if map is None else e.exp_() if not plan.statistics else e.exp()
            plan.exclude.apply(e, tile, 0.0)
        else:
            plan.exclude.apply(logits, tile, -math.inf)
        row_e = by_row.add(tile.rows, logits, e, 1)
        if pull:
            weights = row_e if slope is None else row_e * slope
            by_row.add_pull(tile.rows, weights, columns[tile.columns])
        if both or (mirror and tile.top != tile.left):
            e = by_column.add(tile.columns, logits, e, 0)
        if hold:
            held = Held(row_e, by_row.total, e if both and not bounded else None, slope)
    sums = [by_row, by_column] if both else [by_row]
    total = joined([part.total for part in sums])
    lse = total.log()
    if not bounded:
        lse += joined([part.center for part in sums])
    mean = square = None
    if plan.statistics:
        mean, square = torch.cat([part.moments() for part in sums], 1)
    kept = None if held is None else held._replace(total=total)
    return Values(lse, mean, square), by_row.normalized_pull(), kept


def backward(
    given: Operands, plan: Plan, lse: Tensor, grad: Tensor, columns_too: bool
) -> tuple[Tensor, Tensor | None]:
    """(n, D) gradient to the rows and, if asked, (m, D) to the columns; "mirror" gives one for all.

        w_ij = [g_i·e^{l_ij − lse_i} + g_j·e^{l_ij − lse_j}]·(dl/ds)_ij,   dr_i = Σ_j w_ij·c_j

    `lse` is (k,) of `forward`, `grad` the gradient to it.
    """
    rows, columns, n, m = given.wide()
    map, mirror, both = plan.map, plan.direction == "mirror", plan.direction == "both"
    scale = exponent_scale(rows, given.scale, map)
    bounded, scaled = scale is not None, over(rows, given.scale, scale)
    # 1/τ is part of the weights; with a map, the slope is applied to each tile.
    weight = divided(grad, given.scale)
    lse = lse.nan_to_num(math.nan, math.inf, math.inf)  # without negatives: its weights become 0
    if bounded:
        weight = weight * torch.exp(-lse)
    first, first_lse = weight[:n], lse[:n]
    second = first if mirror else weight[n:] if both else None
    second_lse = first_lse if mirror else lse[n:]
    d_rows = torch.zeros_like(rows)
    d_columns = torch.zeros_like(columns) if columns_too and not mirror else None
    parts = tiles(n, m, rows.device, mirror)
    scratch = _scratch(rows, parts)
    for tile in parts:
        i, j = tile.rows, tile.columns
        logits, slope = logits_of(scaled[i], columns[j], map, _view(scratch, tile))
        plan.exclude.apply(logits, tile, -math.inf)
        if bounded:
            w = logits.exp2_() if map is None else logits.exp_()
            w *= first[i, None] if second is None else first[i, None] + second[j]
        else:
            w = (logits - first_lse[i, None]).exp_().mul_(first[i, None])
            if second is not None:
                w.addcmul_(logits.sub_(second_lse[j]).exp_(), second[j])
        if slope is not None:
            w *= slope
        d_rows[i].addmm_(w, columns[j])
        if mirror and tile.top != tile.left:
            d_rows[j].addmm_(w.T, rows[i])
        elif d_columns is not None:
            d_columns[j].addmm_(w.T, rows[i])
    return d_rows, d_columns


def pair_sum(given: Operands, plan: Plan, hold: bool = False) -> tuple[Tensor, Held | None]:
    """(n,) Σ_j f(offset_i + scale_i·s_ij) over the pairs that count; with `hold` as one tile."""
    rows, columns, n, m = given.wide()
    (scale, offset), function = given.line(), FUNCTIONS[plan.function]
    scaled = times(rows, scale)
    if hold:
        tile = Tile(0, n, 0, m)
        x = _pair_logits(scaled, columns, offset, tile)
        values, slopes = function.value(x), function.derivative(x)
        for entries in (values, slopes):
            plan.exclude.apply(entries, tile, 0.0)
        return values.sum(1), Held(slopes)
    sums = rows.new_zeros(n)
    for tile in tiles(n, m, rows.device):
        values = function.value(_pair_logits(scaled, columns, offset, tile))
        plan.exclude.apply(values, tile, 0.0)
        sums[tile.rows] += values.sum(1)
    return sums, None


def pair_sum_grad(
    given: Operands, plan: Plan, weight: Tensor, held: Held | None = None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of Σ_i weight_i·pair_sum_i to rows, columns, scale and offset."""
    rows, columns, n, m = given.wide()
    (scale, offset), derivative = given.line(), FUNCTIONS[plan.function].derivative
    scaled = times(rows, scale)
    weighted = times(scaled, weight)
    if held is not None:
        pull, d_columns, d_offset = held.e @ columns, held.e.T @ weighted, held.e.sum(1)
    else:
        pull, d_columns = torch.zeros_like(rows), torch.zeros_like(columns)
        d_offset = rows.new_zeros(n)
        for tile in tiles(n, m, rows.device):
            slopes = derivative(_pair_logits(scaled, columns, offset, tile))
            plan.exclude.apply(slopes, tile, 0.0)
            pull[tile.rows].addmm_(slopes, columns[tile.columns])
            d_columns[tile.columns].addmm_(slopes.T, weighted[tile.rows])
            d_offset[tile.rows] += slopes.sum(1)
    pull.mul_(weight[:, None])
    d_scale, d_offset = (rows * pull).sum(1), d_offset.mul_(weight)
    return (
        times(pull, scale),
        d_columns,
        d_scale if scale.ndim else d_scale.sum(),
        d_offset if offset.ndim else d_offset.sum(),
    )


def times(rows: Tensor, scale: Tensor) -> Tensor:
    """Rows multiplied by a number, or by one number each."""
    scale = scale.to(rows.dtype)
    return rows * (scale[:, None] if scale.ndim else scale)


def divided(values: Tensor, temperature: Tensor | None) -> Tensor:
    """(k,) values/τ; themselves with a map."""
    return values if temperature is None else values / temperature.to(values.dtype)


def temperature_grad(rows: Tensor, d_rows: Tensor, temperature: Tensor, mirror: bool) -> Tensor:
    """The gradient to τ from that to the rows: ⟨r, dL/dr⟩ = Σ g·P̂·s/τ.

    For a scalar a pair counts once, or once from either end in the direction "mirror"; for one τ
    per row the sum is each row's own.
    """
    inner = wide(rows) * wide(d_rows)
    if temperature.ndim:
        return inner.sum(1) / -temperature
    return inner.sum() / ((-2.0 if mirror else -1.0) * temperature)


def _finite(x: Tensor) -> Tensor:
    """0 in place of −inf."""
    return x.nan_to_num(math.nan, math.inf, 0.0)


def nonzero(total: Tensor) -> Tensor:
    """`total` with 1 in place of 0."""
    return total.masked_fill(total == 0, 1.0)


def _pair_logits(scaled: Tensor, columns: Tensor, offset: Tensor, tile: Tile) -> Tensor:
    """offset_i + scale_i·s_ij of a tile."""
    shift = offset[tile.rows, None] if offset.ndim else offset
    return torch.addmm(shift.to(scaled.dtype), scaled[tile.rows], columns[tile.columns].T)


def _scratch(like: Tensor, parts: list[Tile]) -> Tensor:
    """A buffer for the largest tile, used by all of them in turn."""
    return like.new_empty(max(((t.bottom - t.top) * (t.right - t.left) for t in parts), default=0))


def _view(scratch: Tensor, tile: Tile) -> Tensor:
    height, width = tile.bottom - tile.top, tile.right - tile.left
    return scratch[: height * width].view(height, width)
