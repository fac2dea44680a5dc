"""The losses of the family as losses of sentence-transformers, plain and with gradient caching.

from macl.integrations.sentence_transformers import LogContrast, MACLLoss
trainer = SentenceTransformerTrainer(model, args, train_dataset, loss=MACLLoss(model))
trainer.add_callback(LogContrast(trainer))  # A and τ in the logs, beside the loss
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from macl import distributed, losses
from macl.losses.contrastive import Gather
from macl.losses.kernels import tiles

try:
    from sentence_transformers.base.losses import CachedLossMixin, has_static_embedding_input
    from sentence_transformers.base.losses.merged_forward import embed_columns
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "macl.integrations.sentence_transformers needs sentence-transformers 6 or newer: "
        'pip install "sentence-transformers[train]>=6".'
    ) from error

MACL_CITATION = """
@inproceedings{huang2023macl,
    title={Model-Aware Contrastive Learning: Towards Escaping the Dilemmas},
    author={Zizheng Huang and Haoxing Chen and Ziqi Wen and Chao Zhang and Huaxiong Li and Bo Wang and Chunlin Chen},
    booktitle={Proceedings of the 40th International Conference on Machine Learning},
    year={2023}
}
"""  # noqa: E501
CACHE_CITATION = """
@misc{gao2021scaling,
    title={Scaling Deep Contrastive Learning Batch Size under Memory Limited Setup},
    author={Luyu Gao and Yunyi Zhang and Jiawei Han and Jamie Callan},
    year={2021},
    eprint={2101.06983},
    archivePrefix={arXiv},
    primaryClass={cs.LG}
}
"""


class ContrastiveLoss(nn.Module):
    """A loss of the family behind the call `loss(sentence_features, labels)`.

    Columns are those of `MultipleNegativesRankingLoss`: (anchor, positive) or (anchor, positive,
    negative_1, …, negative_k), labels are not read. Every positive and every negative of the batch,
    other than its own positive, is a negative of each anchor; with `InfoNCE(τ, symmetric=False)`
    this is that loss at scale 1/τ. Equal texts in one batch are false negatives: train with
    `batch_sampler=BatchSamplers.NO_DUPLICATES`.

    A batch of one pair (the last of an epoch, perhaps) has nothing to contrast and a loss of 0.

    Args:
        model: a SentenceTransformer.
        criterion: any loss of `macl` with reduction="mean". Negative columns need
            negatives="cross"; gather=True or "ring" uses every device's batch. A `Cosine`
            temperature is advanced by the caller.
    """

    def __init__(self, model: Any, criterion: losses.ContrastiveLoss) -> None:
        super().__init__()
        if criterion.reduction != "mean":
            raise ValueError('the trainer wants one number: leave reduction="mean".')
        self.model, self.criterion = model, criterion
        self.figures: dict[str, Tensor] = {}
        """Of the last batch, detached scalars: alignment A, temperature τ, mean gradient scale W,
        and whether the temperature's floor acted."""

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch: one mapping of (N, T) token tensors per column."""
        embeddings = embed_columns(self.model, sentence_features)
        return self.compute_loss_from_embeddings(embeddings, labels)

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch that is embedded already: one (N, D) tensor per column."""
        if len(embeddings) < 2:
            raise ValueError(
                f"a contrast needs two columns, anchor and positive, and may have more, negatives; "
                f"got {len(embeddings)}."
            )
        anchors, positives, *negatives = embeddings
        hard = torch.cat(negatives) if negatives else None
        groups = None
        gathers = self.criterion.gather and distributed.world_size() > 1
        if len(anchors) == 1 and hard is None and not gathers:
            # Twice in one group, it is there and has no negatives; and devices that average A wait
            # for each other, so the criterion must be called whatever the batch.
            anchors, positives = anchors.expand(2, -1), positives.expand(2, -1)
            groups = torch.zeros(2, dtype=torch.int64, device=anchors.device)
        contrast = self.criterion.contrast(anchors, positives, groups=groups, hard=hard)
        self.figures = {
            "alignment": contrast.alignment,
            "temperature": contrast.temperature.mean(),
            "gradient_scale": contrast.gradient_scale.mean(),
            "effective_anchors": contrast.effective_anchors,
            "floored": contrast.floored.float(),
        }
        return contrast.loss

    def get_config_dict(self) -> dict[str, Any]:
        """The criterion and its settings, for the model card."""
        config = {
            "criterion": type(self.criterion).__name__,
            **_settings(self.criterion.temperature),
            **_settings(self.criterion),
        }
        config["gather_across_devices"] = config.pop("gather")
        del config["reduction"]
        return config


class MACLLoss(ContrastiveLoss):
    """MACL, Huang et al. 2023, with the paper's setting for sentences; see `macl.MACL`.

        τ_a = max(τ₀·[1 + α·(A − A₀)], floor),   L_i = −log P_i   at τ_a

    Args:
        model: a SentenceTransformer.
        temperature: τ₀.
        alpha: α, how strongly τ follows the alignment A; 0 fixes it.
        threshold: A₀, the alignment at which τ_a = τ₀.
        reweight: divide by the gradient scale; the paper does not, for sentences.
        floor: lower bound of τ_a; default τ₀/10. The paper's setting meets it when A ≤ 0.35.
        symmetric: also contrast positives with anchors, and average.
        gather_across_devices: use every device's batch as negatives; "ring" passes them on block
            by block instead of holding all of them.
    """

    citation = MACL_CITATION

    def __init__(
        self,
        model: Any,
        temperature: float = 0.05,
        alpha: float = 2.0,
        threshold: float = 0.8,
        reweight: bool = False,
        *,
        floor: float | None = None,
        symmetric: bool = False,
        gather_across_devices: Gather = False,
    ) -> None:
        criterion = _macl(
            temperature, alpha, threshold, reweight, floor, symmetric, gather_across_devices
        )
        super().__init__(model, criterion)


