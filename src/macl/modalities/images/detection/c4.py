"""Faster R-CNN with a C4 backbone, put together from torchvision's parts.

All stages of a ResNet but the last are shared by the image (conv1–res4 of a ResNet-50); the last
one (res5) sees each proposal by itself, followed by one more batch normalization, as in MoCo's
Res5ROIHeadsExtraNorm. Weights keep their names: `backbone.layer1.…`, `roi_heads.box_head.layer4.…`.
"""

from __future__ import annotations

import copy
from collections import OrderedDict
from collections.abc import Mapping

import torch
from torch import Tensor, nn
from torchvision.models.detection.anchor_utils import AnchorGenerator
from torchvision.models.detection.faster_rcnn import FasterRCNN, FastRCNNPredictor
from torchvision.models.detection.rpn import RPNHead
from torchvision.ops import MultiScaleRoIAlign, roi_align

from macl.core.errors import UserError
from macl.modalities.images.detection.config import DetectionConfig
from macl.modalities.images.detection.data import CLASSES


class RoIFeatures(MultiScaleRoIAlign):
    """The features of each proposal on a grid: RoIAlign without its half-pixel offset."""

    def __init__(self, size: int, stride: int) -> None:
        super().__init__(["0"], size, sampling_ratio=-1)
        self.stride = stride

    def forward(
        self, features: Mapping[str, Tensor], proposals: list[Tensor], shapes: list[tuple[int, int]]
    ) -> Tensor:
        """One map (B, C, H, W) and B lists of (P, 4) boxes to (ΣP, C, size, size)."""
        (shared,) = features.values()
        return roi_align(shared, proposals, self.output_size, 1 / self.stride, aligned=True)


def resnet_stages(encoder: nn.Module) -> tuple[dict[str, nn.Module], dict[str, nn.Module]]:
    """The stem and the residual stages of a ResNet of torchvision's, timm's or ours, by name."""
    children = dict(encoder.named_children())
    names = ("conv1", "bn1", "act1" if "act1" in children else "relu", "maxpool")
    stages = {
        name: module
        for name, module in children.items()
        if name.startswith("layer") and not isinstance(module, nn.Identity)
    }
    if any(name not in children for name in names) or len(stages) < 2:
        raise UserError(
            f"voc-detection needs a ResNet, whose stages it takes apart; {type(encoder).__name__} "
            "is none. Use another protocol, or an encoder such as resnet50."
        )
    return {name: children[name] for name in names}, stages


def build_detector(config: DetectionConfig, encoder: nn.Module) -> FasterRCNN:
    """A detector of VOC's classes around a copy of `encoder`; its other weights are drawn.

    It takes a list of (3, h, w) floats in [0, 1] to losses in training, else to detections.
    """
    # The encoder of an unfinished run may come with layers frozen: here all are trained.
    encoder = copy.deepcopy(encoder).float().train().requires_grad_(True)
    stem, stages = resnet_stages(encoder)
    last, res5 = stages.popitem()
    backbone = nn.Sequential(OrderedDict(stem | stages))
    side = 64
    with torch.no_grad():
        _, channels, height, _ = backbone.eval()(torch.zeros(1, 3, side, side)).shape
    backbone.train().out_channels = channels
    width: int = encoder.out_dim  # type: ignore[assignment]
    norm, pool = nn.BatchNorm2d(width), nn.AdaptiveAvgPool2d(1)
    head = OrderedDict({last: res5, "norm": norm, "pool": pool, "flatten": nn.Flatten()})
    anchors = AnchorGenerator((config.anchor_sizes,), ((0.5, 1.0, 2.0),))
    proposing = RPNHead(channels, anchors.num_anchors_per_location()[0])
    predictor = FastRCNNPredictor(width, 1 + len(CLASSES))
    # Small, as in Fast R-CNN: the first boxes are the proposals, the first scores undecided.
    for layer, std in ((predictor.cls_score, 0.01), (predictor.bbox_pred, 0.001)):
        nn.init.normal_(layer.weight, std=std)
        nn.init.zeros_(layer.bias)
    return FasterRCNN(
        backbone,
        min_size=config.short_sides,
        max_size=config.max_side,
        image_mean=config.mean,  # torchvision takes ImageNet's for None
        image_std=config.std,
        rpn_anchor_generator=anchors,
        rpn_head=proposing,
        rpn_pre_nms_top_n_train=config.candidates[0],
        rpn_pre_nms_top_n_test=config.candidates[1],
        rpn_post_nms_top_n_train=config.proposals[0],
        rpn_post_nms_top_n_test=config.proposals[1],
        box_roi_pool=RoIFeatures(config.roi_size, side // height),
        box_head=nn.Sequential(head),
        box_predictor=predictor,
        box_batch_size_per_image=config.rois,
    )
