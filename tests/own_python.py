"""This machine's Python as an archive that uv installs, served with the list that names it."""

from __future__ import annotations

import http.server
import io
import json
import platform
import sys
import sysconfig
import tarfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BALLAST = {"test", "tests", "__pycache__", "site-packages", "dist-packages", "idlelib", "tkinter"}

_START = """\
#!/bin/sh
here=$(dirname "$(readlink -f "$0")")
LD_LIBRARY_PATH=$here/../lib exec "$here/{name}.real" "$@"
"""


@contextmanager
def serve_pythons(address: str) -> Iterator[str]:
    """Gives the address of the list, for UV_PYTHON_DOWNLOADS_JSON_URL."""
    archive = _archive()

    class Downloads(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = archive
            if self.path == "/list.json":
                host = self.headers["Host"]
                body = json.dumps(_listed(f"http://{host}/python.tar.gz")).encode()
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            return

    server = http.server.ThreadingHTTPServer((address, 0), Downloads)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield f"http://{address}:{server.server_port}/list.json"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _listed(url: str) -> dict[str, Any]:
    major, minor, patch = sys.version_info[:3]
    machine = platform.machine()
    entry = {
        "name": "cpython",
        "arch": {"family": machine, "variant": None},
        "os": "linux",
        "libc": "gnu",
        "major": major,
        "minor": minor,
        "patch": patch,
        "prerelease": "",
        "url": url,
        "sha256": None,
        "variant": None,
        "build": None,
    }
    return {f"cpython-{major}.{minor}.{patch}-linux-{machine}-gnu": entry}


def _archive() -> bytes:
    name = f"python{sys.version_info.major}.{sys.version_info.minor}"
    python = Path(sys._base_executable).resolve()  # type: ignore[attr-defined]
    library = Path(sysconfig.get_path("stdlib")).resolve()
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz", compresslevel=1) as archive:
        archive.add(python, f"python/bin/{name}.real")
        # One that is linked to its library would find that of another Python, or none, in a new place.
        script = _START.format(name=name).encode()
        entry = tarfile.TarInfo(f"python/bin/{name}")
        entry.size, entry.mode = len(script), 0o755
        archive.addfile(entry, io.BytesIO(script))
        for link in ("python", "python3"):
            entry = tarfile.TarInfo(f"python/bin/{link}")
            entry.type, entry.linkname = tarfile.SYMTYPE, name
            archive.addfile(entry)
        archive.add(library, f"python/lib/{name}", filter=_no_ballast)
        for shared in Path(sys.base_prefix).glob("lib/libpython3*.so*"):
            archive.add(shared, f"python/lib/{shared.name}")
    return buffer.getvalue()


def _no_ballast(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
    last = entry.name.rpartition("/")[2]
    return None if last in BALLAST or last.startswith("config-") else entry
