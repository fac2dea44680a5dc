"""Files that lie elsewhere, read by fsspec: s3://, gs://, hf://, https://, and more.

A URL travels as a `Path`, which joins its slashes: "s3://bucket/a.tar" becomes s3:/bucket/a.tar.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, TypeVar, cast

from macl.core.errors import UserError
from macl.core.installed import require

T = TypeVar("T")

_URL = re.compile(r"((?:[a-z][a-z0-9+]+::)*)([a-z][a-z0-9+]+):/+(.+)")
PAUSES = (0.2, 1.0, 5.0)
"""Seconds before each further attempt."""
AHEAD = 8 * 2**20
"""Bytes that are read ahead of their use while an archive is indexed."""


def url_of(path: Path) -> str | None:
    """The URL that became `path`; None for a path of this machine."""
    match = _URL.fullmatch(str(path))
    if match is None:
        return None
    chain, scheme, rest = match.groups()
    return f"{chain}{scheme}://{'/' if scheme == 'file' else ''}{rest}"


def on_network(path: Path) -> bool:
    """Whether `path` is a URL of another machine."""
    url = url_of(path)
    return url is not None and not url.startswith("file://")


def read_range(url: str, start: int, size: int) -> bytes:
    """`size` bytes from `start` on."""
    return cast(bytes, _retried(url, lambda fs, path: fs.cat_file(path, start, start + size)))


def open_remote(url: str) -> IO[bytes]:
    """The file, for reading; about `AHEAD` bytes of it are held."""
    from fsspec.spec import AbstractBufferedFile

    class Retried(AbstractBufferedFile):
        """Reads with retries, where fsspec's own files would give up at the first failure."""

        def _fetch_range(self, start: int, end: int) -> bytes:
            return read_range(url, start, end - start)

    size, _ = mark_of(url)
    return cast(IO[bytes], Retried(None, url, "rb", AHEAD, cache_type="readahead", size=size))


def mark_of(url: str) -> tuple[int, str]:
    """Size in bytes, and what changes with the content as far as the server says."""
    info: dict[str, Any] = _retried(url, lambda fs, path: fs.info(path))
    keys = ("ETag", "etag", "LastModified", "last_modified", "mtime", "updated")
    return int(info["size"]), "".join(str(info[key]) for key in keys if key in info)


def _retried(url: str, action: Callable[[Any, str], T]) -> T:
    require("fsspec", "remote")
    import fsspec

    for pause in (*PAUSES, None):
        try:
            return action(*fsspec.core.url_to_fs(url))
        except (FileNotFoundError, PermissionError) as error:
            raise UserError(f"{url} cannot be read: {type(error).__name__}.") from error
        except ImportError as error:
            raise UserError(f"{url} needs another package: {error}") from error
        # Every protocol has errors of its own for what may be over in a moment.
        except Exception as error:
            if pause is None:
                reason = f"{type(error).__name__}: {error}"
                raise UserError(
                    f"{url} cannot be read after {len(PAUSES) + 1} attempts ({reason}). What was "
                    "done is kept; try again when it can be reached."
                ) from error
            time.sleep(pause)
    raise AssertionError
