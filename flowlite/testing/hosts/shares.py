"""Shares: directories of the cluster that machines mount over the network, each served at its own address."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

from flowlite.testing.hosts import file_server, system
from flowlite.testing.hosts.network import Switch, served_address_of


@dataclass
class _Server:
    address: str
    share: str
    process: subprocess.Popen[str]


@dataclass
class Shares:
    """The room's operations on shares. A server is connected to the switch and filtered like a machine."""

    directory: Path
    switch: Switch
    tag: str
    _servers: dict[str, _Server] = field(default_factory=dict)

    def do_serve(self, server: str, share: str) -> str:
        """Serves a share, creating it if needed, and returns the server's address. `do_admit` lets machines in."""
        taken = {each.address for each in self._servers.values()}
        number, address = next(
            (n, a) for n, a in enumerate(map(served_address_of, range(60))) if a not in taken
        )
        place = self.directory / share
        place.mkdir(parents=True, exist_ok=True)
        self.switch.plug([(server, f"share{number}", address)], self.tag)
        self.switch.guard(server, [])
        with system.inside_network(self.switch.ports[server].network):
            process = subprocess.Popen(
                [sys.executable, "-m", file_server.__name__, address, str(file_server.PORT), place],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                text=True,
                preexec_fn=system.die_with_parent,
            )
        self._servers[server] = _Server(address, share, process)
        assert process.stdout is not None
        if not process.stdout.readline():
            self.do_stop_serving(server)
            raise RuntimeError(f"the file server of {share} does not start")
        return address

    def do_admit(self, server: str, admitted: list[str]) -> None:
        """Sets which packets reach a server, in nft's syntax."""
        if server in self._servers:
            self.switch.guard(server, admitted)

    def do_stop_serving(self, server: str) -> None:
        """Ends a server and keeps its share. A server that does not exist is no error."""
        found = self._servers.pop(server, None)
        if found is not None:
            self._end(server, found)

    def do_remove_share(self, share: str) -> None:
        """Deletes a share, which must not be served any more, and its files."""
        shutil.rmtree(self.directory / share, ignore_errors=True)

    def do_share_size(self, share: str) -> int:
        """The total size of a share's files in bytes."""
        return sum(
            os.lstat(os.path.join(at, name)).st_size
            for at, _, names in os.walk(self.directory / share)
            for name in names
        )

    def clear(self) -> None:
        """Removes all shares."""
        for server in list(self._servers):
            self.do_stop_serving(server)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, server: str, found: _Server) -> None:
        found.process.kill()
        found.process.wait()
        if found.process.stdout is not None:
            found.process.stdout.close()
        self.switch.unplug(server)
