"""Encoders that send their own process a signal, or fail, in the middle of a training step.

They are given by import path (`encoder.name=fragile:resnet`), so that `macl train` itself stays as
users have it. FRAGILE_SIGNAL is sent in step FRAGILE_AT, where the process' rank is FRAGILE_RANK.
Both may be lists, 3,5 and nan,9: a NaN comes out of the encoder in step 3, the end in step 5. Each
step takes FRAGILE_SECONDS more.
"""

from __future__ import annotations

import os
import time

import torch
from torch import Tensor, nn

from macl.modalities.images.encoders import ImageEncoderConfig, build_image_encoder


class Fragile(nn.Module):
    def __init__(self, inner: nn.Module, out_dim: int) -> None:
        super().__init__()
        self.inner, self.out_dim = inner, out_dim
        self.steps = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():  # a momentum encoder's forwards do not count
            self.steps += 1
            time.sleep(float(os.environ.get("FRAGILE_SECONDS", "0")))
            mine = os.environ.get("FRAGILE_RANK", "0") == os.environ.get("LOCAL_RANK", "0")
            steps = os.environ.get("FRAGILE_AT", "0").split(",")
            if mine and str(self.steps) in steps:
                fault = os.environ["FRAGILE_SIGNAL"].split(",")[steps.index(str(self.steps))]
                if fault == "nan":
                    return self.inner(x) * float("nan")
                os.kill(os.getpid(), int(fault))
        return self.inner(x)


def resnet() -> nn.Module:
    """With batch normalization, whose running statistics a resumed run must find again."""
    inner = build_image_encoder(ImageEncoderConfig(name="resnet8", width=8))
    return Fragile(inner, inner.out_dim)


def plain() -> nn.Module:
    """Without batch normalization: what it computes does not depend on how a batch is dealt out."""
    return Fragile(nn.Sequential(nn.Flatten(), nn.Linear(3 * 8 * 8, 16), nn.Tanh()), 16)
