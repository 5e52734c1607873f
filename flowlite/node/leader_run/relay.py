"""Connects the nodes of a gang that node 0 leads, so that a program on one node can start a command on another.

`gang relay ATTEMPT_DIR` is started by the leader's agent (`agent_side.py`) and ends with it. It listens on the leader's
private address and accepts peers that prove the task's secret (`node/protocol/framing.py`), inside TLS where the
rendezvous is encrypted. It only forwards bytes; the exec servers (`exec_server.py`), one on each node, start the
commands. The purposes of a connection, and the first line that a peer sends for each:

    exec    {"node"}     an exec server; is sent {"take": id} for each call, and {"over": true} at the end
    call    {"node"}     asks for a command there: gets {"ok": true} or {"error"}, then a stream to the exec server
    take    {"id"}       the exec server's end of that stream
    wait    {}           waits until all exec servers are connected: gets {"ok": true} or {"error"}

The end is when the exec server of node 0 disconnects: its call has ended, and the other nodes with it.
"""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from ..config.agent_config import AgentConfig, AttemptPaths
from ..protocol.framing import RELAY_ROLE, WireError
from ..protocol.listener import Listener
from ..protocol.stream import Stream
from ..sidecar.process_side import report, wait_for_agent
from ..system.accepting import allow_descriptors
from .exec_framing import carry

_PURPOSES = ("exec", "call", "take", "wait")
_TAKE_SECONDS = 60.0


class _Call:
    """A requested command: the stream of its exec server, once that has connected."""

    def __init__(self) -> None:
        self.taken: Stream | None = None
        self.ended = threading.Event()


class Relay:
    """The connections of one attempt, with one thread for each."""

    def __init__(self, config: AgentConfig, paths: AttemptPaths) -> None:
        self._config = config
        self._door = Listener(config, paths, RELAY_ROLE, _PURPOSES.__contains__)
        self._changed = threading.Condition()
        self._exec_servers: dict[int, Stream] = {}
        self._waiting: dict[int, _Call] = {}
        self._calls = 0
        self._over = False

    def run(self) -> None:
        """Serves until standard input ends."""
        # Each command of a large gang takes four descriptors here.
        allow_descriptors()
        report("serving", port=self._door.open(self._serve))
        wait_for_agent()

    def _serve(self, stream: Stream, purpose: str, address: str) -> None:
        try:
            hello = json.loads(stream.read_line())
            getattr(self, f"_on_{purpose}")(stream, hello)
        except (OSError, WireError, ValueError, KeyError, TypeError) as error:
            sys.stderr.write(f"{purpose} from {address}: {type(error).__name__}: {error}\n")

    # Purposes

    def _on_exec(self, stream: Stream, hello: dict[str, Any]) -> None:
        node = int(hello["node"])
        with self._changed:
            self._exec_servers[node] = stream
            if self._over:
                _tell(stream, over=True)
            self._changed.notify_all()
        stream.network.settimeout(None)
        # It sends nothing more; reading detects its end. If it is killed with a request unread, that is a reset.
        with suppress(OSError):
            while stream.network.recv(4096):
                continue
        with self._changed:
            if self._exec_servers.get(node) is stream:
                del self._exec_servers[node]
            if node == 0:
                self._end()
            self._changed.notify_all()

    def _on_call(self, stream: Stream, hello: dict[str, Any]) -> None:
        node = int(hello["node"])
        if not 0 <= node < self._config.num_nodes:
            _tell(stream, error=f"there is no node {node}; the gang has {self._config.num_nodes}")
            return
        with self._changed:
            there = self._changed.wait_for(
                lambda: node in self._exec_servers or self._over, _TAKE_SECONDS
            )
            if not there or self._over:
                _tell(stream, error=f"node {node} does not take commands ({self._why_not()})")
                return
            self._calls += 1
            number, call = self._calls, _Call()
            self._waiting[number] = call
            _tell(self._exec_servers[node], take=number)
            self._changed.wait_for(
                lambda: call.taken is not None or node not in self._exec_servers, _TAKE_SECONDS
            )
            del self._waiting[number]
        if call.taken is None:
            _tell(stream, error=f"node {node} did not take the command")
            return
        try:
            _tell(stream, ok=True)
            _connect(stream, call.taken)
        finally:
            call.ended.set()

    def _on_take(self, stream: Stream, hello: dict[str, Any]) -> None:
        with self._changed:
            call = self._waiting.get(int(hello["id"]))
            if call is None:
                return
            call.taken = stream
            self._changed.notify_all()
        call.ended.wait()

    def _on_wait(self, stream: Stream, hello: dict[str, Any]) -> None:
        seconds = float(hello["seconds"])
        everyone = set(range(self._config.num_nodes))
        with self._changed:
            self._changed.wait_for(
                lambda: everyone <= set(self._exec_servers) or self._over, seconds
            )
            missing = sorted(everyone - set(self._exec_servers))
        if missing:
            nodes = ", ".join(map(str, missing))
            _tell(stream, error=f"node {nodes} did not come within {seconds:g} s")
        else:
            _tell(stream, ok=True)

    def _why_not(self) -> str:
        return "the task is over" if self._over else f"nothing heard of it for {_TAKE_SECONDS:g} s"

    def _end(self) -> None:
        self._over = True
        for server in self._exec_servers.values():
            try:
                _tell(server, over=True)
            except OSError:
                continue


def _connect(one: Stream, other: Stream) -> None:
    ours, theirs = socket.socketpair()
    back = threading.Thread(target=carry, args=(other, theirs), daemon=True)
    back.start()
    carry(one, ours)
    back.join()


def _tell(stream: Stream, **what: Any) -> None:
    stream.send(json.dumps(what).encode() + b"\n")


def main(directory: str) -> int:
    """Runs `gang relay ATTEMPT_DIR`."""
    paths = AttemptPaths(Path(directory))
    try:
        config = AgentConfig.from_json(paths.config.read_bytes())
        Relay(config, paths).run()
    except (OSError, ValueError) as error:
        report("failed", why=str(error))
        return 1
    sys.stderr.flush()
    # Does not wait for the threads of open connections.
    os._exit(0)
