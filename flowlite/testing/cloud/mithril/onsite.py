"""Mithril on real machines, each of which reaches the API at the same URL as the laptop."""

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
# The interval in seconds at which a server checks whether it should end.
_POLL = 0.1


class Site:
    """Real machines that can reach the API.

    Attributes:
        gate: The API, once it exists.
        port: The API's port on the laptop, once it listens.
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
        """Starts a machine. One that powers itself off keeps its slot."""

        def on_up() -> None:
            # The machine may have ended already.
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
        """Ends a machine without notice."""
        self._withdraw_api(name)
        self._machines.power_cut(name)

    def console(self, name: str) -> str:
        """The machine's console output."""
        return self._machines.console(name)

    def place(self, name: str) -> str:
        """The name of the machine's slot."""
        found = self._machines.find(name)
        return found.slot if found else ""

    def write(self, name: str, path: str, text: str | None) -> None:
        """Writes or deletes a file on a machine. If the machine is not up yet, it is written at the start."""
        self._files.setdefault(name, {})[path] = text
        self._machines.write(name, path, text)

    def make_disk(self, disk: str, size: int) -> None:
        """Creates a blank disk."""
        self._machines.make_disk(disk, size)

    def attach_disk(self, disk: str, name: str, device: str) -> bool:
        """Attaches a disk to a machine. Returns True if the machine has ended."""
        try:
            return self._machines.attach_disk(disk, name, Appearance(device))
        except KeyError:
            return True

    def remove_disk(self, disk: str) -> None:
        """Deletes a disk."""
        self._machines.remove_disk(disk)


class OnsiteMithril(Mithril):
    """The API of a box."""

    def __init__(self, machines: Machines, orders: Orders, capacity: int) -> None:
        self._site = Site(machines)
        super().__init__(self._site, capacity)
        self._site.gate = Gate(self, orders, machines)

    def do_port(self, port: int) -> None:
        """Sets the API's port on the laptop, so that machines reach it at the same URL."""
        self._site.port = port
