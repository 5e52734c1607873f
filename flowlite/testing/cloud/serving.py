"""The process of an API server: HTTP on the laptop's loopback address, and a control socket for the box.

    python -m flowlite.testing.cloud.ec2 DIRECTORY      (DIRECTORY is the cluster's)

The server prints its port as a JSON object on standard output. It ends when its standard input is closed, so it
does not outlive its owner, even one that was killed.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
import traceback
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from flowlite.state import clock
from flowlite.testing.cloud.fault import AFTER, BEFORE, Fault
from flowlite.testing.cloud.fault_injection import Habits, Unkindness
from flowlite.testing.cloud.machines import Machines
from flowlite.testing.cloud.orders import Orders, kill

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

Environ = dict[str, Any]
Start = Callable[..., Any]
Reply = tuple[int, list[tuple[str, str]], bytes]
"""Status, headers, body."""


class Service(Protocol):
    """An API. The box can call its methods named `do_NAME`, with arguments that are valid JSON."""

    def read(self, environ: Environ, body: bytes) -> tuple[str, dict[str, Any]] | None:
        """The action and the parameters of a request; None if it is no call of the API."""

    def answer(self, environ: Environ, body: bytes) -> Reply:
        """Carries out a request."""

    def refuse(self, action: str, fault: Fault) -> Reply:
        """An error reply in the cloud's format."""

    def do_reset(self) -> None:
        """Removes all instances and faults."""

    def do_lag(self, seconds: float) -> None:
        """Makes listings show the state of `seconds` ago."""

    @property
    def habits(self) -> Habits:
        """The faults that `Unkindness` may inject."""


class Connections(Protocol):
    """Access to the clients' side of connections."""

    def laptop_connections(self) -> str:
        """The TCP connections of the clients' network, in the format of /proc/net/tcp."""


class Gate:
    """A WSGI application in front of a service, which records calls and injects faults."""

    def __init__(
        self,
        service: Service,
        orders: Orders,
        machines: Connections,
        kill: Callable[[Fault, tuple[str, int], Callable[[], str]], None] = kill,
    ) -> None:
        self._service = service
        self._orders = orders
        self._machines = machines
        self._kill = kill

    def __call__(self, environ: Environ, start: Start) -> Iterable[bytes]:
        length = int(environ.get("CONTENT_LENGTH") or 0)
        body = environ["wsgi.input"].read(length) if length else b""
        status, headers, content = self._reply(environ, body)
        headers = [(k, v) for k, v in headers if k.lower() != "content-length"]
        start(
            f"{status} {'OK' if status < 400 else 'Error'}",
            [*headers, ("Content-Length", str(len(content)))],
        )
        return [content]

    def _reply(self, environ: Environ, body: bytes) -> Reply:
        call = self._service.read(environ, body)
        if call is None:
            return self._service.answer(environ, body)
        action, parameters = call
        if (lag := self._orders.lag()) is not None:
            self._service.do_lag(lag)
        self._orders.note(action, parameters)
        fault = self._orders.take(action, parameters, BEFORE)
        if fault is not None and (refusal := self._suffer(environ, action, fault)):
            return refusal
        reply = self._service.answer(environ, body)
        fault = self._orders.take(action, parameters, AFTER)
        if fault is not None and (refusal := self._suffer(environ, action, fault)):
            return refusal
        return reply

    def _suffer(self, environ: Environ, action: str, fault: Fault) -> Reply | None:
        if fault.kill:
            client = (environ["REMOTE_ADDR"], int(environ["REMOTE_PORT"]))
            self._kill(fault, client, self._machines.laptop_connections)
            if fault.when == BEFORE:
                raise ConnectionAbortedError("the caller died before it had said all")
        if fault.hang:
            clock.sleep(fault.hang)
            raise ConnectionAbortedError("ordered to say nothing")
        if fault.late:
            clock.sleep(fault.late)
        if not fault.code and not fault.status:
            return None
        status, headers, content = self._service.refuse(action, fault)
        if fault.retry_after is not None:
            headers = [*headers, ("Retry-After", f"{fault.retry_after:g}")]
        return status, headers, content


def http_server(name: str, application: Gate, listener: socket.socket) -> BaseWSGIServer:
    """An HTTP server on a listening socket. Run its `serve_forever` in a thread."""
    from werkzeug.serving import WSGIRequestHandler, make_server

    class Handler(WSGIRequestHandler):
        """Logs errors only. Connections dropped by clients are not errors."""

        protocol_version = "HTTP/1.1"

        def connection_dropped(self, error: BaseException, environ: Any = None) -> None:
            # Otherwise the client would wait for a reply on its keep-alive connection.
            self.close_connection = True

        def log(self, type: str, message: str, *args: Any) -> None:
            if type == "error":
                sys.stderr.write(f"{name}: {message % args if args else message}\n")

    address, port = listener.getsockname()
    return make_server(
        address, port, application, threaded=True, request_handler=Handler, fd=listener.fileno()
    )


def serve(
    name: str,
    build: Callable[[Machines, Orders], Service],
    machines: Machines | None = None,
) -> None:
    """The main program of an API server. `machines` are those of the cluster by default."""
    directory, orders = Path(sys.argv[1]), Orders()
    if machines is None:
        # The server ends with its cluster.
        machines = Machines(directory, on_close=lambda: os._exit(0))
    service = build(machines, orders)
    listener = machines.listen_on_laptop()
    server = http_server(name, Gate(service, orders, machines), listener)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    box = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    box.bind(str(directory / f"{name}.sock"))
    box.listen(16)
    threading.Thread(target=take_orders, args=(box, service, orders), daemon=True).start()
    sys.stdout.write(json.dumps({"port": listener.getsockname()[1]}) + "\n")
    sys.stdout.flush()
    while sys.stdin.buffer.read(4096):
        pass
    os._exit(0)


def take_orders(listener: socket.socket, service: Service, orders: Orders) -> None:
    """Serves control connections, each in its own thread, with one JSON object per line."""
    while True:
        client = listener.accept()[0]
        threading.Thread(target=_take_from, args=(client, service, orders), daemon=True).start()


def _take_from(client: socket.socket, service: Service, orders: Orders) -> None:
    with client, client.makefile("r") as lines:
        for line in lines:
            request = json.loads(line)
            try:
                value = obey(request.pop("do"), request, service, orders)
                reply: dict[str, Any] = {"value": value}
            except Exception as error:
                reply = {
                    "error": f"{type(error).__name__}: {error}",
                    "trace": traceback.format_exc(),
                }
            client.sendall(json.dumps(reply).encode() + b"\n")


def _be_unkind(seed: int | None, service: Service, orders: Orders) -> None:
    orders.be_unkind(None if seed is None else Unkindness(seed, service.habits))
    if seed is None:
        service.do_lag(0.0)


def obey(what: str, arguments: Mapping[str, Any], service: Service, orders: Orders) -> Any:
    """Carries out one request of the box."""
    if what == "fault":
        return orders.order(**arguments)
    if what == "clear_faults":
        return orders.clear()
    if what == "unkind":
        return _be_unkind(arguments["seed"], service, orders)
    if what == "calls":
        return orders.calls
    if what == "reset":
        orders.forget()
    return getattr(service, f"do_{what}")(**arguments)
