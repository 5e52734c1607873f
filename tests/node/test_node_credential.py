"""The node's own credential, where the machine's metadata service has no role for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from flowlite.node.s3.node_credential import node_credential


class _NoRole(BaseHTTPRequestHandler):
    """Answers as services that imitate EC2's do: the list of roles is empty, and not "404"."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    do_PUT = do_GET

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def metadata(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """A machine whose metadata service has no role, and whose user has no credential."""
    monkeypatch.setenv("HOME", str(tmp_path))
    given = ("AWS_ACCESS_KEY_ID", "AWS_CONTAINER_CREDENTIALS_FULL_URI")
    for name in (*given, "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI"):
        monkeypatch.delenv(name, raising=False)
    with ThreadingHTTPServer(("127.0.0.1", 0), _NoRole) as server:
        endpoint = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", endpoint)
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield
        server.shutdown()
        thread.join()


@pytest.mark.usefixtures("metadata")
def test_a_machine_without_a_role_has_no_credential() -> None:
    assert node_credential() is None
