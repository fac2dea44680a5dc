"""One number of an evaluation, with how it was obtained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

LAST = "last"
"""The encoder that training ended with."""

BEST = "best"
"""The encoder with the highest monitored score."""


@dataclass(frozen=True)
class Score:
    """One number of an evaluation, with the settings it was obtained with."""

    protocol: str
    """The protocol: "knn", "linear", "sts", "svm"."""
    metric: str
    """What the number is: "top1", "spearman", "roc-auc"."""
    value: float
    """In percent where the paper reports percent."""
    split: str = "test"
    task: str = ""
    """Which of several tasks ("STS12", "MR"); empty when there is only one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    """Settings and side figures: k, epochs, chosen C, standard deviation, number of items."""
    encoder: str = LAST
    """Which encoder of a run: LAST or BEST; "unfinished" that of a checkpoint before the end."""

    def as_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)


def score_name(score: Mapping[str, Any]) -> str:
    """The name of a score in tables: "sts STS-B spearman", with "(best)" for the best encoder."""
    name = " ".join(filter(None, (score["protocol"], score["task"], score["metric"])))
    encoder = score.get("encoder", LAST)
    return name if encoder == LAST else f"{name} ({encoder})"


def score_settings(details: Mapping[str, Any]) -> str:
    """What a score depends on: "k=20, 1,437 train, 360 test"."""
    parts = [f"k={details['k']}"] if "k" in details else []
    names = {"n_train": "train", "n_test": "test", "n": "items", "epochs": "epochs"}
    counts = ((details.get(key), name) for key, name in names.items())
    return ", ".join([*parts, *(f"{n:,} {name}" for n, name in counts if isinstance(n, int))])
