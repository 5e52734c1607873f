"""The process that holds a cluster: it runs in the switch's network namespace and starts the hosts.

    python -m flowlite.testing.hosts.room DIRECTORY LOCK

The kernel kills everything that the room has started when it ends, and the room ends with its owner. So nothing is
left, even if the owner was killed. If the room itself is killed, its directory and control groups remain, and the next
cluster removes them (`sweep.py`). LOCK is the descriptor of the lock that shows whether the room is alive.

It serves requests on the socket DIRECTORY/room.sock, one JSON object per line, one request at a time.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from types import FrameType
from typing import Any

from flowlite.testing.hosts import cgroups, sweep, system
from flowlite.testing.hosts.disks import Disks
from flowlite.testing.hosts.machine import Machine
from flowlite.testing.hosts.network import (
    LAPTOP,
    LAPTOP_ADDRESS,
    LAPTOP_PUBLIC_ADDRESS,
    Switch,
)
from flowlite.testing.hosts.root import Identity
from flowlite.testing.hosts.shares import Shares
from flowlite.testing.hosts.slot import Slot, Slots


class Room:
    """Everything that belongs to one cluster."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.settings: dict[str, Any] = json.loads((directory / "settings.json").read_text())
        self.tag: str = self.settings["tag"]
        system.unshare(system.NEWNS | system.NEWNET)
        system.mount("none", "/", flags=system.RECURSIVE | system.PRIVATE)
        self.group = cgroups.make(self.tag)
        self.switch = Switch(_fork)
        self.machines = [self._machine(entry) for entry in self.settings["hosts"]]
        slots = [m for m in self.machines if isinstance(m, Slot)]
        self.slots = Slots(slots, self.switch)
        self.disks = Disks(directory / "disks", self.slots.find)
        self.shares = Shares(directory / "shares", self.switch, self.tag)

    def _machine(self, entry: dict[str, Any]) -> Machine:
        home = self.directory / entry["name"]
        identity = Identity(
            name=entry["name"],
            directory=home,
            disk=home / "disk",
            shared=self.directory / "shared",
            keep=tuple(self.settings["keep"]),
            python=entry["python"],
            path=tuple(entry["path"]),
            sshd=entry["sshd"],
        )
        arguments = {
            "identity": identity,
            "address": entry["address"],
            "port": entry["port"],
            "group": cgroups.make(f"{self.tag}/{entry['name']}"),
            "disk_size": self.settings["disk"],
            "authorized_key": (self.directory / "key.pub").read_text(),
        }
        if "public_address" in entry:
            return Slot(public_address=entry["public_address"], **arguments)
        return Machine(**arguments)

    @property
    def hosts(self) -> list[Machine]:
        """The hosts, without the slots."""
        return [m for m in self.machines if not isinstance(m, Slot)]

    def up(self) -> None:
        """Creates cables, disks and hosts."""
        laptop = (LAPTOP, "laptop", LAPTOP_ADDRESS)
        self.switch.plug([laptop], self.tag, {LAPTOP: LAPTOP_PUBLIC_ADDRESS})
        if self.hosts:
            self.switch.plug([m.cable for m in self.hosts], self.tag)
        self.slots.plug(self.tag)
        self.do_start([m.name for m in self.hosts], fresh=True)

    def down(self) -> None:
        """Removes everything, and ends the processes on the laptop."""
        sweep.end_all_in_network(self.switch.ports[LAPTOP].network, spare=self.settings["owner"])
        for machine in self.machines:
            machine.kill()
            machine.unmount()
            cgroups.remove(machine.group)
        self.shares.clear()
        self.disks.clear()
        for name in list(self.switch.ports):
            self.switch.unplug(name)
        cgroups.remove(self.group)
        shutil.rmtree(self.directory, ignore_errors=True)

    def answer(self, request: dict[str, Any]) -> object:
        """Answers a request with the method `do_NAME` of this class, of one of its parts, or of the named host."""
        name, host = request.pop("do"), request.pop("host", None)
        for part in (self.slots, self.disks, self.shares):
            if hasattr(part, f"do_{name}"):
                extra = {} if host is None else {"name": host}
                return getattr(part, f"do_{name}")(**extra, **request)
        if host is None or hasattr(self, f"do_{name}"):
            extra = {} if host is None else {"name": host}
            return getattr(self, f"do_{name}")(**extra, **request)
        return getattr(self._find(host), f"do_{name}")(**request)

    def _find(self, name: str) -> Machine:
        return next(m for m in self.machines if m.name == name)

    def do_facts(self) -> dict[str, Any]:
        """What a client needs to connect to the hosts."""
        return {
            "room": os.getpid(),
            "laptop": self.switch.ports[LAPTOP].network,
            "hosts": {m.name: None if m.ended() else m.pid for m in self.machines},
            "groups": {m.name: str(m.group) for m in self.machines},
            "networks": {name: port.network for name, port in self.switch.ports.items()},
        }

    def do_start(self, names: list[str], fresh: bool = False) -> None:
        """Starts hosts that are not running, on their old disk or an empty one, and waits for their sshd."""
        chosen = [self._find(name) for name in names]
        for machine in chosen:
            if machine.name not in self.switch.ports:
                self.switch.plug([machine.cable], self.tag)
            if machine.ended():
                machine.start(self.switch.ports[machine.name].network, fresh)
        for machine in chosen:
            machine.wait_until_up()

    def do_kill(self, names: list[str]) -> None:
        """Kills all processes of hosts. Their network stacks remain and reset existing connections."""
        for name in names:
            self._find(name).kill()

    def do_power_cut(self, names: list[str]) -> None:
        """Ends hosts without closing their connections."""
        for name in names:
            if name in self.switch.ports:
                self.switch.partition(name, cut=True)
            self._find(name).kill()
            if name in self.switch.ports:
                self.switch.unplug(name)

    def do_partition(self, name: str, cut: bool) -> None:
        """Drops all frames of a machine."""
        self.switch.partition(name, cut=cut)

    def do_block(self, name: str, addresses: list[str]) -> None:
        """Drops the frames between a machine and some others."""
        self.switch.block(name, addresses)

    def do_delay(self, name: str, ms: float, loss: float) -> None:
        """Makes a machine's cable slow and lossy."""
        self.switch.delay(name, ms, loss)

    def do_silence(self, name: str) -> str:
        """Returns an address that swallows what this machine sends to it."""
        return self.switch.silence(name)

    def do_reset(self) -> None:
        """Restores the state after `up`: hosts with empty disks, no faults, and nothing running on the laptop."""
        sweep.end_all_in_network(self.switch.ports[LAPTOP].network, spare=self.settings["owner"])
        names = [m.name for m in self.hosts]
        self.do_kill(names)
        self.slots.release_all()
        self.shares.clear()
        self.disks.clear()
        for name in (LAPTOP, *names):
            if name not in self.switch.ports:
                continue
            self.switch.delay(name, 0, 0)
            self.switch.partition(name, cut=False)
            self.switch.block(name, [])
        for machine in self.machines:
            machine.forget_changes()
        shared = self.directory / "shared"
        for entry in shared.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        self.do_start(names, fresh=True)


