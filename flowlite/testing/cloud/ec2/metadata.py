"""The instance metadata service at 169.254.169.254, version 2."""

from __future__ import annotations

import json
import secrets
import socket
import threading
from http.server import BaseHTTPRequestHandler
from socketserver import ThreadingMixIn
from typing import TYPE_CHECKING, Any

from flowlite.state import clock
from flowlite.testing.cloud.ec2.names import ACCOUNT, iso

if TYPE_CHECKING:
    from flowlite.testing.cloud.ec2.life_record import Life
    from flowlite.testing.cloud.machines import Machines

ADDRESS, PORT = "169.254.169.254", 80
_LONGEST = 21_600


class Metadata:
    """Serves each instance in its own network namespace, where no other machine can ask."""

    def __init__(self, machines: Machines, lock: threading.RLock) -> None:
        """`lock` guards the instances."""
        self._machines = machines
        self._lock = lock

    def serve(self, life: Life) -> None:
        """Serves an instance until its machine ends. Does nothing for machines without a network."""
        listener = self._machines.listen(life.instance.id, ADDRESS, PORT)
        if listener is None:
            return
        server = _Server(listener, life, self._lock)
        threading.Thread(target=server.serve, daemon=True).start()


class _Server(ThreadingMixIn):
    daemon_threads = True

    def __init__(self, listener: socket.socket, life: Life, lock: threading.RLock) -> None:
        self._listener = listener
        self.life = life
        self.lock = lock
        self.tokens: dict[str, float] = {}

    def serve(self) -> None:
        while True:
            try:
                client, address = self._listener.accept()
            except OSError:
                return
            self.process_request(client, address)

    def finish_request(self, request: Any, client_address: Any) -> None:
        _Handler(request, client_address, self)  # type: ignore[arg-type]

    def shutdown_request(self, request: Any) -> None:
        request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Ignores clients that have disconnected."""


class _Handler(BaseHTTPRequestHandler):
    server: _Server  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version = "EC2ws"

    def do_PUT(self) -> None:
        seconds = self.headers.get("X-aws-ec2-metadata-token-ttl-seconds", "")
        if self.path != "/latest/api/token":
            return self._say(405)
        if not seconds.isdigit() or not 1 <= int(seconds) <= _LONGEST:
            return self._say(400)
        token = secrets.token_urlsafe(42)
        self.server.tokens[token] = clock.monotonic() + int(seconds)
        return self._say(200, token)

    def do_GET(self) -> None:
        token = self.headers.get("X-aws-ec2-metadata-token")
        required = self.server.life.instance.metadata_options.http_tokens == "required"
        if token is None and required:
            return self._say(401)
        if token is not None and self.server.tokens.get(token, 0) < clock.monotonic():
            return self._say(401)
        with self.server.lock:
            found = _known(self.server.life).get(self.path.rstrip("/"))
        return self._say(404) if found is None else self._say(200, found)

    def _say(self, status: int, text: str = "") -> None:
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Type", "text/plain")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        """Logs nothing."""


def _known(life: Life) -> dict[str, str]:
    """Everything that can be queried now, by path."""
    instance, data = life.instance, "/latest/meta-data"
    zone = str(instance.placement.zone)
    known = {
        f"{data}/ami-id": str(instance.image_id),
        f"{data}/hostname": str(instance.private_dns_name),
        f"{data}/instance-id": instance.id,
        f"{data}/instance-life-cycle": "spot" if life.spot is not None else "on-demand",
        f"{data}/instance-type": instance.instance_type,
        f"{data}/local-ipv4": life.machine.address,
        f"{data}/placement/availability-zone": zone,
        f"{data}/placement/region": life.region,
        "/latest/dynamic/instance-identity/document": json.dumps(
            {
                "accountId": ACCOUNT,
                "availabilityZone": zone,
                "imageId": instance.image_id,
                "instanceId": instance.id,
                "instanceType": instance.instance_type,
                "privateIp": life.machine.address,
                "region": life.region,
            }
        ),
    }
    if instance.public_ip:
        known[f"{data}/public-ipv4"] = str(instance.public_ip)
    if action := life.action():
        known[f"{data}/spot/instance-action"] = json.dumps(action)
        known[f"{data}/spot/termination-time"] = action["time"]
    if life.rebalance is not None:
        notice = {"noticeTime": iso(life.rebalance)}
        known[f"{data}/events/recommendations/rebalance"] = json.dumps(notice)
    return known
