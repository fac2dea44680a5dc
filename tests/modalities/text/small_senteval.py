"""SentEval's folder in small: every task, a few dozen made-up sentences each."""

from __future__ import annotations

import random
from pathlib import Path

from macl.modalities.embedding import embed
from macl.modalities.text.data import TextDataset
from macl.modalities.text.encoders import TextEncoder, TextViews
from macl.modalities.text.evaluation import Encode
from macl.modalities.text.sections import TextViewsConfig
from macl.modalities.text.senteval import STS_SETS

WORDS = ["good", "fine", "great", "bad", "poor", "awful", "film", "plot", "phone", "the", "a", "is"]


def sentence_encoder(encoder: TextEncoder, batch_size: int = 64) -> Encode:
    """`encoder` as a function of sentences."""
    views = TextViews(TextViewsConfig(), encoder)
    return lambda texts: embed(encoder, views, TextDataset([texts]), batch_size=batch_size)


def sentence(rng: random.Random, label: int) -> str:
    mood = rng.choice(WORDS[:3] if label else WORDS[3:6])
    return " ".join([*rng.choices(WORDS[6:], k=rng.randint(2, 6)), mood])


def write(path: Path, lines: list[str], encoding: str = "utf-8") -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n", encoding=encoding)


def write_senteval(root: Path) -> Path:
    """A folder like SentEval's with a few dozen made-up sentences per task."""
    rng = random.Random(0)
    for task, names in STS_SETS.items():
        for name in names:
            pairs = [(sentence(rng, 1), sentence(rng, i % 2)) for i in range(6)]
            gold = [str(rng.uniform(0, 5)) for _ in pairs[1:]] + [""]  # the last has no gold
            folder = root / "downstream" / "STS" / f"{task}-en-test"
            write(folder / f"STS.input.{name}.txt", ["\t".join(pair) for pair in pairs])
            write(folder / f"STS.gs.{name}.txt", gold)
    down = root / "downstream"
    for split, n in (("test", 9), ("dev", 7)):
        rows = [f"g\tf\ty\t{i}\t{i / 2}\t{sentence(rng, 1)}\t{sentence(rng, 0)}" for i in range(n)]
        write(down / f"STS/STSBenchmark/sts-{split}.csv", rows)
        rows = [f"{i}\t{sentence(rng, 1)}\t{sentence(rng, 0)}\t{i / 2}\tX" for i in range(n)]
        name = "SICK_test_annotated.txt" if split == "test" else "SICK_trial.txt"
        write(down / "SICK" / name, ["pair_ID\tA\tB\tscore\tjudgment", *rows])
    for ones, zeros in (
        ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
        ("CR/custrev.pos", "CR/custrev.neg"),
        ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
        ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
    ):
        write(down / ones, [sentence(rng, 1) + " café " for _ in range(30)], "latin-1")
        write(down / zeros, [sentence(rng, 0) for _ in range(24)], "latin-1")
    for part, n in (("train", 60), ("dev", 20), ("test", 20)):
        lines = [f"{sentence(rng, i % 2)} \t{i % 2}" for i in range(n)]
        write(down / f"SST/binary/sentiment-{part}", lines)
    for name, n in (("train_5500.label", 72), ("TREC_10.label", 12)):
        kinds = ["ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM"]
        lines = [f"{kinds[i % 6]}:x {WORDS[i % 6]} {sentence(rng, 1)}" for i in range(n)]
        write(down / "TREC" / name, lines, "latin-1")
    for part, n in (("train", 60), ("test", 20)):
        rows = []
        for i in range(n):
            first = sentence(rng, 1)
            rows.append(f"{i % 2}\t1\t2\t{first}\t{first if i % 2 else sentence(rng, 0)}")
        write(down / f"MRPC/msr_paraphrase_{part}.txt", ["\ufeffQuality\t1\t2\tA\tB", *rows])
    return root
