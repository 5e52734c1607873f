"""One host in the room: its process 1, its control group, and its disk."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

from flowlite.testing.hosts import cgroups, clock, keys, root, system

_SSHD = "/usr/sbin/sshd -f /run/sshd/sshd_config -E /var/log/sshd.log"
_INIT = f"{_SSHD} && exec sleep infinity"


class Machine:
    """A host that can be started and ended. Its disk is kept until a fresh start."""

    _init = _INIT

    def __init__(
        self,
        *,
        identity: root.Identity,
        address: str,
        port: str,
        group: Path,
        disk_size: str,
        authorized_key: str,
    ) -> None:
        self.identity = identity
        self.name = identity.name
        self.cable = (identity.name, port, address)
        self.group = group
        self.pid: int | None = None
        # The kernel ends process 1 with this signal when a process on the host calls reboot(2).
        self.rebooted = False
        self._disk_size = disk_size
        self._authorized_key = authorized_key
        self._options: dict[str, str] = {}

    def start(self, network: int, fresh: bool) -> None:
        """Starts process 1. Call `wait_until_up` to wait for the host."""
        if fresh or not self.identity.disk.exists():
            self._make_disk()
        self._prepare()
        with system.inside_network(network):
            pid = system.fork_into_new_pids()
            if pid == 0:
                self._become_host()
        self.pid = pid

    def _prepare(self) -> None:
        """Writes the configuration for the next start."""
        config = keys.sshd_config(
            self.identity.search_path, {**self.identity.sshd, **self._options}
        )
        (self.identity.directory / "sshd_config").write_text(config)

    def wait_until_up(self, timeout: float = 90) -> None:
        """Waits until sshd listens. Raises RuntimeError with the console output if it does not."""
        deadline = time.monotonic() + timeout
        while not (self._root / keys.PID_FILE.lstrip("/")).exists():
            if self.ended() or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} did not come up: {self._last_words()}")
            time.sleep(0.002)

    def kill(self) -> None:
        """Kills all its processes, and returns when none is left."""
        if self.pid is None:
            return
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.pid, signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            os.waitpid(self.pid, 0)
        self.pid = None
        cgroups.freeze(self.group, False)

    def unmount(self) -> None:
        """Unmounts the disk."""
        system.unmount(self.identity.disk)

    def forget_changes(self) -> None:
        """Restores sshd's first configuration and the first host key, for the next start."""
        self._options = {}
        for kept in (self.identity.directory / "first").glob("*"):
            shutil.copy(kept, self.identity.directory / kept.name)

    def do_pause(self) -> None:
        """Freezes all processes. The kernel still answers."""
        cgroups.freeze(self.group, True)

    def do_resume(self) -> None:
        """Thaws all processes."""
        cgroups.freeze(self.group, False)

    def do_pids(self) -> list[int]:
        """The process ids of its processes on the machine."""
        return [int(pid) for pid in (self.group / "cgroup.procs").read_text().split()]

    def do_alive(self) -> bool:
        """Whether it is running."""
        return not self.ended()

    def do_stop_sshd(self, sessions: bool) -> None:
        """Stops the listener. With `sessions`, existing sessions are ended too."""
        file = self._root / keys.PID_FILE.lstrip("/")
        listener = file.read_text().strip() if file.exists() else ""
        chosen = []
        for pid in self.do_pids():
            name, inner = _status(pid)
            if name == "sshd" and (sessions or inner == listener):
                chosen.append(pid)
        for pid in chosen:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        deadline = time.monotonic() + 10
        while set(chosen) & set(self.do_pids()):
            if time.monotonic() > deadline:
                raise RuntimeError(f"sshd of {self.name} does not end")
            time.sleep(0.002)
        file.unlink(missing_ok=True)

    def do_start_sshd(self, options: dict[str, str] | None = None) -> None:
        """Starts the listener, with further options of sshd_config if given."""
        if options is not None:
            self._options = options
        config = keys.sshd_config(
            self.identity.search_path, {**self.identity.sshd, **self._options}
        )
        sshd = self._root / "run" / "sshd"
        (sshd / "sshd_config").write_text(config)
        for file in self.identity.directory.glob("ssh_host_*"):
            (sshd / file.name).write_bytes(file.read_bytes())
        done = self._run(_SSHD.split())
        if done.returncode != 0:
            raise RuntimeError(f"sshd of {self.name}: {done.stderr}")
        self.wait_until_up()

    def do_new_host_key(self) -> None:
        """Replaces its host key with one that is not in known_hosts."""
        key = self.identity.directory / keys.HOST_KEY
        first = self.identity.directory / "first"
        if not first.exists():
            first.mkdir()
            for file in (key, key.with_name(f"{key.name}.pub")):
                shutil.copy(file, first / file.name)
        keys.make_key(key, self.name)

    def do_fill_disk(self, leave: int) -> None:
        """Fills its disk except for `leave` bytes."""
        facts = os.statvfs(self.identity.disk)
        used = (facts.f_blocks - facts.f_bfree) * facts.f_frsize
        # A tmpfs with size zero has no limit.
        self._resize(str(max(used + leave, facts.f_frsize)))

    def do_free_disk(self) -> None:
        """Restores the size of its disk."""
        self._resize(self._disk_size)

    def do_skew_clock(self, seconds: float) -> None:
        """Moves the clock of programs started after the first call. Zero restores the time."""
        etc = self._root / "etc"
        library = etc / "clock.so"
        clock.move(etc / clock.SETTING, seconds)
        if not library.exists():
            shutil.copy(clock.build(self.identity.directory), library)
            (etc / "ld.so.preload").write_text("/etc/clock.so\n")

    def _add_devices(self) -> None:
        """Runs on the host itself, before anything else."""

    @property
    def _hostname(self) -> str:
        return self.name

    @property
    def _root(self) -> Path:
        return Path(f"/proc/{self.pid}/root")

    def _run(self, argv: list[str]) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            enter(self.pid, self.group, argv),
            env={"PATH": self.identity.search_path, "HOME": "/root"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )

    def _last_words(self) -> str:
        log = self.identity.disk / "upper" / "var" / "log" / "sshd.log"
        logs = (self.identity.directory / "console.log", log)
        return "\n".join(log.read_text() for log in logs if log.exists())

    def ended(self) -> bool:
        """Whether it is not running. Once it has ended, its process id is forgotten, since it can be reused."""
        if self.pid is not None:
            with contextlib.suppress(ChildProcessError):
                pid, status = os.waitpid(self.pid, os.WNOHANG)
                if pid == 0:
                    return False
                self.rebooted = os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGHUP
            self.pid = None
        return True

    def _resize(self, size: str) -> None:
        system.mount("none", self.identity.disk, flags=system.REMOUNT, data=f"size={size}")

    def _make_disk(self) -> None:
        self.unmount()
        self.identity.disk.mkdir(exist_ok=True)
        system.mount("tmpfs", self.identity.disk, "tmpfs", data=f"size={self._disk_size},mode=755")
        root.write_disk(self.identity, self._authorized_key)

    def _become_host(self) -> None:
        try:
            system.die_with_parent()
            os.setsid()
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            (self.group / "cgroup.procs").write_text("0")
            console = os.open(
                self.identity.directory / "console.log", os.O_WRONLY | os.O_CREAT | os.O_APPEND
            )
            os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
            for number in (1, 2):
                os.dup2(console, number)
            system.unshare(system.NEWNS | system.NEWUTS | system.NEWIPC | system.NEWCGROUP)
            system.set_hostname(self._hostname)
            root.enter(self.identity)
            self._add_devices()
            os.execve(
                "/usr/bin/tini",
                ["tini", "--", "/bin/sh", "-c", self._init],
                {"PATH": self.identity.search_path, "HOME": "/root", "LANG": "C.UTF-8"},
            )
        except BaseException:
            import traceback

            traceback.print_exc()
        finally:
            os._exit(1)


def enter(pid: int | None, group: Path | str, argv: list[str], user: int = 0) -> list[str]:
    """The command line that runs a command on a host. `nsenter` alone would not join the control group."""
    if pid is None:
        raise RuntimeError("the host does not run")
    script = 'echo $$ > "$0/cgroup.procs"; exec "$@"'
    namespaces = ["nsenter", "-t", str(pid), "-m", "-u", "-i", "-n", "-p", "-C", "-r", "-w"]
    if user:
        namespaces += ["-S", str(user), "-G", str(user)]
    return ["/bin/sh", "-c", script, str(group), *namespaces, "--", *argv]


def _status(pid: int) -> tuple[str, str]:
    """The name of a process, and its id in its own namespace."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return "", ""
    fields = dict(line.split(":", 1) for line in lines if ":" in line)
    return fields["Name"].strip(), fields["NSpid"].split()[-1]
