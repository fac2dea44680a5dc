"""Losses with the interfaces of open_clip's `ClipLoss` and `SigLipLoss`.

from macl.integrations import open_clip as ours
loss = ours.create_loss(args)  # was: open_clip.create_loss(args)
loss(image_features, text_features, logit_scale, output_dict=True)

The module does not import open_clip.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from macl import distributed, losses
from macl.losses.base import Gather
from macl.losses.temperature import StepInfo


class GivenScale(losses.Temperature):
    """τ = 1/scale, of the scale that was given last: the model's own parameter."""

    scale: Tensor

    def forward(self, step: StepInfo) -> Tensor:
        """1/scale, with gradient."""
        return self.scale.to(step.new(0.0).dtype).reciprocal()


class _GivenBias(losses.SigLIP):
    """SigLIP whose b is the model's own parameter."""

    def __init__(self, gather: Gather) -> None:
        super().__init__(GivenScale(), gather=gather)
        del self.bias


class _Loss(nn.Module):
    def __init__(
        self, criterion: losses.ContrastiveLoss, world_size: int, local_loss: bool = True
    ) -> None:
        super().__init__()
        self.criterion, self.world_size, self.local_loss = criterion, world_size, local_loss

    def forward(
        self,
        image_features: Tensor,
        text_features: Tensor,
        logit_scale: Tensor,
        logit_bias: Tensor | None = None,
        output_dict: bool = False,
    ) -> Tensor | dict[str, Tensor]:
        """The loss of (N, D) images and (N, D) texts, or k·N of them, at scale 1/τ."""
        if self.world_size != distributed.world_size():
            raise ValueError(
                f"world_size={self.world_size}, and torch.distributed has "
                f"{distributed.world_size()} ranks: initialize it before the first step."
            )
        if isinstance(self.criterion.temperature, GivenScale):
            self.criterion.temperature.scale = logit_scale
        if isinstance(self.criterion, _GivenBias):
            assert logit_bias is not None
            self.criterion.bias = logit_bias  # type: ignore[assignment]
        captions = _captions(image_features, text_features)
        loss = self.criterion(image_features, text_features, positives=captions)
        # Parameters that this loss does not use still take part in the exchange of gradients.
        loss = loss + sum(0 * part.sum() for part in (logit_scale, logit_bias) if part is not None)
        if not self.local_loss:  # the value alone: data parallelism averages the gradients
            loss = loss + (distributed.global_mean(loss.detach()[None]) - loss.detach())
        return {"contrastive_loss": loss} if output_dict else loss


class ClipLoss(_Loss):
    """open_clip's `ClipLoss`: equal values and gradients, in memory linear in the batch.

    Gradients are those of the whole batch, as with its gather_with_grad. Without, its default, the
    other ranks' rows have no gradient there: that of the model is smaller by the number of ranks
    and lacks a part.

    Several captions of an image: `text_features` with k times as many rows, an image's one after
    the other. The loss of an image is the mean over its captions.

    Args:
        local_loss: return the mean over this rank's rows; without, over those of all ranks.
        gather_with_grad: always done. `cache_labels` and `rank` have no effect.
        world_size: number of ranks.
        use_horovod: not supported.
        ring: pass the other ranks' rows on block by block in place of holding all.
        criterion: any other loss of `macl`, with its own temperature: the model's `logit_scale` is
            then not trained. Give it `gather`.
    """

    def __init__(
        self,
        local_loss: bool = False,
        gather_with_grad: bool = False,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        use_horovod: bool = False,
        *,
        ring: bool = False,
        criterion: losses.ContrastiveLoss | None = None,
    ) -> None:
        if use_horovod:
            raise ValueError("ranks are those of torch.distributed: leave use_horovod out.")
        if criterion is None:
            gather: Gather = ("ring" if ring else True) if world_size > 1 else False
            criterion = losses.InfoNCE(GivenScale(), gather=gather)
        super().__init__(criterion, world_size, local_loss or world_size == 1)


class SigLipLoss(_Loss):
    """open_clip's `SigLipLoss`: equal values and gradients, memory linear in a rank's own batch.

    Args:
        world_size: number of ranks. `cache_labels` and `rank` have no effect.
        dist_impl: "gather" and "reduce" hold all ranks' texts; others pass them on in a ring.
    """

    def __init__(
        self,
        cache_labels: bool = False,
        rank: int = 0,
        world_size: int = 1,
        dist_impl: str | None = None,
    ) -> None:
        gather: Gather = dist_impl in ("gather", "reduce") or "ring"
        super().__init__(_GivenBias(gather if world_size > 1 else False), world_size)


def create_loss(args: Any) -> ClipLoss | SigLipLoss:
    """The loss for the arguments of open_clip's training script, as its own `create_loss`."""
    if args.distill or "coca" in args.model.lower():
        raise ValueError(
            "distillation and CoCa have further terms: use open_clip.create_loss, or ClipLoss for "
            "the contrastive one."
        )
    if args.siglip:
        impl = getattr(args, "loss_dist_impl", None)
        return SigLipLoss(rank=args.rank, world_size=args.world_size, dist_impl=impl)
    return ClipLoss(
        local_loss=args.local_loss,
        gather_with_grad=args.gather_with_grad,
        rank=args.rank,
        world_size=args.world_size,
        use_horovod=args.horovod,
    )


def _captions(images: Tensor, texts: Tensor) -> tuple[Tensor, Tensor] | None:
    """Which text belongs to which image, where an image has several."""
    if len(texts) == len(images):
        return None
    if not len(images) or len(texts) % len(images):
        raise ValueError(
            f"{len(texts)} texts for {len(images)} images: every image has equally many captions, "
            "one after the other."
        )
    columns = torch.arange(len(texts), device=texts.device)
    return columns // (len(texts) // len(images)), columns
