"""What identifies a data set: for resuming a training, and for continuing to embed."""

from __future__ import annotations

import hashlib
from typing import NamedTuple

from macl.core.errors import UserError
from macl.modalities.protocols import Dataset


class DataMark(NamedTuple):
    """Identifies data without reading all of it."""

    samples: int
    names: str
    """A hash of some of the names, evenly spread."""

    @classmethod
    def of(cls, dataset: Dataset, most: int = 1000) -> DataMark:
        """The mark of a data set, from at most `most` + 1 names."""
        n = len(dataset)
        chosen = sorted({i * (n - 1) // most for i in range(most + 1)}) if n else []
        text = "\n".join(dataset.names[i] for i in chosen)
        return cls(n, hashlib.blake2b(text.encode(), digest_size=16).hexdigest())

    def require_same(self, before: DataMark) -> None:
        """Raise `UserError` unless this is the data that a run began with."""
        if self == before:
            return
        change = (
            f"{before.samples:,} samples then, {self.samples:,} now"
            if self.samples != before.samples
            else "as many samples, but other ones or in another order"
        )
        raise UserError(
            f"the training data is not what the run began with: {change}. Resume it with that "
            "data, or train on this into another folder (`out=`)."
        )
