"""What goes wrong in processes that read data beside this one, told in words."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from macl.errors import UserError

T = TypeVar("T")

READ_TIMEOUT = 600
"""Seconds without data from a reading process: a hung one is an error, not an endless wait."""


class ReadingFailed(UserError):
    """A reading process died, or gives nothing."""


def read_in_words(batches: Iterable[T]) -> Iterator[T]:
    """Yield the batches of a torch DataLoader; its failures come as `UserError`."""
    try:
        yield from batches
    except UserError as error:  # from a worker it comes with that one's traceback as text
        raise UserError(str(error).rpartition("UserError: ")[2].rstrip()) from None
    except RuntimeError as error:
        text = str(error).strip()
        if text.startswith("DataLoader timed out"):
            raise ReadingFailed(
                f"no data came for a long time ({text}): a reading process hangs, or the storage "
                "does. workers=0 reads in this process itself."
            ) from error
        if text.startswith("DataLoader worker"):
            raise ReadingFailed(
                f"a reading process died ({text}), often for lack of memory: use fewer workers."
            ) from error
        raise
