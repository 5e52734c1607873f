"""A package index of one's own: wheels written by hand, as a directory or served over HTTP on loopback."""

from __future__ import annotations

import base64
import hashlib
import http.server
import os
import threading
import zipfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest


def make_wheel(
    directory: Path,
    name: str,
    version: str = "1.0",
    *,
    source: str = "",
    requires: Sequence[str] = (),
    python: str = ">=3.8",
) -> Path:
    """Writes a wheel of one module, which knows its VERSION."""
    module = name.replace("-", "_")
    info = f"{module}-{version}.dist-info"
    metadata = [
        "Metadata-Version: 2.1",
        f"Name: {name}",
        f"Version: {version}",
        f"Requires-Python: {python}",
        *(f"Requires-Dist: {each}" for each in requires),
    ]
    files = {
        f"{module}.py": f"VERSION = {version!r}\n{source}",
        f"{info}/METADATA": "\n".join(metadata) + "\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [f"{each},sha256={_digest(text)},{len(text)}" for each, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*record, f"{info}/RECORD,,"]) + "\n"
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"{module}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        for each, text in files.items():
            archive.writestr(each, text)
    return path


def _digest(text: str) -> str:
    raw = hashlib.sha256(text.encode()).digest()
    return base64.urlsafe_b64encode(raw).decode().rstrip("=")


@contextmanager
def serve_index(
    directory: Path,
    *,
    address: str = "127.0.0.1",
    user: str = "",
    password: str = "",
    on_file: Callable[[str], None] = lambda name: None,
) -> Iterator[str]:
    """Serves a directory of wheels as an index; gives its address, with the credentials it wants.

    `on_file` is called with the name of each wheel before it is sent.
    """
    expected = f"Basic {base64.b64encode(f'{user}:{password}'.encode()).decode()}"

    class Index(http.server.BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self.do_GET()

        def do_GET(self) -> None:
            if user and self.headers.get("Authorization") != expected:
                self.send_response(401)
                self.send_header("WWW-Authenticate", "Basic")
                self.end_headers()
                return
            parts = [part for part in self.path.split("/") if part]
            body = _simple(directory, parts[1:]) if parts[:1] == ["simple"] else None
            if parts[:1] == ["files"]:
                if self.command == "GET":
                    on_file(parts[-1])
                body = (directory / parts[-1]).read_bytes()
            self.send_response(404 if body is None else 200)
            kind = "text/html" if parts[:1] == ["simple"] else "application/octet-stream"
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body or b"")))
            self.end_headers()
            if self.command == "GET":
                self.wfile.write(body or b"")

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer((address, 0), Index)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        sign = f"{user}:{password}@" if user else ""
        yield f"http://{sign}{address}:{server.server_port}/simple"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _simple(directory: Path, parts: Sequence[str]) -> bytes | None:
    if not parts:
        return None
    module = parts[0].replace("-", "_")
    found = sorted(directory.glob(f"{module}-*.whl"))
    if not found:
        return None
    links = "".join(f'<a href="/files/{each.name}">{each.name}</a>' for each in found)
    return f"<!DOCTYPE html><html><body>{links}</body></html>".encode()


def use_no_index(monkeypatch: pytest.MonkeyPatch, cache: Path) -> None:
    """Lets packages come from where a test says, and from nowhere else."""
    for name in list(os.environ):
        if name.startswith(("UV_", "PIP_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("UV_NO_CONFIG", "1")
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_CACHE_DIR", str(cache))
