"""Replaces `horovodrun` for Horovod's Gloo controller: the variables of each process, and a key-value store.

The store is plain HTTP, as Horovod's C++ code uses it: PUT /scope/key, GET of the same (404 until the key exists), and
DELETE /scope/key at the end. Horovod supports no secret for it, as torch supports none for its own. It listens on the
private address of node 0 and holds only addresses of ranks. A Horovod built with MPI uses MPI instead.
"""

from __future__ import annotations

import socket
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ..system import addresses
from .context import GangContext

# Anyone who reaches the address can write, and no secret is asked for. An entry of a rank has less than a kilobyte.
_LONGEST_VALUE = 1 << 20
_MOST_BYTES = 64 << 20
_BYTES_OF_AN_ENTRY = 256


def serve(address: str) -> str:
    """Starts the store, which runs until this process ends. Returns `ADDRESS:PORT`. Raises OSError."""
    store = _Store((address, 0), _Handler)
    threading.Thread(target=store.serve_forever, daemon=True).start()
    return f"{address}:{store.server_address[1]}"


def variables(place: GangContext, ranks: tuple[int, int, int, int], store: str) -> dict[str, str]:
    """Returns the variables that `horovodrun` would give one process.

    Args:
        ranks: Rank, size, local rank and local size.
        store: Address of the store.
    """
    rank, size, local, here = ranks
    address, _, port = store.rpartition(":")
    told: dict[str, object] = {
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": size,
        "HOROVOD_LOCAL_RANK": local,
        "HOROVOD_LOCAL_SIZE": here,
        "HOROVOD_CROSS_RANK": place.rank,
        "HOROVOD_CROSS_SIZE": size // here,
        "HOROVOD_HOSTNAME": place.hosts[place.rank],
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": address,
        "HOROVOD_GLOO_RENDEZVOUS_PORT": port,
    }
    if interface := addresses.interface_towards(place.addresses[0]):
        told["HOROVOD_GLOO_IFACE"] = interface
    return {name: str(value) for name, value in told.items()}


class _Store(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, address: tuple[str, int], handler: type[BaseHTTPRequestHandler]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address[0] else socket.AF_INET
        super().__init__(address, handler)
        self._lock = threading.Lock()
        self._values: dict[str, bytes] = {}
        self._size = 0

    def put(self, key: str, value: bytes) -> bool:
        """Sets a value. False if there is no room for it."""
        with self._lock:
            before = self._size_of(key)
            after = len(key) + len(value) + _BYTES_OF_AN_ENTRY
            if self._size - before + after > _MOST_BYTES:
                return False
            self._values[key] = value
            self._size += after - before
            return True

    def get(self, key: str) -> bytes | None:
        """Returns a value, or None."""
        with self._lock:
            return self._values.get(key)

    def remove(self, key: str) -> None:
        """Removes a value, if it is there."""
        with self._lock:
            self._size -= self._size_of(key)
            self._values.pop(key, None)

    def _size_of(self, key: str) -> int:
        value = self._values.get(key)
        return 0 if value is None else len(key) + len(value) + _BYTES_OF_AN_ENTRY

    def server_bind(self) -> None:
        # The library's version looks up the host name of the address, which may wait for an unreachable name server.
        self.socket.bind(self.server_address)
        self.server_address = self.socket.getsockname()
        self.server_name, self.server_port = (
            str(self.server_address[0]),
            int(self.server_address[1]),
        )


class _Handler(BaseHTTPRequestHandler):
    server: _Store
    protocol_version = "HTTP/1.1"

    def do_PUT(self) -> None:
        length = self.headers.get("Content-Length") or "0"
        if not length.isdecimal() or len(length) > 9 or int(length) > _LONGEST_VALUE:
            self._refuse()
            return
        value = self.rfile.read(int(length))
        if self.server.put(self.path, value):
            self._answer(HTTPStatus.OK)
        else:
            self._refuse()

    def do_GET(self) -> None:
        value = self.server.get(self.path)
        self._answer(HTTPStatus.NOT_FOUND if value is None else HTTPStatus.OK, value or b"")

    def do_DELETE(self) -> None:
        self.server.remove(self.path)
        self._answer(HTTPStatus.OK)

    def _refuse(self) -> None:
        self.close_connection = True
        self._answer(HTTPStatus.REQUEST_ENTITY_TOO_LARGE)

    def _answer(self, status: HTTPStatus, body: bytes = b"") -> None:
        self.send_response_only(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Logs nothing: there are thousands of requests."""
