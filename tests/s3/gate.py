"""An HTTP proxy before an S3 server that wants a session token, as AWS does of temporary credentials."""

from __future__ import annotations

import http.client
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.s3.servers import S3Server

REFUSAL = (
    b"<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>"
)


class Gate:
    """Passes requests on that bear the token; `passed` counts them."""

    def __init__(self, server: S3Server, token: str) -> None:
        gate = self
        self.passed = 0
        behind = urlsplit(server.endpoint)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                if self.headers.get("x-amz-security-token") != token:
                    self._answer(400, {}, REFUSAL)
                    return
                gate.passed += 1
                # The host is signed: it stays the one that was asked for.
                asked = http.client.HTTPConnection(behind.hostname or "", behind.port, timeout=20)
                asked.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
                for name, value in self.headers.items():
                    asked.putheader(name, value)
                asked.endheaders()
                reply = asked.getresponse()
                self._answer(reply.status, dict(reply.getheaders()), reply.read())
                asked.close()

            do_HEAD = do_GET

            def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
                self.send_response_only(status)
                length = headers.pop("Content-Length", str(len(body)))
                for name, value in headers.items():
                    if name.lower() not in ("transfer-encoding", "connection"):
                        self.send_header(name, value)
                self.send_header("Content-Length", length)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(body)

            def log_message(self, *_: object) -> None:
                return

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Gate:
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
