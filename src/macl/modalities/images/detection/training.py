"""Fine-tuning a detector: resumable to the bit, on one device or several."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.data import DataLoader
from torchvision.models.detection.faster_rcnn import FasterRCNN

from macl.core import worker_errors
from macl.core.checkpoints import SafeCheckpointIO
from macl.core.errors import UserError
from macl.core.files import write_csv
from macl.core.progress import track
from macl.core.seeding import reseed
from macl.core.sharding import ShardedBatches
from macl.core.signals import Interrupted, StopSignals
from macl.core.weights import load_weights, save_weights
from macl.modalities.images.detection.average_precision import Found
from macl.modalities.images.detection.config import DetectionConfig
from macl.modalities.images.detection.data import Objects, VocImages
from macl.optim import build_optimizer, learning_rate_factor
from macl.recipes.optim import OptimizerConfig, ScheduleConfig

DETECTOR_FILE = "detector.safetensors"
CHECKPOINT_FILE = "last.ckpt"
LOSSES_FILE = "losses.csv"
"""The losses of each iteration, as the first process saw them."""
LOSSES = ("loss_classifier", "loss_box_reg", "loss_objectness", "loss_rpn_box_reg")


@dataclass(frozen=True)
class FineTuning:
    """Fine-tuning of `detector`, in place; it is kept in `folder`.

    What iteration i does depends on the weights, `seed` and i alone. So a stopped training goes on
    from the checkpoint there and ends where it would have ended, to the bit on a CPU.
    """

    fabric: Fabric
    detector: FasterRCNN
    images: VocImages
    config: DetectionConfig
    folder: Path
    seed: int

    def run(self) -> None:
        """Train the detector and keep it; one that is kept already is taken."""
        finished = self.folder / DETECTOR_FILE
        if not finished.is_file():
            with worker_errors.translate_worker_errors():
                self._train()
            if self.fabric.is_global_zero:
                save_weights(self.detector, finished, {"iterations": str(self.config.iterations)})
                (self.folder / CHECKPOINT_FILE).unlink(missing_ok=True)
            self.fabric.barrier()
        # From the file in any case: without synchronized batch normalization ranks differ a little.
        load_weights(self.detector, finished)

    def _train(self) -> None:
        fabric, detector, config = self.fabric, self.detector, self.config
        if fabric.world_size > 1 and fabric.device.type == "cuda":
            nn.SyncBatchNorm.convert_sync_batchnorm(detector)
        shared = config.model_dump(include={"lr", "momentum", "weight_decay"})
        sgd = OptimizerConfig(name="sgd", exclude_norm_and_bias=True, **shared)
        optimizer = build_optimizer(sgd, detector, config.batch_size)
        model, stepper = fabric.setup(detector.train(), optimizer)
        history: list[list[float]] = []
        if (self.folder / CHECKPOINT_FILE).is_file():
            stored = SafeCheckpointIO().load_checkpoint(self.folder / CHECKPOINT_FILE)
            detector.load_state_dict(stored["detector"])
            optimizer.load_state_dict(stored["optimizer"])
            history = stored["losses"]
        schedule = ScheduleConfig(name="steps", milestones=config.milestones)
        start, stop = len(history), config.iterations
        with StopSignals() as signals:
            for step, losses in self._losses(model, start, stop, "fine-tuning"):
                factor = learning_rate_factor(schedule, step, stop, config.warmup)
                for group in optimizer.param_groups:
                    group["lr"] = config.lr * factor
                total = torch.stack([losses[name] for name in LOSSES]).sum()
                if not total.isfinite():
                    raise UserError(
                        f"the loss is {total.item()} at iteration {step}: lower "
                        f"detection.lr={config.lr} or raise detection.warmup={config.warmup}."
                    )
                stepper.zero_grad()
                fabric.backward(total)
                stepper.step()
                history.append([losses[name].item() for name in LOSSES])
                # All processes must leave after the same step.
                asked = torch.tensor(float(signals.asked is not None))
                stopped = bool(fabric.all_reduce(asked, reduce_op="sum"))
                if stopped or step + 1 == stop or (step + 1) % config.save_every == 0:
                    self._save(optimizer, history)
                if stopped:
                    raise Interrupted(signals.asked or "a signal to another process")
        if config.precise_bn:
            self._measure_statistics(model)

    def _save(self, optimizer: torch.optim.Optimizer, history: list[list[float]]) -> None:
        if not self.fabric.is_global_zero:
            return
        rows = ((iteration, *losses) for iteration, losses in enumerate(history, start=1))
        write_csv(self.folder / LOSSES_FILE, ("iteration", *LOSSES), rows)
        states = {"detector": self.detector.state_dict(), "optimizer": optimizer.state_dict()}
        path = self.folder / CHECKPOINT_FILE
        SafeCheckpointIO().save_checkpoint({**states, "losses": history}, path)

    @torch.no_grad()
    def _measure_statistics(self, model: nn.Module) -> None:
        """Batch normalization's statistics of the final weights, as plain means over the batches.

        A running mean lags behind weights that move, and few images per batch make it noisy.
        """
        for module in self.detector.modules():
            if isinstance(module, _BatchNorm):
                module.reset_running_stats()
                module.momentum = None
        start = self.config.iterations
        for _ in self._losses(model, start, start + self.config.precise_bn, "batch statistics"):
            pass

    def _losses(
        self, model: nn.Module, start: int, stop: int, title: str
    ) -> Iterator[tuple[int, dict[str, Tensor]]]:
        """The losses of iterations `start` to `stop`, over as many epochs as needed."""
        fabric, workers = self.fabric, self.config.workers
        place = (self.seed, fabric.global_rank, fabric.world_size)
        batches = ShardedBatches(len(self.images), self.config.batch_size, *place)
        epoch, batches.start = divmod(start, len(batches))
        steps: list[list[int]] = []
        while len(steps) < stop - start:
            batches.set_epoch(epoch)
            steps += batches
            epoch += 1
        loader: DataLoader[Any] = DataLoader(
            self.images,  # type: ignore[arg-type]
            batch_sampler=steps[: stop - start],
            num_workers=workers,
            collate_fn=list,
            timeout=worker_errors.READ_TIMEOUT if workers else 0,
        )
        for step, batch in enumerate(track(loader, title, stop - start), start):
            reseed(fabric.device, self.seed, step, fabric.global_rank)
            yield step, model(*_training_views(batch, fabric.device))


@torch.inference_mode()
def detect(fabric: Fabric, detector: FasterRCNN, images: VocImages) -> list[Found]:
    """What the detector sees in every image, in pixels of the image; each rank does its share."""
    detector.to(fabric.device).eval()
    mine = range(fabric.global_rank, len(images), fabric.world_size)
    detections: dict[int, Found] = {}
    for index in track(mine, "detecting", len(mine)):
        pixels, _ = images[index]
        (seen,) = detector([pixels.to(fabric.device) / 255])
        detections[index] = {key: value.cpu() for key, value in seen.items()}
    if fabric.world_size > 1:
        shares: list[Any] = [None] * fabric.world_size
        torch.distributed.all_gather_object(shares, detections)
        detections = {index: seen for share in shares for index, seen in share.items()}
    return [detections[index] for index in range(len(images))]


def _training_views(
    batch: list[tuple[Tensor, Objects]], device: torch.device
) -> tuple[list[Tensor], list[dict[str, Tensor]]]:
    """Floats on the device, half of them mirrored. Difficult objects are trained on like others."""
    images, targets = [], []
    for (pixels, objects), flip in zip(batch, torch.rand(len(batch)) < 0.5, strict=True):
        image, boxes = pixels.to(device) / 255, objects.boxes
        if flip:
            image, width = image.flip(-1), image.shape[-1]
            left, top, right, bottom = boxes.T
            boxes = torch.stack([width - right, top, width - left, bottom], dim=1)
        images.append(image)
        targets.append({"boxes": boxes.to(device), "labels": objects.labels.to(device)})
    return images, targets
