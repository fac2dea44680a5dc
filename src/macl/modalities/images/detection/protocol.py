"""The protocol `voc-detection`: fine-tune on VOC's training sets, evaluate on its test set."""

from __future__ import annotations

import hashlib
import json
import logging
import warnings
from pathlib import Path

import torch
from torch import nn
from torchvision.io import write_png
from torchvision.utils import draw_bounding_boxes

from macl.core.errors import UserError
from macl.core.installed import require
from macl.core.seeding import mix
from macl.core.sharding import ShardedBatches
from macl.modalities.images.detection.average_precision import Found, coco_means, voc_means
from macl.modalities.images.detection.c4 import build_detector, resnet_stages
from macl.modalities.images.detection.config import DetectionConfig
from macl.modalities.images.detection.data import CLASSES, read_voc
from macl.probes.score import Score

NAME = "voc-detection"

SHOWN = 0.5
"""Detections with at least this score are drawn."""

HEAD_WEIGHTS = 11
"""Separates the random numbers of the new layers from all others with the same seed."""


class DetectionTask:
    """An encoder to be evaluated by detection; everything that can be checked beforehand was."""

    def __init__(self, config: DetectionConfig, encoder: nn.Module) -> None:
        for package in ("torchmetrics", "faster_coco_eval"):
            require(package, "detection", NAME)
        if config.data is None:
            raise UserError(f"{NAME} needs VOC: give `data=` the folder VOCdevkit.")
        resnet_stages(encoder)  # raises for another network
        self.config, self.encoder = config, encoder
        self.train, self.test = (
            read_voc(config.data, sets) for sets in (config.train, config.test)
        )
        if all(bool(each.difficult.all()) for each in self.test.objects):
            raise UserError(f"no object of {', '.join(config.test)} is to be found: no AP.")
        if config.iterations or config.precise_bn:
            ShardedBatches(len(self.train), config.batch_size, 0, 0, config.devices)

    def folder(self, seed: int) -> Path:
        """Where this very detector is kept: any other weights, images or settings have another."""
        digest = hashlib.sha256()
        settings = [self.config.training(), list(self.train.names), seed]
        digest.update(json.dumps(settings, sort_keys=True).encode())
        for name, value in self.encoder.state_dict().items():
            digest.update(name.encode() + value.detach().cpu().contiguous().numpy().tobytes())
        return (self.config.folder or Path("runs/detection")) / digest.hexdigest()[:12]

    def scores(self, seed: int) -> list[Score]:
        """Fine-tune, or resume where it was stopped, and evaluate as COCO and as VOC 2007 do."""
        from lightning.fabric import Fabric

        from macl.modalities.images.detection.training import FineTuning, detect

        config, folder, objects = self.config, self.folder(seed), self.test.objects
        logging.getLogger("lightning.fabric").setLevel(logging.ERROR)
        fabric = Fabric(
            accelerator="auto" if torch.cuda.is_available() else "cpu",
            devices=config.devices,
            strategy="ddp" if config.devices > 1 else "auto",
        )
        fabric.launch()
        torch.manual_seed(mix(seed, HEAD_WEIGHTS))
        detector = build_detector(config, self.encoder)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", module="lightning")
            warnings.filterwarnings("ignore", message=".*No box was drawn")
            FineTuning(fabric, detector, self.train, config, folder, seed).run()
            detections = detect(fabric, detector, self.test)
            if config.figures is not None and fabric.is_global_zero:
                config.figures.mkdir(parents=True, exist_ok=True)
                for index in range(min(config.pictures, len(detections))):
                    self._draw(index, detections[index], config.figures)
        values = coco_means(detections, objects) | voc_means(detections, objects)
        counts = {"n_train": len(self.train), "n_test": len(self.test)}
        details = {**config.training(), **counts, "seed": seed, "detector": str(folder)}
        split = "+".join(config.test)
        return [Score(NAME, name, value, split, details=details) for name, value in values.items()]

    def _draw(self, index: int, seen: Found, folder: Path) -> None:
        """A test image with its objects in white and the detections in red: YEAR_ID.png."""
        pixels, objects = self.test[index]
        sure = seen["scores"] >= SHOWN
        pairs = zip(seen["labels"][sure].tolist(), seen["scores"][sure].tolist(), strict=True)
        words = [f"{CLASSES[label - 1]} {score:.0%}" for label, score in pairs]
        pixels = draw_bounding_boxes(pixels, objects.boxes, colors="white", width=3)
        pixels = draw_bounding_boxes(pixels, seen["boxes"][sure], words, colors="red", width=2)
        name = self.test.names[index].replace("/", "_")
        write_png(pixels, str(folder / f"{name}.png"))
