"""Mithril on real machines. Each of them reaches the API under the same URL as the laptop does."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING

from flowlite.testing.cloud.machines import Gpus, Machine, Machines
from flowlite.testing.cloud.mithril.service import Mithril
from flowlite.testing.cloud.orders import Orders
from flowlite.testing.cloud.serving import Gate, http_server
from flowlite.testing.hosts.disks import Appearance

if TYPE_CHECKING:
    from werkzeug.serving import BaseWSGIServer

_LOOPBACK = "127.0.0.1"
# Seconds within which a server notices that it is to end.
_POLL = 0.1


class Site:
    """The machines, each with a way to the API.

    Attributes:
        gate: The API, once it is there.
        port: Where the laptop reaches it, once it listens.
    """

    def __init__(self, machines: Machines) -> None:
        self._machines = machines
        self._servers: dict[str, BaseWSGIServer] = {}
        self._files: dict[str, dict[str, str | None]] = {}
        self.gate: Gate | None = None
        self.port = 0

    def boot(
        self,
        name: str,
        *,
        script: str,
        authorized_keys: Sequence[str],
        user: str,
        hostname: str,
        gpus: Gpus,
        delay: float,
    ) -> Machine:
        """A fresh machine; one that powers itself off keeps its place."""

        def on_up() -> None:
            # It may have ended already.
            with contextlib.suppress(KeyError, OSError):
                self._offer_api(name)
            for path, text in self._files.get(name, {}).items():
                self._machines.write(name, path, text)

        return self._machines.boot(
            name,
            script=script,
            authorized_keys=authorized_keys,
            user=user,
            hostname=hostname,
            gpus=gpus,
            delay=delay,
            on_up=on_up,
        )

    def _offer_api(self, name: str) -> None:
        if self.gate is None or not self.port:
            return
        listener = self._machines.listen(name, _LOOPBACK, self.port)
        server = self._servers[name] = http_server("mithril", self.gate, listener)
        threading.Thread(target=server.serve_forever, args=[_POLL], daemon=True).start()

    def _withdraw_api(self, name: str) -> None:
        server = self._servers.pop(name, None)
        if server is not None:
            server.shutdown()
            server.server_close()

    def end(self, name: str) -> None:
        """Ends a machine."""
        self._withdraw_api(name)
        self._machines.end(name)

    def power_cut(self, name: str) -> None:
        """Ends it without a word."""
        self._withdraw_api(name)
        self._machines.power_cut(name)

    def console(self, name: str) -> str:
        """What it has printed."""
        return self._machines.console(name)

    def place(self, name: str) -> str:
        """The slot that it has."""
        found = self._machines.find(name)
        return found.slot if found else ""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Puts a file on it, or takes it away; on one that is about to start, when it has."""
        self._files.setdefault(name, {})[path] = text
        self._machines.write(name, path, text)

    def make_disk(self, disk: str, size: int) -> None:
        """A blank disk."""
        self._machines.make_disk(disk, size)

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """Has it appear on a machine. One that has ended meanwhile needs it no more."""
        try:
            return self._machines.attach_disk(disk, name, Appearance(device))
        except KeyError:
            return True

    def remove_disk(self, disk: str) -> None:
        """The end of it."""
        self._machines.remove_disk(disk)


class OnsiteMithril(Mithril):
    """The API of a box."""

    def __init__(self, machines: Machines, orders: Orders, capacity: int) -> None:
        self._site = Site(machines)
        super().__init__(self._site, capacity)
        self._site.gate = Gate(self, orders, machines)

    def do_port(self, port: int) -> None:
        """Says where the laptop reaches the API, so that the machines do under the same URL."""
        self._site.port = port
