"""The losses of the family as losses of sentence-transformers, plain and with gradient caching.

from macl.integrations.sentence_transformers import LogContrast, MACLLoss
trainer = SentenceTransformerTrainer(model, args, train_dataset, loss=MACLLoss(model))
trainer.add_callback(LogContrast(trainer))  # A and τ in the logs, beside the loss
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from macl import distributed, losses
from macl.integrations.duplicates import Duplicates, find_duplicates
from macl.losses.base import Gather
from macl.losses.build import Inputs

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise ImportError(
        "macl.integrations.sentence_transformers needs sentence-transformers: "
        'pip install "sentence-transformers[train]>=6".'
    ) from error
try:
    from sentence_transformers.base.losses.merged_forward import embed_columns
except ImportError:  # no public part of the library: without it, one forward pass per column

    def embed_columns(model: Any, columns: Iterable[dict[str, Any]]) -> list[Tensor]:
        """The embeddings of every column."""
        return [model(column)["sentence_embedding"] for column in columns]


try:
    from sentence_transformers.base.losses import CachedLossMixin, has_static_embedding_input
except ImportError:

    class CachedLossMixin:  # type: ignore[no-redef]
        """Stands for the library's gradient caching, which versions before 6 do not have."""

    def has_static_embedding_input(model: Any) -> bool:
        """Called first by every loss that caches."""
        raise ImportError(
            "gradient caching needs sentence-transformers 6 or newer: "
            'pip install -U "sentence-transformers[train]>=6", or use the loss without Cached in '
            "its name, or macl.cached in a loop of your own."
        )


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
    this is that loss at scale 1/τ.

    Rows that share a text (equal token ids, prompts included) are not each other's negatives, nor
    is a negative column's text that is one of theirs; with `gather`, over all devices.
    `LogContrast` shows their number.

    A batch of one pair (the last of an epoch, perhaps) has nothing to contrast and a loss of 0.

    Args:
        model: a SentenceTransformer.
        criterion: any loss of `macl` with reduction="mean". Negative columns need
            negatives="cross"; gather=True or "ring" uses every device's batch; dims=(64, 128, None)
            trains these widths at once. A `CosineSchedule` is advanced by the caller.
        positives: columns after the first that are positives. The loss of an anchor is the mean
            over them, and they are not each other's negatives (with symmetric=False).
        mask_duplicates: False contrasts equal texts as the library does.
        guide: a SentenceTransformer that is not trained; what it finds more similar to the anchor
            than the positive, less the criterion's `guide_margin`, is not a negative (GISTEmbed).
    """

    def __init__(
        self,
        model: Any,
        criterion: losses.ContrastiveLoss,
        *,
        positives: int = 1,
        mask_duplicates: bool = True,
        guide: Any = None,
    ) -> None:
        super().__init__()
        if criterion.reduction != "mean":
            raise ValueError('the trainer wants one number: leave reduction="mean".')
        several = positives > 1 and (criterion.symmetric or criterion.negatives == "both")
        if positives < 1 or several:
            raise ValueError(
                f"positives={positives}: give 1, or more with a criterion that has "
                'negatives="cross" and symmetric=False, so that anchors alone are contrasted.'
            )
        self.model, self.criterion, self.guide = model, criterion, guide
        self.positives, self.mask_duplicates = positives, mask_duplicates
        self._tokenizer: Any = None
        """What turns the model's tokens into texts, where the guide takes others."""
        if guide is not None:
            guide.requires_grad_(False)
            same = model.tokenizer.get_vocab() == guide.tokenizer.get_vocab()
            if not same or guide.max_seq_length < model.max_seq_length:
                self._tokenizer = model.tokenizer
        self.output: losses.LossOutput | None = None
        """Of the last batch, without its graph."""
        self._duplicates: Duplicates | None = None
        self._guiding: list[Tensor] = []
        """Of the batch at hand; the guide's embeddings are one (N, G) tensor per column."""

    def forward(
        self, sentence_features: Iterable[dict[str, Tensor]], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch: one mapping of (N, T) token tensors per column."""
        columns = list(sentence_features)
        self.output = None
        with distributed.among(self.criterion.process_group):
            try:
                if self.mask_duplicates:
                    gather = bool(self.criterion.gather)
                    self._duplicates = find_duplicates(columns, 1 + self.positives, gather)
                if self.guide is not None:
                    self.guide.eval()
                    with torch.no_grad():
                        self._guiding = [self._guided(self._for_guide(c)) for c in columns]
                return self._loss(columns, labels)
            finally:
                self._duplicates, self._guiding = None, []

    def _loss(self, columns: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        return self.compute_loss_from_embeddings(embed_columns(self.model, columns), labels)

    def _guided(self, column: dict[str, Any]) -> Tensor:
        embedding: Tensor = self.guide(column)["sentence_embedding"]
        return embedding

    def _for_guide(self, column: dict[str, Any]) -> dict[str, Any]:
        """The texts of a column as the guide takes them, which writes into what it is given."""
        if self._tokenizer is None:
            return dict(column)
        guide, ids = self.guide, column["input_ids"]
        if "cu_seq_lens_q" in column:
            ids = ids[0].split(column["cu_seq_lens_q"].diff().tolist())
        texts = self._tokenizer.batch_decode(ids, skip_special_tokens=True)
        tokens = (getattr(guide, "preprocess", None) or guide.tokenize)(texts)
        return {k: v.to(guide.device) if isinstance(v, Tensor) else v for k, v in tokens.items()}

    def compute_loss_from_embeddings(
        self, embeddings: list[Tensor], labels: Tensor | None = None
    ) -> Tensor:
        """The loss of a batch that is embedded already: one (N, D) tensor per column."""
        if len(embeddings) < 1 + self.positives:
            raise ValueError(
                "a contrast needs two columns, anchor and positive, and may have more, negatives; "
                f"got {len(embeddings)} with positives={self.positives}."
            )
        z1, z2, hard = self._arranged(embeddings)
        groups, hard_groups = self._groups(len(embeddings[0]), z1.device)
        arranged = self._arranged(self._guiding) if self._guiding else ()
        guide = [part for part in arranged if part is not None]
        gathers = self.criterion.gather and distributed.world_size() > 1
        if len(z1) == 1 and hard is None and not gathers:
            # Twice in one group, it has no negatives. Devices that average A wait for each other,
            # so the criterion is called whatever the batch.
            z1, z2, *guide = (z.expand(2, -1) for z in (z1, z2, *guide))
            groups = torch.zeros(2, dtype=torch.int64, device=z1.device)
        inputs = Inputs(z1, z2, groups=groups, hard=hard, hard_groups=hard_groups)
        output = self.criterion.evaluate(inputs._replace(guide=tuple(guide) or None))
        loss = output.loss
        if self._duplicates is not None:
            output.added["duplicates"] = self._duplicates.number.to(loss.dtype)
        self.output = output.detach()
        return loss

    def _arranged(self, columns: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Anchors, each as often as it has positives; positives; hard negatives."""
        pairs = 1 + self.positives
        hard = torch.cat(list(columns[pairs:])) if len(columns) > pairs else None
        return columns[0].repeat(self.positives, 1), torch.cat(list(columns[1:pairs])), hard

    def _groups(self, rows: int, device: torch.device) -> tuple[Tensor | None, Tensor | None]:
        """Of the pairs, and of the hard negatives."""
        if self._duplicates is not None:
            return self._duplicates.groups.repeat(self.positives), self._duplicates.hard_groups
        if self.positives == 1:
            return None, None
        first = 0
        if self.criterion.gather and distributed.world_size() > 1:
            first = sum(distributed.batch_sizes(rows)[: distributed.rank()])
        return torch.arange(first, first + rows, device=device).repeat(self.positives), None

    def get_config_dict(self) -> dict[str, Any]:
        """The criterion and its settings, for the model card."""
        config = {"criterion": type(self.criterion).__name__}
        config |= _settings(self.criterion.temperature) | _settings(self.criterion)
        config["gather_across_devices"] = config.pop("gather")
        own = ("positives", "mask_duplicates") + ("guide",) * (self.guide is not None)
        return config | {name: getattr(self, name) for name in own}


class MACLLoss(ContrastiveLoss):
    """MACL, Huang et al. 2023, with the paper's setting for sentences; see `macl.MACL`.

        τ_a = max(τ₀·[1 + α·(A − A₀)], floor),   L_i = −log P_i   at τ_a

    The paper's setting meets the default floor, τ₀/10, when A ≤ 0.35.

    Args:
        model: a SentenceTransformer; arguments not listed here are those of `macl.MACL`.
        gather_across_devices: use every device's batch as negatives; "ring" passes them on block
            by block instead of holding all of them.
        options: as for `ContrastiveLoss`.
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
        **options: Any,
    ) -> None:
        criterion = losses.MACL(
            temperature,
            alpha,
            threshold,
            reweight=reweight,
            floor=floor,
            negatives="cross",
            symmetric=symmetric,
            gather=gather_across_devices,
        )
        super().__init__(model, criterion, **options)


class CachedContrastiveLoss(CachedLossMixin, ContrastiveLoss):
    """`ContrastiveLoss` for batches far beyond memory, by the library's own gradient caching.

    Mini-batches are embedded without gradient; A, τ and the exact loss are of the whole batch; then
    the mini-batches are embedded again, with the same dropout, to take their gradients back.

    Args:
        model: a SentenceTransformer.
        criterion: as for `ContrastiveLoss`, without parameters of its own.
        mini_batch_size: rows that are embedded at a time; changes memory and speed alone.
        options: as for `ContrastiveLoss`. The guide embeds as many rows at a time.
    """

    def __init__(
        self,
        model: Any,
        criterion: losses.ContrastiveLoss,
        mini_batch_size: int = 32,
        **options: Any,
    ) -> None:
        super().__init__(model, criterion, **options)
        if mini_batch_size < 1:
            raise ValueError(f"mini_batch_size counts rows, 1 or more; got {mini_batch_size}.")
        if has_static_embedding_input(model):
            raise ValueError(
                "inputs of a StaticEmbedding cannot be cut into mini-batches: use the loss without "
                "Cached in its name."
            )
        if any(parameter.requires_grad for parameter in criterion.parameters()):
            # Their gradients would arrive before the trainer has scaled the loss.
            raise ValueError(
                "gradient caching cannot train a learned temperature: fix it or let it adapt, or "
                "use the loss without Cached in its name."
            )
        self.mini_batch_size = mini_batch_size

    def _loss(self, columns: list[dict[str, Tensor]], labels: Tensor | None) -> Tensor:
        """Its backward pass embeds the mini-batches again."""
        return self.forward_cached(columns, labels)  # type: ignore[operator]

    def _guided(self, column: dict[str, Any]) -> Tensor:
        parts = CachedLossMixin()
        parts.model, parts.mini_batch_size = self.guide, self.mini_batch_size
        return torch.cat([z for z, _ in parts.embed_minibatch_iter(column, False, False)])

    def calculate_loss(
        self, reps: list[list[Tensor]], labels: Tensor | None = None, *, with_backward: bool = False
    ) -> Tensor:
        """The loss of the whole batch from its mini-batches' embeddings, by column."""
        loss = self.compute_loss_from_embeddings([torch.cat(column) for column in reps], labels)
        if with_backward:
            loss.backward()
            return loss.detach()
        return loss

    def get_config_dict(self) -> dict[str, Any]:
        """See `ContrastiveLoss`."""
        return {**super().get_config_dict(), "mini_batch_size": self.mini_batch_size}


class CachedMACLLoss(MACLLoss, CachedContrastiveLoss):
    """`MACLLoss` for batches far beyond memory: `mini_batch_size` as in `CachedContrastiveLoss`."""

    citation = MACL_CITATION + CACHE_CITATION


class LogContrast(TrainerCallback):
    """Puts A, τ, W and the floor into the trainer's logs, beside the loss.

    Each log line shows their mean since the last one, over all devices: the trainer averages them
    as components of the loss. Losses inside others (`MatryoshkaLoss`) are found.

    Args:
        trainer: the SentenceTransformerTrainer that this is added to.
    """

    def __init__(self, trainer: Any) -> None:
        self.trainer = trainer

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        """After the optimizer has moved, or a batch whose gradients are only accumulated."""
        for output in self._taken():
            logged = {name: getattr(output, name).float().mean() for name in LOGGED}
            shared = {k: v for k, v in output.added.items() if k == "duplicates"}
            self.trainer.track_loss_components(logged | shared)

    on_substep_end = on_step_end

    def on_evaluate(self, *args: Any, **kwargs: Any) -> None:
        """Forget what the evaluation left: with several losses, a step need not replace it."""
        self._taken()

    def _taken(self) -> list[losses.LossOutput]:
        """The output of every loss that was called since the last time."""
        loss, outputs = self.trainer.loss, []
        for module in nn.ModuleList(loss.values() if isinstance(loss, dict) else [loss]).modules():
            if isinstance(module, ContrastiveLoss) and module.output is not None:
                outputs.append(module.output)
                module.output = None
        return outputs


LOGGED = ("alignment", "temperature", "gradient_scale", "effective_anchors", "floored")
"""What a log line shows of a batch, and the number of duplicates."""

INTERNAL = {
    "training", "kernel", "validate", "pair_function", "precision", "process_group", "reduction"
}  # fmt: skip
"""Attributes of a criterion that do not describe what was minimized."""
OPTIONAL = ("dims", "dim_weights", "guide_margin", "guide_relative")
"""Attributes that are shown where they were set."""


def _settings(module: nn.Module) -> dict[str, Any]:
    """What a module was made with: its public plain attributes, less how it is computed."""
    return {
        name: value
        for name, value in vars(module).items()
        if not name.startswith("_") and name not in INTERNAL and (value or name not in OPTIONAL)
    }
