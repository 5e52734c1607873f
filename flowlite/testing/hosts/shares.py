"""Shares: directories of the cluster that machines mount from the network, each served at an address of its own."""

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
    """What the room can do with shares. A server is plugged into the switch like a machine, and guarded like one."""

    directory: Path
    switch: Switch
    tag: str
    _servers: dict[str, _Server] = field(default_factory=dict)

    def do_serve(self, server: str, share: str) -> str:
        """Serves a share, which is made if it is missing, to nobody yet (`do_admit`). The address of the server."""
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
        """Lets in only some, in the words of nft."""
        if server in self._servers:
            self.switch.guard(server, admitted)

    def do_stop_serving(self, server: str) -> None:
        """The address does not answer any more; the share stays. One that is not there is no error."""
        found = self._servers.pop(server, None)
        if found is not None:
            self._end(server, found)

    def do_remove_share(self, share: str) -> None:
        """A share and all that is in it; it must not be served any more."""
        shutil.rmtree(self.directory / share, ignore_errors=True)

    def do_share_size(self, share: str) -> int:
        """How many bytes the files of a share have."""
        return sum(
            os.lstat(os.path.join(at, name)).st_size
            for at, _, names in os.walk(self.directory / share)
            for name in names
        )

    def clear(self) -> None:
        """No share is there any more."""
        for server in list(self._servers):
            self.do_stop_serving(server)
        shutil.rmtree(self.directory, ignore_errors=True)

    def _end(self, server: str, found: _Server) -> None:
        found.process.kill()
        found.process.wait()
        if found.process.stdout is not None:
            found.process.stdout.close()
        self.switch.unplug(server)
