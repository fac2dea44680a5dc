"""Encoders on the hub, beside a server on this machine that speaks the few endpoints."""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

import macl
from macl.core.errors import UserError
from macl.modalities import hub
from shared import trained
from tiny import recipe

pytest.importorskip("huggingface_hub", reason="needs the extra 'text'")
SHA = "a" * 40


class Hub(BaseHTTPRequestHandler):
    """One repository, whose files are those of the last commit."""

    files: ClassVar[dict[str, bytes]] = {}
    seen: ClassVar[list[tuple[str, str | None]]] = []

    def _answer(self, body: Any, more: dict[str, str] | None = None) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(200)
        for key, value in {"Content-Length": str(len(data)), **(more or {})}.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.seen.append((self.path, self.headers.get("Authorization")))
        if self.path.endswith("/preupload/main"):
            paths = [file["path"] for file in json.loads(body)["files"]]
            self._answer(
                {
                    "files": [
                        {"path": p, "uploadMode": "regular", "shouldIgnore": False} for p in paths
                    ]
                }
            )
        elif "/commit/" in self.path:
            for line in map(json.loads, body.splitlines()):
                if line["key"] == "file":
                    value = line["value"]
                    self.files[value["path"]] = base64.b64decode(value["content"])
            self._answer({"commitUrl": f"{self.path}/{SHA}", "commitOid": SHA, "success": True})
        elif self.path.endswith("/repos/create"):
            self._answer({"url": f"http://{self.headers['Host']}/me/small", "name": "me/small"})
        else:
            self._answer({"errors": [], "warnings": []})

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_GET(self) -> None:
        self.seen.append((self.path, self.headers.get("Authorization")))
        name = self.path.partition(f"/resolve/{SHA}/")[2]
        if name:
            data = self.files[name]
            digest = hashlib.sha256(data).hexdigest()
            self._answer(data, {"ETag": f'"{digest}"', "X-Repo-Commit": SHA})
        elif "/tree/" in self.path:
            entries = [
                {"type": "file", "path": n, "size": len(d), "oid": "0" * 40}
                for n, d in self.files.items()
            ]
            self._answer(entries)
        else:
            siblings = [{"rfilename": n} for n in self.files]
            self._answer({"id": "me/small", "sha": SHA, "private": False, "siblings": siblings})

    def log_message(self, *given: Any) -> None:
        pass


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    Hub.files, Hub.seen = {}, []
    running = ThreadingHTTPServer(("127.0.0.1", 0), Hub)
    threading.Thread(target=running.serve_forever, daemon=True).start()
    from huggingface_hub import constants

    place = f"http://127.0.0.1:{running.server_port}"
    monkeypatch.setattr(constants, "ENDPOINT", place)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", place + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setenv("HF_TOKEN", "secret-of-the-test")
    yield Hub
    running.shutdown()
    running.server_close()


def test_a_pushed_encoder_is_read_back(server: type[Hub], tmp_path: Path) -> None:
    run = trained(recipe("epochs=1"))
    lines = macl.export(run, tmp_path / "exported", onnx=False, licence="mit", push="me/small")
    assert lines[-1].startswith("on the hub: http://127.0.0.1")
    assert {"README.md", "encoder.safetensors"} <= server.files.keys()
    assert b"license: mit" in server.files["README.md"]
    assert all(
        token == "Bearer secret-of-the-test" for path, token in server.seen if "commit" in path
    )
    server.files["evil.py"] = b"raise SystemExit('executed')"
    server.files["weights.pt"] = b"\x80\x04 a pickle"
    # Nothing is fetched unless it is allowed.
    with pytest.raises(UserError, match="download=True"):
        macl.embed("hf:me/small", tmp_path)
    folder = Path(hub.local_encoder("hf:me/small", download=True))
    assert {file.name for file in folder.rglob("*")} & {"evil.py", "weights.pt"} == set()
    # And from then on it is here.
    count = len(server.seen)
    from PIL import Image

    (tmp_path / "pictures").mkdir()
    for name in ("a", "b"):
        Image.new("L", (8, 8), 77).save(tmp_path / "pictures" / f"{name}.png")
    again = macl.embed("hf:me/small", tmp_path / "pictures")
    torch.testing.assert_close(again.values, macl.embed(run, tmp_path / "pictures").values)
    scores, local = (
        macl.evaluate(encoder=e, protocols=["knn"]) for e in ("hf:me/small", tmp_path / "exported")
    )
    assert scores[0].value == pytest.approx(local[0].value)
    with pytest.raises(UserError, match="2 items: too few"):  # so the encoder is there
        macl.adapt("hf:me/small", tmp_path / "pictures", out=tmp_path / "adapted")
    assert len(server.seen) == count


def test_mistakes_name_their_remedy(
    server: type[Hub], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with pytest.raises(UserError, match="OWNER/NAME"):
        hub.local_encoder("hf:a/b/c", download=True)
    assert hub.local_encoder("timm:resnet18") == "timm:resnet18"