def _fork(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid:
        return pid
    try:
        system.die_with_parent()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        run()
    finally:
        os._exit(1)


class Server:
    """Serves the requests of the owner and of the command line."""

    def __init__(self, room: Room) -> None:
        self._room = room
        owner: int = room.settings["owner"]
        self._owner = os.pidfd_open(owner) if owner else None
        self._ended = False
        self._wake, wake = os.pipe()
        for end in (self._wake, wake):
            os.set_blocking(end, False)
        signal.set_wakeup_fd(wake)
        signal.signal(signal.SIGTERM, self._end)
        # Ignored, but its arrival interrupts the wait in `serve`.
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(room.directory / "room.sock"))
        self._listener.listen(64)
        self._buffers: dict[socket.socket, bytes] = {}
        self._listeners: list[socket.socket] = []

    def _end(self, number: int, frame: FrameType | None) -> None:
        self._ended = True

    def serve(self) -> None:
        """Serves until it is told to end or the owner is gone."""
        while not self._ended:
            sources: list[Any] = [self._wake, self._listener, *self._buffers]
            if self._owner is not None:
                sources.append(self._owner)
            for source in select.select(sources, [], [])[0]:
                if source is self._listener:
                    self._buffers[self._listener.accept()[0]] = b""
                elif source == self._owner:
                    self._ended = True
                elif source == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._wake, 4096)
                elif isinstance(source, socket.socket):
                    self._read(source)
            self._tell()

    def _tell(self) -> None:
        for name in self._room.slots.ended():
            for listener in list(self._listeners):
                try:
                    listener.sendall(json.dumps({"ended": name}).encode() + b"\n")
                except OSError:
                    self._listeners.remove(listener)

    def _read(self, client: socket.socket) -> None:
        try:
            came = client.recv(65536)
        except OSError:
            came = b""
        if not came:
            del self._buffers[client]
            if client in self._listeners:
                self._listeners.remove(client)
            client.close()
            return
        *lines, self._buffers[client] = (self._buffers[client] + came).split(b"\n")
        for line in lines:
            request = json.loads(line)
            if request["do"] == "events":
                self._listeners.append(client)
                continue
            reply = self._answer(request)
            try:
                client.sendall(json.dumps(reply).encode() + b"\n")
            except OSError:
                return

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "down":
            self._room.down()
            self._ended = True
            return {"value": None}
        try:
            return {"value": self._room.answer(request)}
        except Exception as error:
            return {"error": f"{error}", "trace": traceback.format_exc()}


def main() -> None:
    """Starts the cluster, reports that on stdout, and serves it."""
    directory = Path(sys.argv[1])
    os.set_inheritable(int(sys.argv[2]), False)
    room = None
    try:
        try:
            room = Room(directory)
            server = Server(room)
            room.up()
        except Exception:
            _report(traceback.format_exc())
            return
        _report("up")
        server.serve()
    finally:
        if room is not None and directory.exists():
            room.down()


def _report(text: str) -> None:
    # The owner may be gone already, and the cleanup must still run.
    with contextlib.suppress(OSError):
        sys.stdout.write(json.dumps(text) + "\n")
        sys.stdout.flush()
    # Release the owner's pipes, so that a reader of its output gets EOF when the owner ends.
    for number in (1, 2):
        os.dup2(os.open(os.devnull, os.O_RDWR), number)


if __name__ == "__main__":
    main()
