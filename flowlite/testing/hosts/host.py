"""The handles with which a test controls a host and the laptop."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flowlite.testing.hosts import network
from flowlite.testing.hosts.machine import enter
from flowlite.testing.hosts.root import PATH, USER, USER_ID


class Room(Protocol):
    """The process that holds the hosts (`room.py`), as seen from a handle."""

    settings: dict[str, Any]

    def ask(self, what: str, **arguments: Any) -> Any:
        """Sends the room a request and returns its answer."""

    def client_environment(self) -> dict[str, str]:
        """The environment for commands on the laptop."""


class Laptop:
    """The machine of the client: it has this machine's files, and a network of its own."""

    name = network.LAPTOP
    address = network.LAPTOP_ADDRESS

    def __init__(self, cluster: Room) -> None:
        self._cluster = cluster

    def partition(self) -> None:
        """Drops all its frames, in both directions."""
        self._cluster.ask("partition", host=self.name, cut=True)

    def heal(self) -> None:
        """Ends the partition."""
        self._cluster.ask("partition", host=self.name, cut=False)

    def delay(self, ms: float, loss_percent: float = 0) -> None:
        """Delays every frame in each direction, and drops a share of them. Zero for both restores the cable."""
        self._cluster.ask("delay", host=self.name, ms=ms, loss=loss_percent)

    def exec(
        self, argv: Sequence[str], *, input: str | None = None, timeout: float = 60
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the laptop."""
        return subprocess.run(
            ["nsenter", f"--net={self.network}", "--", *argv],
            env=self._cluster.client_environment(),
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    @property
    def network(self) -> str:
        """The path of its network namespace."""
        facts = self._cluster.ask("facts")
        return f"/proc/{facts['room']}/fd/{facts['laptop']}"


class Host:
    """A host of a cluster."""

    def __init__(self, cluster: Room, entry: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self.name: str = entry["name"]
        self.address: str = entry["address"]
        self.python: str = entry["python"]

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    @property
    def pid(self) -> int:
        """The process id of its process 1 on this machine."""
        found = self._cluster.ask("facts")["hosts"][self.name]
        if found is None:
            raise RuntimeError(f"{self.name} does not run")
        return int(found)

    @property
    def root(self) -> Path:
        """Its root directory as seen from this machine, while it runs."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def alive(self) -> bool:
        """Whether it is running."""
        return bool(self._ask("alive"))

    def pids(self) -> list[int]:
        """The process ids of all its processes on this machine."""
        return list(self._ask("pids"))

    def exec(
        self,
        argv: Sequence[str],
        *,
        input: str | None = None,
        timeout: float = 60,
        user: str = "root",
        environment: Mapping[str, str] | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Runs a command on the host without SSH, as root or as the ordinary user."""
        return subprocess.run(
            self.command(argv, user=user),
            env=self._environment(user, environment),
            input=input,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )

    def popen(
        self,
        argv: Sequence[str],
        *,
        user: str = "root",
        environment: Mapping[str, str] | None = None,
        **options: Any,
    ) -> subprocess.Popen[bytes]:
        """Starts a command on the host. The command ends with the host."""
        return subprocess.Popen(
            self.command(argv, user=user), env=self._environment(user, environment), **options
        )

    def command(self, argv: Sequence[str], *, user: str = "root") -> list[str]:
        """Returns the command line that runs `argv` on the host."""
        facts = self._cluster.ask("facts")
        number = {"root": 0, USER: USER_ID}[user]
        return enter(facts["hosts"][self.name], facts["groups"][self.name], list(argv), number)

    def kill(self) -> None:
        """Kills all its processes. Its network stack remains, refuses connections and resets those that exist."""
        self._cluster.ask("kill", names=[self.name])

    def power_cut(self) -> None:
        """Ends it as a power failure does: connections are not closed, and nothing answers."""
        self._cluster.ask("power_cut", names=[self.name])

    def start(self, *, fresh: bool = False) -> None:
        """Starts it after `kill` or `power_cut`, on its old disk or an empty one."""
        self._cluster.ask("start", names=[self.name], fresh=fresh)

    def pause(self) -> None:
        """Freezes every process. The kernel still accepts connections."""
        self._ask("pause")

    def resume(self) -> None:
        """Ends the pause."""
        self._ask("resume")

    def partition(self, *others: Host | Laptop) -> None:
        """Drops its frames silently in both directions: all, or only those to and from `others`."""
        if others:
            self._ask("block", addresses=[other.address for other in others])
        else:
            self._ask("partition", cut=True)

    def heal(self) -> None:
        """Ends every partition of this host. A delay remains."""
        self._ask("partition", cut=False)
        self._ask("block", addresses=[])

    def delay(self, ms: float, loss_percent: float = 0) -> None:
        """Delays every frame in each direction, and drops a share of them. Zero for both restores the cable."""
        self._ask("delay", ms=ms, loss=loss_percent)

    def fill_disk(self, leave: int = 0) -> None:
        """Fills the disk except for `leave` bytes."""
        self._ask("fill_disk", leave=leave)

    def free_disk(self) -> None:
        """Frees the space again."""
        self._ask("free_disk")

    def skew_clock(self, seconds: float) -> None:
        """Moves the time of day, for programs that start after the first call. Zero restores the time."""
        self._ask("skew_clock", seconds=seconds)

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """Refuses new logins. With `sessions`, existing sessions are ended too."""
        self._ask("stop_sshd", sessions=sessions)

    def start_sshd(self) -> None:
        """Accepts logins again."""
        self._ask("start_sshd")

    def restart_sshd(self, *, sessions: bool = False, **options: str) -> None:
        """Restarts sshd with additional options of sshd_config; without any, with its first options."""
        self._ask("stop_sshd", sessions=sessions)
        self._ask("start_sshd", options=options)

    def hang_logins(self) -> None:
        """Accepts logins, but never runs the requested commands. `restart_sshd()` ends this."""
        self.restart_sshd(ForceCommand="/bin/sleep 1000000")

    def change_host_key(self) -> None:
        """Restarts sshd with a host key that is not in `known_hosts`, as an impostor would have."""
        self._ask("new_host_key")
        self._ask("stop_sshd", sessions=False)
        self._ask("start_sshd")

    def silence_resolver(self) -> None:
        """Silences its name server: every lookup waits for its timeout."""
        nobody = self._ask("silence")
        (self.root / "etc" / "resolv.conf").write_text(f"nameserver {nobody}\n")

    def _environment(self, user: str, more: Mapping[str, str] | None) -> dict[str, str]:
        home = "/root" if user == "root" else f"/home/{user}"
        path = next(e for e in self._cluster.settings["hosts"] if e["name"] == self.name)["path"]
        search = ":".join((*path, PATH))
        return {"PATH": search, "HOME": home, "USER": user, "LANG": "C.UTF-8", **(more or {})}

    def _ask(self, what: str, **arguments: Any) -> Any:
        return self._cluster.ask(what, host=self.name, **arguments)
