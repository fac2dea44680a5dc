"""Shards that lie elsewhere: by file:// and from an HTTP server that fails now and then."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from macl.core import remote
from macl.core.errors import UserError
from macl.core.remote import url_of
from macl.core.section import absolute
from macl.modalities.records import open_records
from macl.modalities.shards import TarRecords
from small_shards import color_shards

pytest.importorskip("fsspec")


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


class Ranges(BaseHTTPRequestHandler):
    """Serves files of a folder, whole or in part; every third request fails."""

    folder: Path
    asked: list[str]

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, body: bool) -> None:
        self.asked.append(f"{self.command} {self.path} {self.headers.get('Range', '')}")
        file = self.folder / self.path.lstrip("/")
        if not file.is_file():
            self.send_error(404)
            return
        if len(self.asked) % 3 == 0:
            self.send_error(503)
            return
        data = file.read_bytes()
        wanted = self.headers.get("Range")
        start, end = 0, len(data)
        if wanted:
            first, _, last = wanted.removeprefix("bytes=").partition("-")
            start, end = int(first), min(int(last) + 1, len(data))
        self.send_response(206 if wanted else 200)
        self.send_header("Accept-Ranges", "bytes")
        self.send_header("ETag", f'"{file.stat().st_mtime_ns}"')
        self.send_header("Content-Length", str(end - start))
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.end_headers()
        if body:
            self.wfile.write(data[start:end])

    def log_message(self, *_: Any) -> None:
        return


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, list[str]]]:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "PAUSES", (0.0, 0.01, 0.01))
    handler = type("Handler", (Ranges,), {"folder": tmp_path / "shards", "asked": []})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", handler.asked  # type: ignore[attr-defined]
        server.shutdown()


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("s3://bucket/a-{0..3}.tar", "s3://bucket/a-{0..3}.tar"),
        ("file:///data/a.tar", "file:///data/a.tar"),
        ("simplecache::s3://b/a.tar", "simplecache::s3://b/a.tar"),
        ("/data/a.tar", None),
        ("data/s3:/a.tar", None),
        ("hf:name", None),
    ],
)
def test_a_url_survives_as_a_path(text: str, url: str | None) -> None:
    assert url_of(Path(text)) == url
    assert url_of(absolute(Path(text))) == url


def same(found: Any, expected: Any) -> None:
    assert len(found) == len(expected)
    for index in range(len(expected)):
        assert found.image(index) == expected.image(index)
        assert found.fields(index) == expected.fields(index)
        assert found.name(index) == expected.name(index)


def test_a_file_url_is_read_as_the_file(tmp_path: Path) -> None:
    pattern = color_shards(tmp_path / "shards")
    files = [tmp_path / "shards" / f"colors-{n}.tar" for n in range(3)]
    expected = TarRecords(files, "here")
    urls = [Path(f"file://{file}") for file in files]
    same(TarRecords(urls, "there"), expected)
    assert open_records(Path(f"file://{pattern}")) is not None


def test_a_server_that_fails_now_and_then(tmp_path: Path, server: tuple[str, list[str]]) -> None:
    color_shards(tmp_path / "shards")
    address, asked = server
    files = [tmp_path / "shards" / f"colors-{n}.tar" for n in range(3)]
    urls = [Path(f"{address}/{file.name}") for file in files]
    expected = TarRecords(files, "here")
    found = TarRecords(urls, "there")
    same(found, expected)
    # A second opening uses the index; a member is one range of bytes.
    asked.clear()
    again = TarRecords(urls, "there")
    assert not any("bytes=" in each for each in asked)
    asked.clear()
    again.image(5)
    assert 1 <= len(asked) <= 2  # one more where the server failed
    assert all("bytes=" in each for each in asked)
    with pytest.raises(UserError, match=r"nowhere\.tar cannot be read"):
        TarRecords([Path(f"{address}/nowhere.tar")], "there")


def test_a_server_that_is_gone_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("aiohttp")
    monkeypatch.setattr(remote, "PAUSES", (0.0,))
    with pytest.raises(UserError, match=r"127\.0\.0\.1:9/a\.tar cannot be read"):
        remote.read_range("http://127.0.0.1:9/a.tar", 0, 10)


def test_training_on_remote_shards_equals_training_on_local_ones(
    tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    """Order, batches and results are those of the files: the same index serves both."""
    import macl

    color_shards(tmp_path / "shards")
    small = {
        "data.source": "auto",
        "epochs": 1,
        "batch_size": 8,
        "encoder.width": 8,
        "monitor_every": 0,
    }
    runs = [
        macl.train("digits", data=data, out=tmp_path / name, overrides=small)
        for name, data in (
            ("here", tmp_path / "shards"),
            ("there", f"{server[0]}/colors-{{0..2}}.tar"),
        )
    ]
    here, there = (run.metrics() for run in runs)
    assert here == there


def test_a_stored_url_is_read_only_if_the_user_says_so(
    tmp_path: Path, server: tuple[str, list[str]]
) -> None:
    import macl

    color_shards(tmp_path / "shards")
    address, asked = server
    url = f"{address}/colors-{{0..2}}.tar"
    small = {"data.source": "auto", "epochs": 1, "batch_size": 8, "encoder.width": 8}
    small |= {"monitor_every": 0, "data.holdout": 0.2}
    out = macl.compare(
        "digits", seeds=1, data=url, out=tmp_path / "many", overrides=small, metrics=["knn top1"]
    )
    assert len(out) == 1  # the user named the URL: it was trained on and evaluated on
    (folder,) = (file.parent for file in (tmp_path / "many").rglob("recipe.yaml"))
    asked.clear()
    for command in (
        macl.evaluate,
        macl.diagnose,
        lambda run: macl.train(run, resume=True, epochs=2),
    ):
        with pytest.raises(UserError, match=r"is on the network\. Give it as `data=`"):
            command(folder)
    macl.report(folder, tmp_path / "page.html")
    file = tmp_path / "mine.yaml"
    file.write_text((folder / "recipe.yaml").read_text())
    with pytest.raises(UserError, match="is on the network"):
        macl.train(str(file), out=tmp_path / "new")
    assert asked == []
    assert macl.evaluate(folder, data=url)
    assert macl.evaluate(folder, overrides={"data.download": True})
    assert len(macl.embed(folder, f"{address}/colors-0.tar")) == 14
    assert asked
