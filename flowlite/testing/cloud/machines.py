"""The machines that a cloud in a box rents out: slots of a cluster, each started on an empty disk.

`Machines` belongs in the process of an API server; several servers can share one cluster. A machine starts some time
after it was asked for, as a stranger with host keys of its own, and runs its script as root when it boots.
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
    """Every slot of the cluster is taken."""


@dataclass(frozen=True)
class Machine:
    """One rented machine.

    Attributes:
        name: What its owner calls it, such as an instance id.
        slot: The host of the cluster that it is made of.
        address: Where other machines reach it.
        public_address: Where the laptop reaches it; the laptop has no way to `address`.
    """

    name: str
    slot: str
    address: str
    public_address: str


@dataclass(frozen=True)
class Gpus:
    """The GPUs of a machine, by the name that `nvidia-smi` has for them; MiB of memory each."""

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
    """Boots and ends machines on a cluster that is up. Safe to use from many threads."""

    def __init__(self, directory: Path, on_close: Callable[[], object] | None = None) -> None:
        """`on_close` is called when the cluster is gone, and with it every machine."""
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
            name: Of the owner's choice; `end` and the others take it.
            script: Run as root once sshd listens, output on the console; only if it begins with "#!".
            authorized_keys: Who may log in as `user`.
            user: The ordinary user, who may use sudo. Root's login is closed until the script opens it.
            hostname: The address with dashes if none is given.
            files: Text by absolute path, there before anything runs.
            gpus: What its driver is to show; they cannot compute.
            delay: infinity for a machine that never boots.
            on_end: Called if the machine ends by itself, from a thread of its own; not after `end`.
            on_up: Called when the machine has been started, while its sshd may still be about to listen.
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
        """Ends a machine, started or not, and frees its slot. Whoever is connected is told. Again is no error."""
        self._release(name, cut=False)

    def power_cut(self, name: str) -> None:
        """Ends a machine without a word to anybody, and frees its slot. `on_end` is not called."""
        self._release(name, cut=True)

    def free(self) -> int:
        """How many more machines there are."""
        return int(self._cluster.ask("free"))

    def halt(self, name: str) -> None:
        """Stops a machine, which keeps its slot and its disk. `on_end` is not called."""
        with self._lock:
            kept = self._kept[name]
            if kept.timer is not None:
                kept.timer.cancel()
            self._cluster.ask("halt", host=kept.machine.slot, taker=kept.request["taker"])

    def restart(self, name: str) -> None:
        """Starts a machine again that does not run, on the disk it had; its script does not run again."""
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
        """The machine of that name, if it has a slot."""
        with self._lock:
            kept = self._kept.get(name)
            return kept.machine if kept else None

    def console(self, name: str) -> str:
        """What the machine has printed since it was started, its script's output included."""
        machine = self.find(name)
        if machine is None:
            return ""
        log = self._cluster.directory / machine.slot / "console.log"
        return log.read_text(errors="replace") if log.exists() else ""

    def guard(self, name: str, admitted: Sequence[str]) -> None:
        """Lets nothing reach a machine but answers and what is admitted, such as "ip saddr 10.78.0.1 tcp dport 22"."""
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
        """A blank disk of so many bytes, under a name of the owner's choice."""
        self._cluster.ask("make_disk", disk=disk, size=size)

    def remove_disk(self, disk: str) -> None:
        """A disk that is attached to no machine, and all that is on it."""
        self._cluster.ask("remove_disk", disk=disk)

    def attach_disk(self, disk: str, name: str, look: Appearance) -> bool:
        """Has a disk appear on a machine, started or not; False as long as an earlier one still has it mounted."""
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
        """Takes a disk off its machine; False as long as it is mounted there. One that nobody has is no error."""
        return bool(self._cluster.ask("detach_disk", disk=disk))

    def serve(self, server: str, share: str) -> str:
        """Has a file server of that name serve a directory, to nobody at first (`admit`); its address."""
        return str(self._cluster.ask("serve", server=server, share=share))

    def admit(self, server: str, admitted: Sequence[str]) -> None:
        """Who reaches a file server, in the words that `guard` takes."""
        self._cluster.ask("admit", server=server, admitted=list(admitted))

    def stop_serving(self, server: str) -> None:
        """Ends a file server. What it served stays."""
        self._cluster.ask("stop_serving", server=server)

    def remove_share(self, share: str) -> None:
        """The end of what was served, and of all that is in it."""
        self._cluster.ask("remove_share", share=share)

    def share_size(self, share: str) -> int:
        """Bytes in the files of a share."""
        return int(self._cluster.ask("share_size", share=share))

    def write(self, name: str, path: str, text: str | None) -> None:
        """Puts a file on a machine that runs, whole or not at all; None takes it away."""
        with self._lock:
            kept = self._kept.get(name)
            if kept is not None and kept.started:
                with contextlib.suppress(RuntimeError):
                    self._cluster.ask("write", host=kept.machine.slot, path=path, text=text)

    def listen(self, name: str, address: str, port: int) -> socket.socket:
        """A listening socket on an address that only the machine itself reaches; closed when the machine ends."""
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
        """A listening socket on the laptop's loopback address, while this process is not on the laptop."""
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
        """Hears from the room who ended, as long as there is one."""
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
