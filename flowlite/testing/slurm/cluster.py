"""A real Slurm on test hosts: `with SlurmCluster(4) as slurm:`.

The first host is the head and the login node, which SSH leads to. The others run jobs. The laptop can also be a login
node (`login_environment`), for a client that runs Slurm's commands itself.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self, TypeVar

from flowlite.testing.hosts import Cluster, Host
from flowlite.testing.hosts import why_not as why_no_hosts
from flowlite.testing.hosts.root import PATH, USER
from flowlite.testing.polling import pause_after
from flowlite.testing.slurm import configuration, scripts
from flowlite.testing.slurm.operations import Operations

TOOLS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "sbatch", "srun", "sacct")
KEY = "munge.key"
Value = TypeVar("Value")


def why_not() -> str:
    """Returns why there can be no Slurm on this machine, or "" if there can."""
    if reason := why_no_hosts():
        return reason
    missing = [tool for tool in TOOLS if shutil.which(tool, path=PATH) is None]
    if missing:
        return (
            f"a Slurm to test with needs {', '.join(missing)} (Debian: apt install --no-install-recommends "
            "slurm-wlm slurmdbd munge mariadb-server)"
        )
    return ""


class SlurmCluster(Operations):
    """A Slurm cluster. It is removed on leaving the context.

    Args:
        count: The number of nodes that run jobs. The head is an additional host.
        cluster: A cluster that is up, whose first hosts are used instead of new ones. It is not closed with this one.
        options: Options of `Cluster`.

    Attributes:
        hosts: The hosts of the cluster, with their fault operations.
    """

    def __init__(self, count: int = 4, *, cluster: Cluster | None = None, **options: Any) -> None:
        if reason := why_not():
            raise RuntimeError(reason)
        self._count, self._owns_cluster = count, cluster is None
        self.hosts = cluster or Cluster(count + 1, **{"user": USER, **options})
        try:
            self._begin()
        except BaseException:
            self.close()
            raise

    @classmethod
    def attach(cls, directory: Path) -> Self:
        """Attaches to a running cluster by its directory."""
        self = cls.__new__(cls)
        self.hosts = Cluster.attach(directory)
        self._count, self._owns_cluster = len(self.hosts) - 1, True
        return self

    @property
    def head(self) -> Host:
        """The host with slurmctld, which is also the login node."""
        return self.hosts[0]

    @property
    def nodes(self) -> Sequence[Host]:
        """The hosts that run jobs."""
        return list(self.hosts)[1 : 1 + self._count]

    @property
    def directory(self) -> Path:
        """The cluster's directory on this machine."""
        return self.hosts.directory

    @property
    def shared(self) -> Path:
        """A directory that has the same path on the laptop and on all hosts."""
        return self.hosts.shared

    @property
    def login(self) -> str:
        """The value for `login =` in a configuration on the laptop."""
        return f"{USER}@{self.head.name}"

    def login_environment(self) -> dict[str, str]:
        """The environment that makes the laptop a login node, with root as user and a home that the nodes share."""
        return {
            **self.hosts.client_environment(),
            "SLURM_CONF": str(self.directory / "slurm.conf"),
            "HOME": str(self.shared / "home"),
        }

    @contextmanager
    def enter_laptop(self) -> Iterator[None]:
        """Moves this thread, and what it starts, to the laptop."""
        with self.hosts.enter_laptop():
            yield

    def hide_nodes(self) -> None:
        """Cuts the laptop off from all hosts but the head, as on most clusters."""
        for host in self.nodes:
            host.partition(self.hosts.laptop)

    def show_nodes(self) -> None:
        """Ends `hide_nodes`."""
        for host in self.nodes:
            if host.alive:
                host.heal()

    def run(self, *argv: str, user: str = "root", input: str | None = None) -> str:
        """Runs a command on the login node and returns its output. Raises RuntimeError if it fails."""
        done = self.head.exec(argv, user=user, input=input)
        if done.returncode != 0:
            raise RuntimeError(f"{' '.join(argv)}: {done.stderr.strip() or done.stdout.strip()}")
        return done.stdout

    def close(self) -> None:
        """Removes the cluster. Idempotent."""
        if self._owns_cluster:
            self.hosts.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Startup

    def _begin(self) -> None:
        key = os.urandom(1024)
        (self.directory / KEY).write_bytes(key)
        (self.directory / KEY).chmod(0o400)
        for host in (self.head, *self.nodes):
            self._write(host, key)
        with ThreadPoolExecutor(4) as pool:
            laptop = pool.submit(self._begin_laptop)
            nodes = [pool.submit(self.start_slurmd, host) for host in self.nodes[:1]]
            self._script(self.head, scripts.head(str(self.shared)))
            self._script(self.head, scripts.DATABASE)
            self._open_accounts(configuration.accounts(["root", USER]))
            self.start_controller()
            nodes += [pool.submit(self.start_slurmd, host) for host in self.nodes[1:]]
            for each in (laptop, *nodes):
                each.result()
            self.wait_idle()
            self.wait(self._limit_accounts, "accounts know of GPUs")

    def _write(self, host: Host, key: bytes) -> None:
        etc = host.root / "etc"
        (etc / "slurm").mkdir(exist_ok=True)
        (etc / "munge").mkdir(exist_ok=True)
        (etc / "munge" / KEY).unlink(missing_ok=True)
        (etc / "munge" / KEY).write_bytes(key)
        (etc / "slurm" / "slurm.conf").write_text(self._slurm_conf())
        for name, text in configuration.companions().items():
            (etc / "slurm" / name).write_text(text)
        if host is self.head:
            file = etc / "slurm" / "slurmdbd.conf"
            file.write_text(configuration.slurmdbd_conf((host.name, host.address)))
            file.chmod(0o600)
        # As on a real cluster: every host knows the names of all, and its own name maps to a loopback address.
        others = "".join(
            f"{h.address} {h.name}\n" for h in (self.head, *self.nodes) if h is not host
        )
        (etc / "hosts").write_text(f"127.0.0.1 localhost\n127.0.1.1 {host.name}\n{others}")

    def _slurm_conf(self, socket: str = "") -> str:
        head = (self.head.name, self.head.address)
        nodes = [(host.name, host.address) for host in self.nodes]
        return configuration.slurm_conf(head, nodes, munge_socket=socket)

    def _begin_laptop(self) -> None:
        (self.shared / "home").mkdir(exist_ok=True)
        place = self.directory / "munge"
        place.mkdir()
        shutil.copy(self.directory / KEY, place / KEY)
        socket = place / "socket"
        (self.directory / "slurm.conf").write_text(self._slurm_conf(str(socket)))
        for name, text in configuration.companions().items():
            (self.directory / name).write_text(text)
        # munged requires directories that others cannot write, and its clients must be able to reach the socket.
        self.directory.chmod(0o755)
        place.chmod(0o755)
        files = {"key": KEY, "pid": "pid", "log": "log", "seed": "seed"}
        argv = ["/usr/sbin/munged", "--force", "--socket", str(socket)]
        for option, name in files.items():
            argv += [f"--{option}-file", str(place / name)]
        done = self.hosts.laptop.exec(argv)
        if done.returncode != 0:
            raise RuntimeError(f"munge did not start on the laptop: {done.stderr}")

    def _open_accounts(self, lines: list[list[str]]) -> None:
        # One process for all commands, since each sacctmgr would open its own connection to the database.
        text = "".join(f"{shlex.join(words)}\n" for words in lines)
        done = self.head.exec(["sacctmgr", "-i"], input=text)
        if done.returncode != 0:
            raise RuntimeError(f"sacctmgr: {done.stdout}{done.stderr}")

    def _limit_accounts(self) -> bool:
        return bool(self.run("sacctmgr", "-i", *configuration.GPU_LIMIT))

    def start_slurmd(self, host: Host) -> None:
        """Starts slurmd on a running node."""
        self._script(host, scripts.node(str(self.shared)))

    def start_controller(self) -> None:
        """Starts slurmctld on the head."""
        self._script(self.head, scripts.CONTROLLER)

    def stop_controller(self) -> None:
        """Ends slurmctld. Jobs continue."""
        self._script(self.head, scripts.STOP_CONTROLLER)

    def _script(self, host: Host, text: str) -> None:
        done = host.exec(["sh", "-c", text])
        if done.returncode != 0:
            raise RuntimeError(f"{host.name}: {done.stderr.strip() or done.stdout.strip()}")

    def wait(self, probe: Callable[[], Value | None], what: str, timeout: float = 60) -> Value:
        """Polls until `probe` returns a true value. Raises RuntimeError after the timeout."""
        deadline = time.monotonic() + timeout
        while True:
            began = time.monotonic()
            value: Value | None = None
            with contextlib.suppress(RuntimeError, subprocess.TimeoutExpired):
                value = probe()
            if value:
                return value
            ended = time.monotonic()
            if ended > deadline:
                raise RuntimeError(f"not within {timeout:g} s: {what}\n{self.logs()}")
            time.sleep(pause_after(ended - began, every=0.05))

    def logs(self) -> str:
        """The last lines of each daemon's log."""
        found = []
        for host in (self.head, *self.nodes):
            for name in ("slurmctld", "slurmdbd", "slurmd"):
                with contextlib.suppress(OSError, RuntimeError):
                    lines = (host.root / f"var/log/{name}.log").read_text().splitlines()[-8:]
                    found += [f"{host.name} {name}: {line}" for line in lines]
        return "\n".join(found)
