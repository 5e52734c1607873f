"""Test hosts: `with Cluster(4) as hosts:`.

A separate process, the room (`room.py`), holds everything. `Cluster` sends it requests.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, overload

from flowlite.testing.hosts import cgroups, keys, network, sweep, system
from flowlite.testing.hosts.host import Host, Laptop
from flowlite.testing.hosts.root import PATH

ROOT = Path(__file__).resolve().parents[3]
TOOLS = ("sshd", "ssh-keygen", "ip", "nft", "ethtool", "tini", "nsenter")
# Variables of the user or the machine that a client under test must not see.
_OURS_ONLY = (
    "AWS_",
    "MITHRIL_",
    "PIP_",
    "FLOW_",
    "SSH_",
    "PYTHONDONTWRITEBYTECODE",
    "PYTHONUNBUFFERED",
)


def why_not() -> str:
    """Returns why hosts cannot be made on this machine, or "" if they can."""
    if sys.platform != "linux":
        return "test hosts need Linux"
    if os.geteuid() != 0:
        return "test hosts need root"
    search = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
    missing = [tool for tool in TOOLS if shutil.which(tool, path=search) is None]
    if missing:
        return f"test hosts need {', '.join(missing)}"
    if cgroups.base() is None:
        return "test hosts need a writable cgroup2 hierarchy"
    return ""


class Cluster(Sequence[Host]):
    """Hosts on a switch, with a laptop for the client. They are removed on leaving the context.

    Args:
        count: The number of hosts.
        keep: Directories of this machine that the hosts can read: by default those of the tests' Python.
        python: The interpreter that is `python3` on the hosts, for all of them or by number. The tests' own by default;
            "" for this machine's.
        path: Directories that come first in PATH on the hosts.
        sshd: Options for sshd_config in addition to the usual ones.
        disk: The size of each host's disk. It is a tmpfs, which takes memory as it fills.
        user: The user in the client's SSH configuration: "root" or "flow".
        owned: Whether the hosts end with this process. If not, they stay until `close`.
        slots: The number of additional machines that can be rented out (`flowlite.testing.cloud.machines`). They come
            after the hosts and do not run at first.
    """

    def __init__(
        self,
        count: int,
        *,
        keep: Sequence[str | Path] | None = None,
        python: str | Mapping[int, str] | None = None,
        path: Sequence[str] = (),
        sshd: Mapping[str, str] | None = None,
        disk: str = "4g",
        user: str = "root",
        owned: bool = True,
        slots: int = 0,
    ) -> None:
        if reason := why_not():
            raise RuntimeError(reason)
        if not 1 <= count + slots <= 200:
            raise ValueError(f"a cluster has 1 to 200 hosts, not {count + slots}")
        kept = (sys.prefix, sys.base_prefix, ROOT) if keep is None else keep
        pythons = python if isinstance(python, Mapping) else {}
        usual = python if isinstance(python, str) else sys.executable
        entries = [
            {
                "name": f"node{i:02d}",
                "address": network.address_of(i),
                "port": f"port{i}",
                "python": pythons.get(i, usual),
                "path": list(path),
                "sshd": dict(sshd or {}),
            }
            for i in range(count)
        ]
        for i in range(slots):
            address, public_address = network.rented_address_of(i)
            more = {"address": address, "public_address": public_address}
            common = {"port": f"slot{i}", "python": usual, "path": list(path), "sshd": {}}
            entries.append({"name": f"machine{i:02d}", **common, **more})
        with sweep.one_at_a_time():
            sweep.sweep()
            self.directory, lock = sweep.new_directory()
        try:
            self.settings: dict[str, Any] = {
                "tag": self.directory.name,
                "owner": os.getpid() if owned else 0,
                "hosts": entries,
                "keep": sorted({str(Path(k).resolve()) for k in kept}),
                "disk": disk,
                "user": user,
            }
            self._prepare()
            self._start_room(lock)
        except BaseException:
            shutil.rmtree(self.directory, ignore_errors=True)
            raise
        finally:
            os.close(lock)
        self._connect()

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Attaches to a running cluster by its directory."""
        self = cls.__new__(cls)
        self.directory = directory
        self.settings = json.loads((directory / "settings.json").read_text())
        self._room = None
        self._connect()
        return self

    def _prepare(self) -> None:
        entries = [e for e in self.settings["hosts"] if "public_address" not in e]
        (self.directory / "shared").mkdir()
        (self.directory / "shared").chmod(0o1777)
        keys.make_key(self.key, "client")
        for entry in self.settings["hosts"]:
            (self.directory / entry["name"]).mkdir()
        for entry in entries:
            keys.make_key(self.directory / entry["name"] / keys.HOST_KEY, entry["name"])
        publics = [
            (e["name"], e["address"], self.directory / e["name"] / f"{keys.HOST_KEY}.pub")
            for e in entries
        ]
        self.known_hosts.write_text(keys.known_hosts(publics))
        named = [(e["name"], e["address"]) for e in entries]
        config = keys.ssh_config(self.directory, named, self.settings["user"])
        self.ssh_config.write_text(config)
        (self.directory / "settings.json").write_text(json.dumps(self.settings))

    def _start_room(self, lock: int) -> None:
        self._room: subprocess.Popen[str] | None = subprocess.Popen(
            [
                sys.executable,
                "-S",
                "-m",
                "flowlite.testing.hosts.room",
                str(self.directory),
                str(lock),
            ],
            cwd=ROOT,
            env={"PATH": PATH, "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(sweep.parent())},
            pass_fds=[lock],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            text=True,
        )
        assert self._room.stdout is not None
        report = self._room.stdout.readline()
        self._room.stdout.close()
        if report != '"up"\n':
            self._room.wait(30)
            reason = json.loads(report) if report else "their room ended"
            raise RuntimeError(f"the hosts did not come up: {reason}")

    def _connect(self) -> None:
        self._asking = threading.Lock()
        self._hosts = [Host(self, entry) for entry in self.settings["hosts"]]
        self.laptop = Laptop(self)
        self._channel = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._channel.connect(str(self.directory / "room.sock"))
        self._replies = self._channel.makefile("r")

    @property
    def key(self) -> Path:
        """The client's private key."""
        return self.directory / "key"

    @property
    def known_hosts(self) -> Path:
        """The host keys of all hosts, for the client."""
        return self.directory / "known_hosts"

    @property
    def ssh_config(self) -> Path:
        """An OpenSSH configuration with an entry for each host."""
        return self.directory / "ssh_config"

    @property
    def shared(self) -> Path:
        """The directory that all hosts see at /mnt/shared."""
        return self.directory / "shared"

    def client_environment(self) -> dict[str, str]:
        """The environment for a client on the laptop: this process's, without variables that point elsewhere."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith(_OURS_ONLY)}
        return {**kept, "FLOW_SSH_CONFIG": str(self.ssh_config)}

    @contextmanager
    def enter_laptop(self) -> Iterator[None]:
        """Moves this thread, and the threads and processes that it starts, to the laptop."""
        fd = os.open(self.laptop.network, os.O_RDONLY | os.O_CLOEXEC)
        try:
            with system.inside_network(fd):
                yield
        finally:
            os.close(fd)

    def reset(self) -> None:
        """Restores the first state: every host restarted on an empty disk, and nothing running on the laptop."""
        self.ask("reset")

    def close(self) -> None:
        """Removes the cluster and all processes on the hosts and on the laptop. Idempotent."""
        with contextlib.suppress(ConnectionError):
            self.ask("down")
        self._replies.close()
        self._channel.close()
        if self._room is not None:
            self._room.wait(30)

    def ask(self, what: str, **arguments: Any) -> Any:
        """Sends the room a request. Raises RuntimeError with the reason if it fails."""
        request = json.dumps({"do": what, **arguments}).encode() + b"\n"
        line = ""
        with self._asking, contextlib.suppress(OSError, ValueError):
            self._channel.sendall(request)
            line = self._replies.readline()
        if not line:
            raise ConnectionError("the hosts are gone")
        reply = json.loads(line)
        if "error" in reply:
            raise RuntimeError(f"{what}: {reply['error']}\n{reply['trace']}")
        return reply["value"]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __len__(self) -> int:
        return len(self._hosts)

    @overload
    def __getitem__(self, index: int) -> Host: ...
    @overload
    def __getitem__(self, index: slice) -> Sequence[Host]: ...
    def __getitem__(self, index: int | slice) -> Host | Sequence[Host]:
        return self._hosts[index]
