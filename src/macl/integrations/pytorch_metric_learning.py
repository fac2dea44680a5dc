"""The losses of the family as losses of pytorch-metric-learning: (embeddings, labels) in.

from macl import MACL
from macl.integrations.pytorch_metric_learning import ContrastiveLoss
loss = ContrastiveLoss(MACL(temperature=0.1))(embeddings, labels)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl import losses
from macl.losses.build import Inputs
from macl.losses.ops.exclusions import Exclusions, Relation, Tile
from macl.losses.ops.maps import Logits, logit
from macl.losses.ops.tiled import Values
from macl.losses.pairs import Block, Pairs, Side
from macl.losses.temperature import StepInfo
from macl.losses.unit import unit_rows

try:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction
    from pytorch_metric_learning.miners import BaseMiner
    from pytorch_metric_learning.utils import common_functions as c_f
    from pytorch_metric_learning.utils import loss_and_miner_utils as lmu
except ImportError as error:
    raise ImportError(
        "macl.integrations.pytorch_metric_learning needs the package pytorch-metric-learning: "
        'pip install pytorch-metric-learning, or pip install "macl[integrations]".'
    ) from error

STATS = ("alignment", "temperature", "gradient_scale")


class ContrastiveLoss(BaseMetricLossFunction):
    """A loss of the family behind the call `loss(embeddings, labels, indices_tuple, ref_emb, …)`.

    Every pair of equal labels (a, p) is one term, against all embeddings of other labels than a's,

        x_ap = logsumexp_{n: y_n ≠ y_a}(s_an/τ) − s_ap/τ,   A = mean of s_ap over all such pairs,

    and the reducer, by default the mean, sees one loss per pair. With two views and labels
    cat(arange(N), arange(N)) this is the criterion's own "both" form; with `ref_emb` it is "cross"
    in one direction. Anchors without any negative add a term of 0, and a batch without any positive
    pair has the loss 0, as elsewhere in the library.

    Labels may also be (n, L) multi-hot: two embeddings that share a label are a positive pair.

    A miner's `indices_tuple` is obeyed: its positive pairs are the terms, and its negative pairs
    the negatives of each anchor, repetitions counted. `BlockMiner` mines without the n×m matrix.

    The class bears the name of the library's own pair loss because `SelfSupervisedLoss` and
    `CrossBatchMemory` accept losses by their class name.

    Args:
        criterion: any loss of `macl`. Labels decide who is contrasted, so its `negatives` and
            `symmetric` play no part.
        kwargs: the library's own: reducer, collect_stats, embedding_regularizer, …. With
            collect_stats, `alignment` (A), `temperature` (τ) and `gradient_scale` (mean W) of the
            last batch are recorded attributes.
    """

    def __init__(self, criterion: losses.ContrastiveLoss, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if not isinstance(self.distance, CosineSimilarity):
            raise ValueError(
                f"distance={type(self.distance).__name__}: these losses are functions of cosine "
                "similarity. Leave distance out. LpDistance(p=2, power=2) on normalized embeddings "
                "is 2 − 2·cos, so temperature T there is T/2 here; for any other distance use the "
                "library's own losses, such as NTXentLoss(distance=…)."
            )
        if criterion.reduction != "mean":
            raise ValueError(
                'the library reduces with reducers: leave reduction="mean" and give '
                "reducer=DoNothingReducer() for one value per pair."
            )
        if criterion.gather:
            raise ValueError(
                "gather has no effect on labeled batches: leave it out and wrap this loss in "
                "the library's utils.distributed.DistributedLossWrapper."
            )
        self.criterion = criterion
        self.add_to_recordable_attributes(list_of_names=list(STATS), is_stat=True)

    def get_default_distance(self) -> CosineSimilarity:
        """Cosine similarity, the only one there is here."""
        return CosineSimilarity()

    def forward(
        self,
        embeddings: Tensor,
        labels: Tensor | None = None,
        indices_tuple: tuple[Tensor, ...] | None = None,
        ref_emb: Tensor | None = None,
        ref_labels: Tensor | None = None,
    ) -> Any:
        """As the library's, which takes one label per embedding, or with (n, L) labels."""
        if labels is None or labels.ndim == 1:
            return super().forward(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        if ref_emb is None:
            ref_emb, ref_labels = embeddings, labels
        for rows, own in ((embeddings, labels), (ref_emb, ref_labels)):
            if own is None or own.shape != (len(rows), labels.shape[1]):
                raise ValueError(
                    f"labels are ({len(rows)}, {labels.shape[1]}) multi-hot here, got "
                    f"{None if own is None else tuple(own.shape)}."
                )
        self.reset_stats()
        labels, ref_labels = (c_f.to_device(own, embeddings) for own in (labels, ref_labels))
        loss_dict = self.compute_loss(embeddings, labels, indices_tuple, ref_emb, ref_labels)
        self.add_embedding_regularization_to_loss_dict(loss_dict, embeddings)
        return self.reducer(loss_dict, embeddings, labels)

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """The library's dictionary with one loss per positive pair.

        `embeddings` are (n, D) anchors, `ref_emb` (m, D) positives and negatives, perhaps the same
        tensor.
        """
        c_f.labels_or_indices_tuple_required(labels, indices_tuple)
        if embeddings.ndim != 2 or ref_emb.ndim != 2 or embeddings.shape[1] != ref_emb.shape[1]:
            raise ValueError(
                f"embeddings must be (n, D) and ref_emb (m, D), got {tuple(embeddings.shape)} and "
                f"{tuple(ref_emb.shape)}."
            )
        with torch.autocast(embeddings.device.type, enabled=False):
            alone = ref_emb is embeddings
            rows = unit_rows(embeddings, "embeddings")
            columns = rows if alone else unit_rows(ref_emb, "ref_emb").to(rows.dtype)
            pairs: Labeled | Mined
            if indices_tuple is not None:
                pairs = Mined(rows, columns, lmu.convert_to_pairs(indices_tuple, labels))
            elif labels is not None and ref_labels is not None:
                pairs = Labeled(rows, columns, labels, ref_labels, self.criterion.kernel)
            else:
                raise ValueError("ref_emb needs ref_labels, or an indices_tuple.")
            # No early return before this: the mean is taken over all ranks, which wait for each
            # other, and it may be only this one that has no pair.
            step = StepInfo(pairs)
            alignment = step.alignment
            if len(pairs.anchor_rows) == 0:
                return self.zero_losses()
            terms = self.criterion.terms(pairs, step, Inputs(embeddings, None))
            if isinstance(terms.logits, Tensor) and terms.logits.ndim:
                raise ValueError(
                    "one temperature per anchor needs pairs of views; with labels, use a "
                    "temperature that is a single number, or a map."
                )
        if self.collect_stats:
            floored = self.criterion.temperature.is_floored
            output = losses.LossOutput(alignment, terms, step, floored)
            for name in STATS:
                setattr(self, name, getattr(output, name).mean().item())
        return {
            "loss": {
                "losses": terms.per_anchor,
                "indices": (pairs.anchor_rows, pairs.positive_columns),
                "reduction_type": "pos_pair",
            }
        }


class Labeled(Pairs):
    """All pairs of equal labels, against all rows of other labels, streamed.

    `rows` (n, D) and `columns` (m, D) have unit length; where they are the same tensor, a row is
    not its own positive. Each pair is an anchor; `anchor_rows`, `positive_columns` (P,) are its
    indices.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        labels: Tensor,
        column_labels: Tensor,
        kernel: str | None = None,
    ) -> None:
        block = Block(columns, Exclusions(classes=Relation(labels, column_labels)))
        super().__init__([Side(rows, (block,))], kernel=kernel)
        anchors, positives, same = equal_labels(labels, column_labels)
        counted = anchors != positives if columns is rows else slice(None)
        self.anchor_rows, self.positive_columns = anchors[counted], positives[counted]
        self.count = (len(columns) - same)[self.anchor_rows].to(rows.dtype)

    def positive_similarity(self) -> Tensor:
        """(P,)."""
        side = self.sides[0]
        columns = side.blocks[0].columns
        return (side.rows[self.anchor_rows] * columns[self.positive_columns]).sum(1)

    def evaluate(self, logits: Logits, statistics: bool = False) -> Values:
        """(P,): one logsumexp per row, shared by its pairs."""
        lse, *moments, positive = super().evaluate(logits, statistics)
        mean, square = (None if x is None else x[self.anchor_rows] for x in moments)
        return Values(lse[self.anchor_rows], mean, square, positive)


class Mined(Pairs):
    """The pairs that a miner chose: indices of (anchors, positives, owners, negatives).

    One inner product for each chosen pair: no matrix of similarities is formed.
    """

    def __init__(self, rows: Tensor, columns: Tensor, chosen: tuple[Tensor, ...]) -> None:
        super().__init__([Side(rows, (Block(columns, Exclusions(groups=None)),))])
        self.complete, self._columns = False, columns
        self.anchor_rows, self.positive_columns, self._owners, self._negatives = chosen
        count = torch.bincount(self._owners, minlength=len(rows))
        self.count = count[self.anchor_rows].to(rows.dtype)

    def positive_similarity(self) -> Tensor:
        """(P,)."""
        return (self.like[self.anchor_rows] * self._columns[self.positive_columns]).sum(1)

    def evaluate(self, logits: Logits, statistics: bool = False) -> Values:
        """(P,): logsumexp over segments, one segment of negatives per anchor."""
        rows = self.like
        negative = logit((rows[self._owners] * self._columns[self._negatives]).sum(1), logits)
        peak = negative.detach().new_full((len(rows),), -torch.inf)
        peak = peak.scatter_reduce(0, self._owners, negative.detach(), "amax")
        raised = torch.exp(negative - peak[self._owners])
        total = negative.new_zeros(len(rows)).index_add(0, self._owners, raised)
        lse = (peak + total.log())[self.anchor_rows]
        return Values(lse, positive=logit(self.positive_similarity(), logits))


class BlockMiner(BaseMiner):
    """A miner applied to a few anchors at a time: similarities of a block, not n×m of them.

        indices = BlockMiner(BatchHardMiner())(embeddings, labels)
        loss = ContrastiveLoss(MACL())(embeddings, labels, indices)

    Args:
        miner: one of the library's that chooses for each anchor by itself, such as BatchHardMiner,
            MultiSimilarityMiner, PairMarginMiner or TripletMarginMiner.
        rows: anchors of a block.
        kwargs: the library's own.
    """

    def __init__(self, miner: BaseMiner, rows: int = 256, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        if rows < 1:
            raise ValueError(f"rows counts the anchors of a block, 1 or more; got {rows}.")
        self.miner, self.rows = miner, rows

    def mine(
        self, embeddings: Tensor, labels: Tensor, ref_emb: Tensor, ref_labels: Tensor
    ) -> tuple[Tensor, ...]:
        """Triplets (3 tensors) or pairs (4 tensors), by block."""
        alone = ref_emb is embeddings
        blocks = []
        for start in range(0, len(embeddings), self.rows):
            own = slice(start, start + self.rows)
            block = list(self.miner(embeddings[own], labels[own], ref_emb, ref_labels))
            paired = 3 if len(block) == 3 else 2  # tensors that belong to the first anchors
            for anchors in range(0, len(block), paired):
                block[anchors] = block[anchors] + start
            if alone:  # as references, anchors are their own positives too
                others = block[0] != block[1]
                block[:paired] = [part[others] for part in block[:paired]]
            blocks.append(block)
        return tuple(map(torch.cat, zip(*blocks, strict=True)))


def equal_labels(
    labels: Tensor, column_labels: Tensor, most: int = 2**22
) -> tuple[Tensor, Tensor, Tensor]:
    """All (row, column) that agree in a label, `most` comparisons at a time.

    Returns:
        (P,) rows and (P,) columns in ascending order, and (n,) how many columns each row matches.
    """
    relation, width = Relation(labels, column_labels), len(column_labels)
    step = max(1, most // max(1, width))
    pairs = [torch.empty(0, 2, dtype=torch.int64, device=labels.device)]
    for start in range(0, len(labels), step):
        agree = relation.agree(Tile(start, min(start + step, len(labels)), 0, width))
        pairs.append(agree.nonzero() + torch.tensor([start, 0], device=labels.device))
    rows, columns = torch.cat(pairs).unbind(1)
    return rows, columns, torch.bincount(rows, minlength=len(labels))
