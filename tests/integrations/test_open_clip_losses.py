"""Our losses in place of open_clip's: its values and gradients on 1, 2 and 4 ranks."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

pytest.importorskip("open_clip", reason="needs open_clip")

sys.path.insert(0, str(Path(__file__).parent))
from open_clip_ranks import ROWS, compared, run, step

from macl import MACL
from macl.integrations import open_clip as ours
from macl.testing import assert_linear_memory
from tiny import run_ranks


def check(found: list[dict[str, tuple[tuple[torch.Tensor, ...], ...]]]) -> None:
    world = len(found)
    for name in found[0]:
        for by_rank in found:
            if name.startswith("captions"):
                continue
            theirs, here = by_rank[name]
            assert float(theirs[1].abs().max()) > 1e-3
            # Scale and bias are compared after the mean over ranks, which DDP takes.
            for one, two in zip(here[:3], theirs[:3], strict=True):
                torch.testing.assert_close(one, two, rtol=1e-6, atol=1e-9, msg=name)
        if name.startswith("captions"):
            alone = {"clip": ours.ClipLoss, "siglip": ours.SigLipLoss}[name.split()[1]]()
            expected = step(alone, slice(None), world * ROWS, captions=2)
            parts = [by_rank[name][0] for by_rank in found]
            torch.testing.assert_close(torch.stack([p[0] for p in parts]).mean(), expected[0])
            for k in (1, 2):
                rows = torch.cat([p[k] for p in parts]) / world
                torch.testing.assert_close(rows, expected[k], rtol=1e-6, atol=1e-9)
            continue
        for k in (3, 4):
            means = [torch.stack([each[name][w][k] for each in found]).mean() for w in (0, 1)]
            torch.testing.assert_close(means[1], means[0], rtol=1e-6, atol=1e-9, msg=name)


def test_one_process() -> None:
    check([compared(0, 1)])


def test_two_ranks(tmp_path: Path) -> None:
    done = run_ranks("integrations/open_clip_ranks.py", tmp_path)
    assert [d.returncode for d in done] == [0, 0], done[0].stderr + done[1].stderr
    check([torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in (0, 1)])


@pytest.mark.slow
def test_four_ranks(tmp_path: Path) -> None:
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    torch.multiprocessing.spawn(run, (4, str(tmp_path)), nprocs=4)
    check([torch.load(tmp_path / f"{rank}.pt", weights_only=True) for rank in range(4)])


def test_several_captions_are_positives() -> None:
    """Against a loop: the mean over an image's captions, none of which is its negative."""
    generator = torch.Generator().manual_seed(1)
    images = F.normalize(torch.randn(4, 5, generator=generator, dtype=torch.float64), dim=1)
    texts = F.normalize(torch.randn(8, 5, generator=generator, dtype=torch.float64), dim=1)
    logits = 8.0 * images @ texts.T
    by_image, by_text = [], []
    for i in range(4):
        negatives = [logits[i, j] for j in range(8) if j // 2 != i]
        for j in (2 * i, 2 * i + 1):
            row = torch.stack([logits[i, j], *negatives])
            by_image.append(torch.logsumexp(row, 0) - logits[i, j])
            by_text.append(torch.logsumexp(logits[:, j], 0) - logits[i, j])
    # 4 images and 8 texts are 12 anchors.
    expected = (sum(by_image) / 2 + sum(by_text)) / 12
    loss = ours.ClipLoss()(images, texts, torch.tensor(8.0, dtype=torch.float64))
    torch.testing.assert_close(loss, expected)
    with pytest.raises(ValueError, match="equally many captions"):
        ours.ClipLoss()(images, texts[:5], torch.tensor(8.0))


def test_other_losses_and_mistakes() -> None:
    images, texts = torch.randn(2, 6, 5, requires_grad=True)
    scale = torch.tensor(8.0, requires_grad=True)
    loss = ours.ClipLoss(criterion=MACL(0.1, negatives="cross"))
    value = loss(images, texts, scale, output_dict=True)["contrastive_loss"]
    torch.testing.assert_close(value, MACL(0.1, negatives="cross")(images, texts))
    value.backward()
    assert scale.grad is not None  # DDP finds it used
    assert scale.grad == 0
    with pytest.raises(ValueError, match="use_horovod"):
        ours.ClipLoss(use_horovod=True)
    with pytest.raises(ValueError, match="initialize it"):
        ours.ClipLoss(world_size=2)(images, texts, scale)


def test_the_training_script_gets_its_loss() -> None:
    common = {"distill": False, "model": "ViT-B-32", "rank": 0, "world_size": 1, "horovod": False}
    args = SimpleNamespace(**common, siglip=False, local_loss=True, gather_with_grad=True)
    assert isinstance(ours.create_loss(args), ours.ClipLoss)
    args = SimpleNamespace(**common, siglip=True, loss_dist_impl="gather")
    assert isinstance(ours.create_loss(args), ours.SigLipLoss)
    with pytest.raises(ValueError, match="CoCa"):
        ours.create_loss(SimpleNamespace(distill=False, model="coca_ViT-B-32"))


def test_memory_is_linear() -> None:
    clip, siglip, scale = ours.ClipLoss(), ours.SigLipLoss(), torch.tensor(10.0)
    for loss in (clip, siglip):
        loss.criterion.kernel = "tiled"  # as for batches whose matrix would not fit
    assert_linear_memory(lambda one, two: clip(one, two, scale))
    assert_linear_memory(lambda one, two: siglip(one, two, scale, torch.tensor(-10.0)))
