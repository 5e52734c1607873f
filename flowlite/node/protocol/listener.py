"""A node's listener for connections of the other nodes outside of the rendezvous.

Only peers that prove the task's secret are served.
"""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable
from typing import Protocol

from ..config.agent_config import AttemptPaths
from ..system.accepting import accept, start_thread
from .framing import Hello, WireError
from .stream import Stream, admit

_MOST_OPENING = 256


class GangFacts(Protocol):
    """What a listener knows of the gang that it serves. An `AgentConfig` has it all."""

    task: str
    attempt: int
    roster: list[str]
    bind: str
    tls: bool


class Listener:
    """Listens on the node's private address, with one thread per connection and a limit of 256 unauthenticated ones."""

    def __init__(
        self, config: GangFacts, paths: AttemptPaths, role: str, known: Callable[[str], bool]
    ) -> None:
        """
        Args:
            role: The role of the peers of this service (`framing.Hello`).
            known: Whether what a member asks for, such as a volume, is served here.
        """
        self._config = config
        self._known = known
        self._expected = Hello(config.task, role, "", config.attempt)
        self._secret = paths.secret.read_bytes()
        self._opening = threading.Semaphore(_MOST_OPENING)
        self._new_tls = None
        if config.tls:
            from . import tls

            self._new_tls = tls.server(paths.certificate, paths.certificate_key)

    def open(self, serve: Callable[[Stream, str, str], None]) -> int:
        """Starts to listen and returns the port.

        Args:
            serve: Called in a thread of its own with the stream, what it is for, and the address it comes from.
        """
        family = socket.AF_INET6 if ":" in self._config.bind else socket.AF_INET
        listener = socket.create_server((self._config.bind, 0), family=family, backlog=1024)
        threading.Thread(target=self._accept, args=(listener, serve), daemon=True).start()
        return int(listener.getsockname()[1])

    def _accept(self, listener: socket.socket, serve: Callable[[Stream, str, str], None]) -> None:
        while True:
            accepted = accept(listener)
            if accepted is None:
                continue
            network, address = accepted
            if not self._opening.acquire(blocking=False):
                network.close()
                continue
            if not start_thread(self._let_in, network, address[0], serve):
                self._opening.release()
                network.close()
                why = "this process can start no more threads; see `ulimit -u` and pids.max of its cgroup"
                sys.stderr.write(f"a connection from {address[0]} was turned away: {why}\n")

    def _let_in(
        self, network: socket.socket, address: str, serve: Callable[[Stream, str, str], None]
    ) -> None:
        with network:
            try:
                network.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                network.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                stream = Stream(network, self._new_tls() if self._new_tls else None)
                what = admit(
                    stream,
                    self._secret,
                    self._expected,
                    lambda peer, what: peer in self._config.roster and self._known(what),
                )
            except (OSError, WireError) as error:
                sys.stderr.write(f"a connection from {address} was turned away: {error}\n")
                return
            finally:
                self._opening.release()
            serve(stream, what, address)
