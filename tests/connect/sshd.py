"""An OpenSSH server of our own, as the user who runs the tests: its own port, keys, configuration, account files."""

from __future__ import annotations

import contextlib
import getpass
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from tests.helpers import eventually


def program() -> str | None:
    """Path of sshd; None where it is not installed."""
    return shutil.which("sshd") or next(
        (p for p in ("/usr/sbin/sshd", "/usr/local/sbin/sshd") if os.path.exists(p)), None
    )


def make_key(path: Path, kind: str = "ed25519", passphrase: str = "") -> Path:
    """Makes a key pair at `path`."""
    subprocess.run(
        ["ssh-keygen", "-q", "-t", kind, "-N", passphrase, "-C", path.name, "-f", str(path)],
        check=True,
    )
    return path


class Sshd:
    """A server on one address and port. It can be killed, started again, and given other host keys."""

    def __init__(
        self,
        directory: Path,
        *,
        address: str = "127.0.0.1",
        options: Mapping[str, str] | None = None,
        keys: Sequence[str] = ("ed25519",),
    ) -> None:
        self.directory = directory
        self.address = address
        self.options = dict(options or {})
        self.user = pwd.getpwuid(os.getuid()).pw_name or getpass.getuser()
        directory.mkdir(parents=True, exist_ok=True)
        self.log = directory / "sshd.log"
        self.authorized = directory / "authorized_keys"
        self.host_keys = [make_key(directory / f"host_{kind}", kind) for kind in keys]
        self.client_key = make_key(directory / "client")
        self.authorized.write_text((directory / "client.pub").read_text())
        self.authorized.chmod(0o600)
        self.port = free_port(address)
        self._process: subprocess.Popen[bytes] | None = None

    # Running

    def start(self) -> Sshd:
        """Starts it and waits until it answers."""
        config = self.directory / "sshd_config"
        config.write_text(self._config())
        found = program()
        assert found is not None
        if os.getuid() == 0:
            # Where the server of one connection locks itself in; packages make it when the machine starts.
            os.makedirs("/run/sshd", mode=0o755, exist_ok=True)
        with open(self.log, "ab") as log:
            self._process = subprocess.Popen(
                [found, "-D", "-e", "-f", str(config)],
                stdin=subprocess.DEVNULL,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers, what=f"sshd answers; see {self.log}")
        return self

    def _config(self) -> str:
        options = {
            "ListenAddress": f"{self.address}:{self.port}",
            "PidFile": "none",
            "AuthorizedKeysFile": str(self.authorized),
            "StrictModes": "no",
            "UsePAM": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            "PermitRootLogin": "yes",
            "MaxStartups": "100",
            "LogLevel": "VERBOSE",
            "Subsystem": "sftp internal-sftp",
            # bash reads ~/.bashrc for commands of sshd, unless it thinks that another shell runs it.
            "SetEnv": "SHLVL=5",
            **self.options,
        }
        lines = [f"HostKey {key}" for key in self.host_keys]
        lines += [f"{name} {value}" for name, value in options.items()]
        return "\n".join(lines) + "\n"

    def _answers(self) -> bool:
        assert self._process is not None
        if self._process.poll() is not None:
            raise AssertionError(f"sshd ended: {self.log.read_text()}")
        try:
            with socket.create_connection((self.address, self.port), 1) as sock:
                return sock.recv(4) == b"SSH-"
        except OSError:
            return False

    def sessions(self) -> list[int]:
        """Process ids of the servers of single connections, as long as they live."""
        assert self._process is not None
        path = Path(f"/proc/{self._process.pid}/task/{self._process.pid}/children")
        return [int(pid) for pid in path.read_text().split()]

    def cut(self) -> None:
        """Breaks every connection; the server goes on listening."""
        for pid in self.sessions():
            with_descendants = [pid, *_children(pid)]
            for each in with_descendants:
                if b"sshd" in _name(each):
                    _kill(each)

    def stop(self) -> None:
        """Ends it and its connections."""
        if self._process is not None:
            self.cut()
            self._process.kill()
            self._process.wait()
            self._process = None

    # What a client needs

    @property
    def known_line(self) -> str:
        """Lines of known hosts for it."""
        name = self.address if self.port == 22 else f"[{self.address}]:{self.port}"
        return "".join(
            f"{name} {' '.join(Path(f'{key}.pub').read_text().split()[:2])}\n"
            for key in self.host_keys
        )

    def config_for(self, alias: str = "box", *, known: bool = True, extra: str = "") -> str:
        """A block of OpenSSH configuration for it."""
        file = self.directory / "known_hosts"
        file.write_text(self.known_line if known else "")
        return (
            f"Host {alias}\n  HostName {self.address}\n  Port {self.port}\n  User {self.user}\n"
            f"  IdentityFile {self.client_key}\n  IdentitiesOnly yes\n"
            f"  UserKnownHostsFile {file}\n  GlobalKnownHostsFile none\n{extra}"
        )


def free_port(address: str = "127.0.0.1") -> int:
    """A port that nobody listens on."""
    with socket.socket() as sock:
        sock.bind((address, 0))
        return int(sock.getsockname()[1])


def _children(pid: int) -> list[int]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    found = [int(child) for child in text.split()]
    return found + [deeper for child in found for deeper in _children(child)]


def _name(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/comm").read_bytes()
    except OSError:
        return b""


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, 9)


def scratch() -> Path:
    """A directory whose path is short enough for a Unix socket."""
    return Path(tempfile.mkdtemp(prefix="flsshd-"))
