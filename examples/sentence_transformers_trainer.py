"""MACL in a `SentenceTransformerTrainer`, on pairs of sentences.

    pip install 'macl[text]'
    python examples/sentence_transformers_trainer.py

A small transformer with random weights stands in for yours: put `SentenceTransformer("…")` there.
"""

from __future__ import annotations

import pydoc_data.topics
import re
import tempfile
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from sentence_transformers import (
    SentenceTransformer,
    SentenceTransformerTrainer,
    SentenceTransformerTrainingArguments,
)

from macl.integrations.sentence_transformers import LogContrast, MACLLoss
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
from macl.modalities.text.folders import save_text_encoder


def pairs(count: int) -> Dataset:
    """Neighboring sentences of Python's help topics."""
    found = []
    for text in pydoc_data.topics.topics.values():
        sentences = re.split(r"(?<=[.!?]) (?=[A-Z])", " ".join(text.split()))
        kept = [sentence for sentence in sentences if 30 < len(sentence) < 150]
        found += list(zip(kept[::2], kept[1::2], strict=False))
    first, second = zip(*found[:count], strict=True)
    return Dataset.from_dict({"anchor": first, "positive": second})


def small_model(folder: Path, data: Dataset) -> SentenceTransformer:
    """A transformer of one layer with random weights, whose vocabulary is learned from `data`."""
    torch.manual_seed(0)
    config = TextEncoderConfig(width=32, layers=1, heads=2, vocabulary=1000)
    save_text_encoder(tiny_encoder(config, TextDataset([list(data["anchor"])])), folder)
    return SentenceTransformer(str(folder), device="cpu")


def train(folder: Path, steps: int = 20) -> list[dict[str, Any]]:
    """Train; returns the rows of the trainer's log."""
    data = pairs(640)
    model = small_model(folder / "initial", data)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(folder / "out"),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        logging_steps=5,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    loss = MACLLoss(model, temperature=0.05, alpha=2.0, threshold=0.8)
    trainer = SentenceTransformerTrainer(model, arguments, train_dataset=data, loss=loss)
    # A, τ and W in the log, beside the loss; and how many equal texts were not contrasted.
    trainer.add_callback(LogContrast(trainer))
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for row in train(Path(place)):
            shown = ("step", "loss", "alignment", "temperature", "gradient_scale", "duplicates")
            print({key: row[key] for key in shown if key in row})
