"""Unsupervised SimCSE in a `transformers.Trainer`: every sentence twice, with different dropout.

    pip install 'macl[text]'
    python examples/transformers_trainer.py

A small BERT with random weights stands in for yours: put `AutoModel.from_pretrained("…")` there.
"""

from __future__ import annotations

import pydoc_data.topics
import tempfile
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel, Trainer, TrainingArguments

from macl import MACL


class SimCSE(nn.Module):
    """An encoder whose loss contrasts two passes over the same batch."""

    def __init__(self, encoder: BertModel) -> None:
        super().__init__()
        self.encoder = encoder
        self.criterion = MACL(
            temperature=0.05,
            alpha=2.0,
            threshold=0.8,
            reweight=False,
            negatives="cross",
            symmetric=False,
        )

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        """(N, T) tokens → the loss, in the form that the trainer expects."""
        twice = {"input_ids": input_ids, "attention_mask": attention_mask}
        z1, z2 = (self.encoder(**twice).last_hidden_state[:, 0] for _ in range(2))
        return {"loss": self.criterion(z1, z2)}


def tokenised(count: int, length: int = 24) -> tuple[list[dict[str, Tensor]], int]:
    """Lines of Python's help topics as word numbers, and the number of words; 0 is padding."""
    lines = [
        line.split() for text in pydoc_data.topics.topics.values() for line in text.split("\n")
    ]
    lines = [line[:length] for line in lines if len(line) > 5][:count]
    words = {word: n for n, word in enumerate(sorted({w for line in lines for w in line}), 1)}
    rows = []
    for line in lines:
        ids = torch.zeros(length, dtype=torch.long)
        ids[: len(line)] = torch.tensor([words[word] for word in line])
        rows.append({"input_ids": ids, "attention_mask": (ids > 0).long()})
    return rows, len(words) + 1


def train(folder: Path, steps: int = 20) -> list[dict[str, Any]]:
    """Train; returns the rows of the trainer's log."""
    torch.manual_seed(0)
    rows, vocabulary = tokenised(640)
    config = BertConfig(
        vocab_size=vocabulary,
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=64,
    )
    arguments = TrainingArguments(
        output_dir=str(folder),
        max_steps=steps,
        per_device_train_batch_size=32,
        learning_rate=1e-3,
        logging_steps=5,
        report_to="none",
        save_strategy="no",
        use_cpu=True,
        disable_tqdm=True,
    )
    trainer = Trainer(SimCSE(BertModel(config)), arguments, train_dataset=rows)  # type: ignore[arg-type]
    trainer.train()
    return [row for row in trainer.state.log_history if "loss" in row]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        for row in train(Path(place)):
            print({key: row[key] for key in ("epoch", "loss", "learning_rate")})
