"""The machines that a cloud in a box rents out: slots of a cluster, each started on an empty disk.

An API server creates one `Machines` in its process. Several servers can share one cluster. A machine starts after a
delay, with new host keys, and runs its startup script as root when it boots.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import socket
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from flowlite.testing.hosts import Cluster, system
from flowlite.testing.hosts.disks import Appearance

OnEnd = Callable[[], None]
OnUp = Callable[[], None]


class NoMachineFree(Exception):
    """Raised when every slot of the cluster is taken."""


@dataclass(frozen=True)
class Machine:
    """One rented machine.

    Attributes:
        name: The name that its owner gave it, such as an instance id.
        slot: The host of the cluster that it runs on.
        address: Its address for other machines.
        public_address: Its address for the laptop, which has no route to `address`.
    """

    name: str
    slot: str
    address: str
    public_address: str


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine: the name that `nvidia-smi` shows, their count, and the memory of each in MiB."""

    name: str
    count: int
    memory: int


@dataclass
class _Kept:
    machine: Machine
    on_end: OnEnd | None
    on_up: OnUp | None
    request: dict[str, Any]
    timer: threading.Timer | None = None
    started: bool = False
    listeners: list[socket.socket] = field(default_factory=list)


class Machines:
    """Boots and ends machines on a running cluster. Thread-safe."""

    def __init__(self, directory: Path, on_close: Callable[[], object] | None = None) -> None:
        """Connects to the cluster. `on_close` is called when the cluster, and with it every machine, is gone."""
        self._on_close = on_close
        self._cluster = Cluster.attach(directory)
        self._lock = threading.RLock()
        self._kept: dict[str, _Kept] = {}
        threading.Thread(target=self._watch, daemon=True).start()

    def boot(
        self,
        name: str,
        *,
        script: str | bytes = "",
        authorized_keys: Sequence[str] = (),
        user: str = "ubuntu",
        hostname: str = "",
        files: Mapping[str, str] | None = None,
        gpus: Gpus | None = None,
        delay: float = 0.0,
        on_end: OnEnd | None = None,
        on_up: OnUp | None = None,
    ) -> Machine:
        """Takes a free slot at once and starts it after `delay` seconds. Raises NoMachineFree.

        Args:
            name: The machine's name for `end` and the other methods, chosen by the owner.
            script: Run as root once sshd listens, with its output on the console. Ignored unless it begins with "#!".
            authorized_keys: The keys that may log in as `user`.
            user: The ordinary user, who may use sudo. Root can log in only after the script has allowed it.
            hostname: The host name; by default the address with dashes.
            files: Text by absolute path, written before anything runs.
            gpus: The GPUs that the driver shows. They cannot compute.
            delay: Seconds until the start; infinity for a machine that never boots.
            on_end: Called in a thread of its own if the machine ends by itself, not after `end`.
            on_up: Called when the machine has started. Its sshd may not listen yet.
        """
        taker = f"{os.getpid()}/{name}/{secrets.token_hex(4)}"
        facts = self._cluster.ask("claim", taker=taker)
        if facts is None:
            raise NoMachineFree(name)
        machine = Machine(name, facts["slot"], facts["address"], facts["public_address"])
        request = {
            "taker": taker,
            "script": script.encode().hex() if isinstance(script, str) else script.hex(),
            "authorized_keys": list(authorized_keys),
            "user": user,
            "hostname": hostname or f"ip-{machine.address.replace('.', '-')}",
            "files": dict(files or {}),
            "gpus": None if gpus is None else asdict(gpus),
        }
        kept = _Kept(machine, on_end, on_up, request)
        with self._lock:
            self._kept[name] = kept
            if delay != float("inf"):
                kept.timer = threading.Timer(delay, self._start, [kept])
                kept.timer.daemon = True
                kept.timer.start()
        return machine

    def _start(self, kept: _Kept) -> None:
        with self._lock:
            if self._kept.get(kept.machine.name) is not kept:
                return
            with contextlib.suppress(ConnectionError):
                self._cluster.ask("boot", host=kept.machine.slot, **kept.request)
            kept.started = True
        if kept.on_up is not None:
            kept.on_up()

    def end(self, name: str) -> None:
        """Ends a machine, started or not, and frees its slot. Peers see their connections close. Idempotent."""
        self._release(name, cut=False)

    def power_cut(self, name: str) -> None:
        """Ends a machine without closing its connections, and frees its slot. `on_end` is not called."""
        self._release(name, cut=True)

    def free(self) -> int:
        """The number of free slots."""
        return int(self._cluster.ask("free"))

    def halt(self, name: str) -> None:
        """Stops a machine without freeing its slot or its disk. `on_end` is not called."""
        with self._lock:
            kept = self._kept[name]
            if kept.timer is not None:
                kept.timer.cancel()
            self._cluster.ask("halt", host=kept.machine.slot, taker=kept.request["taker"])

    def restart(self, name: str) -> None:
        """Starts a stopped machine on its old disk. Its script does not run again."""
        with self._lock:
            kept = self._kept[name]
            self._cluster.ask("boot_again", host=kept.machine.slot, taker=kept.request["taker"])
        if kept.on_up is not None:
            kept.on_up()

    def end_all(self) -> None:
        """Ends every machine of this server."""
        with self._lock:
            names = list(self._kept)
        for name in names:
            self.end(name)

    def find(self, name: str) -> Machine | None:
        """The machine of that name; None if it has no slot."""
        with self._lock:
            kept = self._kept.get(name)
            return kept.machine if kept else None

    def console(self, name: str) -> str:
        """The machine's console output since its start, including that of its script."""
        machine = self.find(name)
        if machine is None:
            return ""
        # It is removed when the machine begins anew, which may be now.
        with contextlib.suppress(FileNotFoundError):
            log = self._cluster.directory / machine.slot / "console.log"
            return log.read_text(errors="replace")
        return ""

    def guard(self, name: str, admitted: Sequence[str]) -> None:
        """Drops packets to a machine, but for replies and what is admitted, as in "ip saddr 10.78.0.1 tcp dport 22"."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None:
                self._cluster.ask(
                    "guard",
                    host=kept.machine.slot,
                    taker=kept.request["taker"],
                    admitted=list(admitted),
                )

    def make_disk(self, disk: str, size: int) -> None:
        """Creates a blank disk of `size` bytes, named by the owner."""
        self._cluster.ask("make_disk", disk=disk, size=size)

    def remove_disk(self, disk: str) -> None:
        """Deletes a disk, which must not be attached, and its contents."""
        self._cluster.ask("remove_disk", disk=disk)

    def attach_disk(self, disk: str, name: str, look: Appearance) -> bool:
        """Attaches a disk to a machine, started or not. Returns False while an earlier machine still has it mounted."""
        with self._lock:
            kept = self._kept.get(name)
        if kept is None:
            raise KeyError(name)
        return bool(
            self._cluster.ask(
                "attach_disk",
                host=kept.machine.slot,
                taker=kept.request["taker"],
                disk=disk,
                device=look.name,
                serial=look.serial,
                links=list(look.links),
            )
        )

    def detach_disk(self, disk: str) -> bool:
        """Detaches a disk. Returns False while it is mounted. A disk that is not attached is no error."""
        return bool(self._cluster.ask("detach_disk", disk=disk))

    def serve(self, server: str, share: str) -> str:
        """Starts a file server for a share and returns its address. Nothing can reach it before `admit`."""
        return str(self._cluster.ask("serve", server=server, share=share))

    def admit(self, server: str, admitted: Sequence[str]) -> None:
        """Sets which packets reach a file server, in the syntax that `guard` takes."""
        self._cluster.ask("admit", server=server, admitted=list(admitted))

    def stop_serving(self, server: str) -> None:
        """Ends a file server. Its share is kept."""
        self._cluster.ask("stop_serving", server=server)

    def remove_share(self, share: str) -> None:
        """Deletes a share and its files."""
        self._cluster.ask("remove_share", share=share)

    def share_size(self, share: str) -> int:
        """The total size of a share's files in bytes."""
        return int(self._cluster.ask("share_size", share=share))

    def write(self, name: str, path: str, text: str | None) -> None:
        """Writes a file on a running machine atomically. None deletes the file."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None and kept.started:
                with contextlib.suppress(RuntimeError):
                    self._cluster.ask("write", host=kept.machine.slot, path=path, text=text)

    def listen(self, name: str, address: str, port: int) -> socket.socket:
        """A listening socket on an address that only the machine itself can reach. Closed when the machine ends."""
        with self._lock:
            kept = self._kept[name]
            with self._inside(self._network_of(kept.machine.slot)):
                if not address.startswith("127."):
                    system.configure("lo:1", address, "255.255.255.255")
                listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
                listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                listener.bind((address, port))
                listener.listen(64)
            kept.listeners.append(listener)
        return listener

    def listen_on_laptop(self, port: int = 0) -> socket.socket:
        """A listening socket on the laptop's loopback address. This process stays outside of the laptop."""
        with self._inside(self._cluster.laptop.network):
            listener = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(("127.0.0.1", port))
            listener.listen(256)
        return listener

    def laptop_connections(self) -> str:
        """The laptop's table of TCP connections, as /proc/net/tcp has it."""
        with self._inside(self._cluster.laptop.network):
            return Path("/proc/thread-self/net/tcp").read_text()

    def _network_of(self, slot: str) -> str:
        facts = self._cluster.ask("facts")
        return f"/proc/{facts['room']}/fd/{facts['networks'][slot]}"

    @contextmanager
    def _inside(self, network: str) -> Iterator[None]:
        fd = os.open(network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with system.inside_network(fd):
                yield
        finally:
            os.close(fd)

    def _release(self, name: str, cut: bool) -> None:
        with self._lock:
            kept = self._kept.pop(name, None)
            if kept is None:
                return
            if kept.timer is not None:
                kept.timer.cancel()
            for listener in kept.listeners:
                with contextlib.suppress(OSError):
                    listener.shutdown(socket.SHUT_RDWR)
                listener.close()
            with contextlib.suppress(ConnectionError):
                self._cluster.ask(
                    "release", host=kept.machine.slot, taker=kept.request["taker"], cut=cut
                )

    def _watch(self) -> None:
        """Reads from the room which machines have ended, until the room is gone."""
        channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        channel.connect(str(self._cluster.directory / "room.sock"))
        channel.sendall(b'{"do": "events"}\n')
        for line in channel.makefile("r"):
            slot = json.loads(line).get("ended")
            if slot is not None:
                threading.Thread(target=self._ended, args=[slot], daemon=True).start()
        if self._on_close is not None:
            self._on_close()

    def _ended(self, slot: str) -> None:
        with self._lock:
            kept = next((k for k in self._kept.values() if k.machine.slot == slot), None)
        if kept is not None and kept.on_end is not None:
            kept.on_end()
