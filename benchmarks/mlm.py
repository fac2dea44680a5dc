"""A small BERT by masked-language modelling on a text file: an honest start for SimCSE without
downloads.

    python benchmarks/mlm.py SENTENCES.txt FOLDER [--limit 120000] [--epochs 1] [--seed 0]

Writes a folder that `macl train simcse-bert encoder.name=FOLDER` starts from, and prints the loss.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from transformers import BertConfig, BertForMaskedLM, DataCollatorForLanguageModeling

from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoder, TextEncoderConfig, tiny_encoder
from macl.modalities.text.folders import save_text_encoder


def batches(ids: list[list[int]], size: int, generator: torch.Generator) -> list[list[int]]:
    """Sentences of one length together: first in a random order, then by length in long runs."""
    order = torch.randperm(len(ids), generator=generator).tolist()
    run = 64 * size
    sorted_runs = [
        number
        for start in range(0, len(order), run)
        for number in sorted(order[start : start + run], key=lambda i: len(ids[i]))
    ]
    parts = [sorted_runs[start : start + size] for start in range(0, len(ids), size)]
    return [parts[i] for i in torch.randperm(len(parts), generator=generator).tolist()]


def options_of(arguments: list[str] | None = None) -> argparse.Namespace:
    """The options of a training, by default those of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("sentences", type=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--limit", type=int, default=120_000)
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--vocabulary", type=int, default=8192)
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--lr", type=float, default=1e-3)
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(arguments)


def train(options: argparse.Namespace) -> None:
    """Train an encoder and write its folder."""
    torch.manual_seed(options.seed)
    lines = options.sentences.read_text(encoding="utf-8").splitlines()
    sentences = [line for line in lines if line.strip()][: options.limit]
    config = TextEncoderConfig(
        width=options.width, layers=options.layers, vocabulary=options.vocabulary
    )
    encoder = tiny_encoder(config, TextDataset([sentences]))
    tokenizer = encoder.tokenizer
    plan: BertConfig = encoder.backbone.config  # type: ignore[assignment]
    model = BertForMaskedLM(plan).train()
    ids = tokenizer(sentences, truncation=True, max_length=48)["input_ids"]
    collate = DataCollatorForLanguageModeling(tokenizer, mlm_probability=0.15)
    generator = torch.Generator().manual_seed(options.seed)
    steps = [part for _ in range(options.epochs) for part in batches(ids, options.batch, generator)]
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.lr, weight_decay=0.01)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.lr, total_steps=len(steps), pct_start=0.05, anneal_strategy="linear"
    )
    start, recent = time.perf_counter(), []
    for number, part in enumerate(steps, 1):
        batch = collate([{"input_ids": ids[i]} for i in part])
        # The softmax over the vocabulary is most of the cost: only masked places need it.
        masked = batch["labels"] >= 0
        hidden = model.bert(batch["input_ids"], batch["attention_mask"]).last_hidden_state
        logits = model.cls(hidden[masked])
        loss = torch.nn.functional.cross_entropy(logits, batch["labels"][masked])
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
        recent = [*recent[-99:], loss.item()]
        if number % 100 == 0 or number == len(steps):
            speed = number * options.batch / (time.perf_counter() - start)
            mean = sum(recent) / len(recent)
            print(
                f"step {number}/{len(steps)}: loss {mean:.3f}, {speed:.0f} sentences/s", flush=True
            )
    save_text_encoder(TextEncoder(model.bert, tokenizer, "mean"), options.folder)


if __name__ == "__main__":
    train(options_of())
