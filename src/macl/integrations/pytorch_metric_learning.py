"""The losses of the family as losses of pytorch-metric-learning: (embeddings, labels) in.

from macl import MACL
from macl.integrations.pytorch_metric_learning import ContrastiveLoss
loss = ContrastiveLoss(MACL(temperature=0.1))(embeddings, labels)
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from macl import distributed, losses
from macl.losses.kernels import operator
from macl.losses.kernels.interface import Exclusions
from macl.losses.logits import Logits, logit, temperature_at
from macl.losses.pairs import Pairs
from macl.losses.unit import unit_rows

try:
    from pytorch_metric_learning.distances import CosineSimilarity
    from pytorch_metric_learning.losses import BaseMetricLossFunction
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

    Every pair of equal labels (a, p) is one term: anchor a with positive p against all the
    embeddings whose label differs from a's,

        x_ap = logsumexp_{n: y_n ≠ y_a}(s_an/τ) − s_ap/τ,   A = mean of s_ap over all such pairs,

    and the reducer, by default the mean, sees one loss per pair. Same-label pairs are never
    negatives. With two views and labels cat(arange(N), arange(N)) this is the criterion's own
    "both" form; with `ref_emb` it is "cross" in one direction. Anchors without any negative add a
    term of 0, and a batch without any positive pair has the loss 0, as elsewhere in the library.

    A miner's `indices_tuple` is obeyed: its positive pairs are the terms, and its negative pairs
    the negatives of each anchor, repetitions counted.

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
                "similarity. Leave distance out. LpDistance(p=2, power=2) on normalised embeddings "
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
                "gather has no effect on labelled batches: leave it out and wrap this loss in "
                "the library's utils.distributed.DistributedLossWrapper."
            )
        self.criterion = criterion
        self.add_to_recordable_attributes(list_of_names=list(STATS), is_stat=True)

    def get_default_distance(self) -> CosineSimilarity:
        """Cosine similarity, the only one there is here."""
        return CosineSimilarity()

    def compute_loss(
        self,
        embeddings: Tensor,
        labels: Tensor | None,
        indices_tuple: tuple[Tensor, ...] | None,
        ref_emb: Tensor,
        ref_labels: Tensor | None,
    ) -> dict[str, dict[str, Any]]:
        """The library's dictionary with one loss per positive pair.

        Args:
            embeddings: (n, D) anchors of any scale; normalised inside.
            labels: (n,) integers.
            indices_tuple: a miner's triplets (3 tensors) or pairs (4 tensors).
            ref_emb: (m, D) positives and negatives; `embeddings` itself when there are no others.
            ref_labels: (m,) integers.
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
            pairs: Labelled | Mined
            if indices_tuple is not None:
                pairs = Mined(rows, columns, *lmu.convert_to_pairs(indices_tuple, labels))
            elif labels is not None and ref_labels is not None:
                pairs = Labelled(rows, columns, labels, ref_labels)
            else:
                raise ValueError("ref_emb needs ref_labels, or an indices_tuple.")
            # No early return before this: the mean is taken over all ranks, which wait for each
            # other, and it may be only this one that has no pair.
            alignment = distributed.global_mean(pairs.positive)
            if len(pairs.anchors) == 0:
                return self.zero_losses()
            logits = self.criterion.temperature(alignment)
            if isinstance(logits, Tensor) and logits.ndim:
                raise ValueError(
                    "one temperature per anchor needs pairs of views; with labels, use a "
                    "temperature that is a single number, or a map."
                )
            pairs.kernel = self.criterion.kernel
            x = pairs.margin(logits)
            per_pair = self.criterion.objective(pairs, logits, x)
        if self.collect_stats:
            self.alignment = alignment.item()
            self.temperature = temperature_at(pairs.positive, logits).mean().item()
            self.gradient_scale = torch.sigmoid(x.detach()).mean().item()
        return {
            "loss": {
                "losses": per_pair,
                "indices": (pairs.anchors, pairs.positives),
                "reduction_type": "pos_pair",
            }
        }


class Labelled(Pairs):
    """All pairs of equal labels, against all rows of other labels, streamed.

    `rows` (n, D) and `columns` (m, D) have unit length; the same tensor twice means that a row
    must not be its own positive. `anchors`, `positives`: (P,) indices of the pairs.
    """

    def __init__(
        self, rows: Tensor, columns: Tensor, labels: Tensor, column_labels: Tensor
    ) -> None:
        self.anchors, self.positives, same = equal_labels(labels, column_labels)
        if columns is rows:
            others = self.anchors != self.positives
            self.anchors, self.positives = self.anchors[others], self.positives[others]
        self.positive = (rows[self.anchors] * columns[self.positives]).sum(1)
        self.count = (len(columns) - same)[self.anchors].to(rows.dtype)
        self._rows, self._columns = rows, columns
        self._exclude = Exclusions((), labels, column_labels)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(P,): one logsumexp per anchor, shared by its pairs."""
        if self._columns is self._rows:
            by_row = operator.logsumexp_mirror(self._rows, logits, self._exclude, self.kernel)
        else:
            by_row = operator.logsumexp(
                self._rows, self._columns, logits, self._exclude, self.kernel
            )
        return by_row[self.anchors]


class Mined(Pairs):
    """The pairs that a miner chose: (anchors, positives) and (owners, negatives), index tensors.

    Works on the (n, m) matrix of similarities, as the library's own losses do.
    """

    def __init__(
        self,
        rows: Tensor,
        columns: Tensor,
        anchors: Tensor,
        positives: Tensor,
        owners: Tensor,
        negatives: Tensor,
    ) -> None:
        similarities = rows @ columns.T
        self.anchors, self.positives = anchors, positives
        self.positive = similarities[anchors, positives]
        self._owners, self._negative = owners, similarities[owners, negatives]
        self._rows = len(rows)
        self.count = torch.bincount(owners, minlength=len(rows))[anchors].to(rows.dtype)

    def logsumexp(self, logits: Logits) -> Tensor:
        """(P,): logsumexp over segments, one segment of negatives per anchor."""
        negative = logit(self._negative, logits)
        peak = negative.detach().new_full((self._rows,), -torch.inf)
        peak = peak.scatter_reduce(0, self._owners, negative.detach(), "amax")
        raised = torch.exp(negative - peak[self._owners])
        total = negative.new_zeros(self._rows).index_add(0, self._owners, raised)
        return (peak + total.log())[self.anchors]


def equal_labels(labels: Tensor, column_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All (row, column) of equal labels, without forming the n×m matrix of comparisons.

    Returns:
        (P,) rows and (P,) columns in ascending order, and (n,) how many columns each row matches.
    """
    order = column_labels.argsort(stable=True)
    sorted_labels = column_labels[order]
    first = torch.searchsorted(sorted_labels, labels)
    same = torch.searchsorted(sorted_labels, labels, right=True) - first
    rows = torch.repeat_interleave(same)
    within = torch.arange(len(rows), device=rows.device) - (same.cumsum(0) - same)[rows]
    return rows, order[first[rows] + within], same
