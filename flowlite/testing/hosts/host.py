"""One host, and the laptop, as a test handles them."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from flowlite.testing.hosts import network
from flowlite.testing.hosts.machine import enter
from flowlite.testing.hosts.root import PATH, USER, USER_ID


class Room(Protocol):
    """The process that holds the hosts (room.py), as one of them needs it."""

    settings: dict[str, Any]

    def ask(self, what: str, **arguments: Any) -> Any:
        """Has the room do something, and returns its answer."""

    def client_environment(self) -> dict[str, str]:
        """Variables of commands that run on the laptop."""


class Laptop:
    """The machine that the client runs on: this one's files, but a network of its own."""

    name = network.LAPTOP
    address = network.LAPTOP_ADDRESS

    def __init__(self, cluster: Room) -> None:
        self._cluster = cluster

    def partition(self) -> None:
        """All its frames vanish, both ways."""
        self._cluster.ask("partition", host=self.name, cut=True)

    def heal(self) -> None:
        """The opposite."""
        self._cluster.ask("partition", host=self.name, cut=False)

    def delay(self, ms: float, loss_percent: float = 0) -> None:
        """Every frame comes so much later, each way; some never come. Zero of both: a good cable."""
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
        """Path of its network namespace."""
        facts = self._cluster.ask("facts")
        return f"/proc/{facts['room']}/fd/{facts['laptop']}"


class Host:
    """One host of a cluster."""

    def __init__(self, cluster: Room, entry: Mapping[str, Any]) -> None:
        self._cluster = cluster
        self.name: str = entry["name"]
        self.address: str = entry["address"]
        self.python: str = entry["python"]

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.address}>"

    @property
    def pid(self) -> int:
        """Its process 1, by the number it has on this machine."""
        found = self._cluster.ask("facts")["hosts"][self.name]
        if found is None:
            raise RuntimeError(f"{self.name} does not run")
        return int(found)

    @property
    def root(self) -> Path:
        """Its file system as seen from here, as long as it runs."""
        return Path(f"/proc/{self.pid}/root")

    @property
    def alive(self) -> bool:
        """Whether it runs."""
        return bool(self._ask("alive"))

    def pids(self) -> list[int]:
        """All its processes, by the numbers they have on this machine."""
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
        """Runs a command on the host, as root or as its ordinary user; not through SSH."""
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
        """Starts a command on the host. It ends with the host."""
        return subprocess.Popen(
            self.command(argv, user=user), env=self._environment(user, environment), **options
        )

    def command(self, argv: Sequence[str], *, user: str = "root") -> list[str]:
        """The command line that runs `argv` on the host."""
        facts = self._cluster.ask("facts")
        number = {"root": 0, USER: USER_ID}[user]
        return enter(facts["hosts"][self.name], facts["groups"][self.name], list(argv), number)

    def kill(self) -> None:
        """Ends all processes at once. Its network stack stays and refuses; whoever is connected is told."""
        self._cluster.ask("kill", names=[self.name])

    def power_cut(self) -> None:
        """Ends it without a word: nobody is told, nothing answers."""
        self._cluster.ask("power_cut", names=[self.name])

    def start(self, *, fresh: bool = False) -> None:
        """Starts it again after `kill` or `power_cut`, on the disk it had or on an empty one."""
        self._cluster.ask("start", names=[self.name], fresh=fresh)

    def pause(self) -> None:
        """Freezes every process; the kernel still takes connections."""
        self._ask("pause")

    def resume(self) -> None:
        """The opposite."""
        self._ask("resume")

    def partition(self, *others: Host | Laptop) -> None:
        """Its frames vanish, both ways, and nobody is told. With `others`: only those to and from them."""
        if others:
            self._ask("block", addresses=[other.address for other in others])
        else:
            self._ask("partition", cut=True)

    def heal(self) -> None:
        """Ends every partition of this host. A delay stays."""
        self._ask("partition", cut=False)
        self._ask("block", addresses=[])

    def delay(self, ms: float, loss_percent: float = 0) -> None:
        """Every frame comes so much later, each way; some never come. Zero of both: a good cable."""
        self._ask("delay", ms=ms, loss=loss_percent)

    def fill_disk(self, leave: int = 0) -> None:
        """Leaves so many bytes free."""
        self._ask("fill_disk", leave=leave)

    def free_disk(self) -> None:
        """The opposite."""
        self._ask("free_disk")

    def skew_clock(self, seconds: float) -> None:
        """Programs see another time of day: those that start from the first call on. Zero sets the clock right."""
        self._ask("skew_clock", seconds=seconds)

    def stop_sshd(self, *, sessions: bool = False) -> None:
        """Nobody gets in any more; with `sessions`, whoever is in is thrown out."""
        self._ask("stop_sshd", sessions=sessions)

    def start_sshd(self) -> None:
        """The opposite."""
        self._ask("start_sshd")

    def restart_sshd(self, *, sessions: bool = False, **options: str) -> None:
        """Restarts it with these options of sshd_config on top; without any, with those it had at first."""
        self._ask("stop_sshd", sessions=sessions)
        self._ask("start_sshd", options=options)

    def hang_logins(self) -> None:
        """Lets everybody in, and runs nothing of what they ask for. `restart_sshd()` ends it."""
        self.restart_sshd(ForceCommand="/bin/sleep 1000000")

    def change_host_key(self) -> None:
        """Comes up with another key than the one in `known_hosts`, as an impostor would."""
        self._ask("new_host_key")
        self._ask("stop_sshd", sessions=False)
        self._ask("start_sshd")

    def silence_resolver(self) -> None:
        """Its name server does not even refuse any more: every lookup waits for its time-out."""
        nobody = self._ask("silence")
        (self.root / "etc" / "resolv.conf").write_text(f"nameserver {nobody}\n")

    def _environment(self, user: str, more: Mapping[str, str] | None) -> dict[str, str]:
        home = "/root" if user == "root" else f"/home/{user}"
        path = next(e for e in self._cluster.settings["hosts"] if e["name"] == self.name)["path"]
        search = ":".join((*path, PATH))
        return {"PATH": search, "HOME": home, "USER": user, "LANG": "C.UTF-8", **(more or {})}

    def _ask(self, what: str, **arguments: Any) -> Any:
        return self._cluster.ask(what, host=self.name, **arguments)