def _macl(
    temperature: float,
    alpha: float,
    threshold: float,
    reweight: bool,
    floor: float | None,
    symmetric: bool,
    gather: Gather,
) -> losses.MACL:
    """What `MACLLoss` and `CachedMACLLoss` share: positives and negatives are the candidates."""
    return losses.MACL(
        temperature,
        alpha,
        threshold,
        reweight=reweight,
        floor=floor,
        negatives="cross",
        symmetric=symmetric,
        gather=gather,
    )


class CachedContrastiveLoss(CachedLossMixin, ContrastiveLoss):
    """`ContrastiveLoss` for batches far beyond memory, by the library's own gradient caching.

    Mini-batches are embedded without gradient; A, τ and the exact loss are of the whole batch,
    streamed in O(N) memory; then the mini-batches are embedded again, with the same dropout, to
    take their gradients back. Twice the forward passes, the memory of one mini-batch.

    Args:
        model: a SentenceTransformer.
        criterion: as for `ContrastiveLoss`, without parameters of its own.
        mini_batch_size: rows that are embedded at a time; changes memory and speed alone.
    """

    def __init__(
        self, model: Any, criterion: losses.ContrastiveLoss, mini_batch_size: int = 32
    ) -> None:
        super().__init__(model, criterion)
        if mini_batch_size < 1:
            raise ValueError(f"mini_batch_size counts rows, 1 or more; got {mini_batch_size}.")
        if has_static_embedding_input(model):
            raise ValueError(
                "inputs of a StaticEmbedding cannot be cut into mini-batches: use the loss without "
                "Cached in its name."
            )
        if any(parameter.requires_grad for parameter in criterion.parameters()):
            # Their gradients would arrive in the forward pass, before the trainer has scaled the
            # loss for accumulation or mixed precision.
            raise ValueError(
                "gradient caching cannot train a learned temperature: fix it or let it adapt, or "
                "use the loss without Cached in its name."
            )
        self.mini_batch_size = mini_batch_size

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch; its backward pass embeds the mini-batches again."""
        return self.forward_cached(sentence_features, labels)  # type: ignore[operator]

    def calculate_loss(
        self,
        reps: list[list[Tensor]],
        labels: Tensor | None = None,
        *,
        with_backward: bool = False,
    ) -> Tensor:
        """The loss of the whole batch from its mini-batches' embeddings, by column."""
        with tiles.small():
            loss = self.compute_loss_from_embeddings([torch.cat(column) for column in reps], labels)
            if with_backward:
                loss.backward()
                return loss.detach()
            return loss

    def get_config_dict(self) -> dict[str, Any]:
        """The criterion, its settings and the size of a mini-batch."""
        return {**super().get_config_dict(), "mini_batch_size": self.mini_batch_size}


class CachedMACLLoss(CachedContrastiveLoss):
    """`MACLLoss` for batches far beyond memory; see `CachedContrastiveLoss`."""

    citation = MACL_CITATION + CACHE_CITATION

    def __init__(
        self,
        model: Any,
        temperature: float = 0.05,
        alpha: float = 2.0,
        threshold: float = 0.8,
        reweight: bool = False,
        *,
        floor: float | None = None,
        symmetric: bool = False,
        gather_across_devices: Gather = False,
        mini_batch_size: int = 32,
    ) -> None:
        criterion = _macl(
            temperature, alpha, threshold, reweight, floor, symmetric, gather_across_devices
        )
        super().__init__(model, criterion, mini_batch_size)


class LogContrast(TrainerCallback):
    """Puts A, τ, W and the floor into the trainer's logs, beside the loss.

    A trainer adds up all that a loss returns, so figures cannot travel with it. They are handed to
    the trainer's own averaging of loss components instead: each log line shows their mean since the
    last one, over all devices. Losses inside others (`MatryoshkaLoss`) are found.

    Args:
        trainer: the SentenceTransformerTrainer that this is added to.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After the optimiser has moved."""
        for figures in self._taken():
            self.trainer.track_loss_components(figures)

    def on_substep_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """After a batch whose gradients are only accumulated."""
        self.on_step_end(args, state, control)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forget what the evaluation left: with several losses, a step need not replace it."""
        self._taken()

    def _taken(self) -> list[dict[str, Tensor]]:
        """The figures of every loss that was called since the last time."""
        loss = self.trainer.loss
        roots = loss.values() if isinstance(loss, dict) else [loss]
        ours = [m for root in roots for m in root.modules() if isinstance(m, ContrastiveLoss)]
        found = [module.figures for module in ours if module.figures]
        for module in ours:
            module.figures = {}
        return found


INTERNAL = ("training", "kernel", "validate", "pair_function")
"""Attributes of a criterion that do not describe what was minimised."""


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a module was made with: its public plain attributes, less how it is computed."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in INTERNAL
    }
