"""SSH keys, and the configurations of server and client."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

PID_FILE = "/run/sshd-of-this-host.pid"
HOST_KEY = "ssh_host_ed25519_key"
# Debian's configuration, without passwords, and without the limit on unauthenticated connections, which a test that
# starts many hosts from one machine would reach.
_SSHD = {
    "Port": "22",
    "ListenAddress": "0.0.0.0",
    "HostKey": f"/run/sshd/{HOST_KEY}",
    "PidFile": PID_FILE,
    "UsePAM": "no",
    "UseDNS": "no",
    "PasswordAuthentication": "no",
    "KbdInteractiveAuthentication": "no",
    "PermitRootLogin": "prohibit-password",
    "PrintMotd": "no",
    "PrintLastLog": "no",
    "X11Forwarding": "no",
    "MaxStartups": "200",
    "LogLevel": "VERBOSE",
    "AcceptEnv": "LANG LC_*",
    "Subsystem": "sftp internal-sftp",
}


def make_key(path: Path, comment: str) -> None:
    """Creates an ed25519 key at `path`, with its public half beside it."""
    for old in (path, path.with_name(f"{path.name}.pub")):
        old.unlink(missing_ok=True)
    subprocess.run(
        ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)],
        check=True,
        stdin=subprocess.DEVNULL,
        capture_output=True,
    )


def sshd_config(search_path: str, options: Mapping[str, str], *, host_key: bool = True) -> str:
    """The server's configuration. `options` override it; the keys are those of sshd_config(5).

    Without `host_key`, sshd uses the host keys at their usual paths.
    """
    merged = {**_SSHD, "SetEnv": f"PATH={search_path}", **options}
    if not host_key:
        del merged["HostKey"]
    return "".join(f"{key} {value}\n" for key, value in merged.items())


def known_hosts(hosts: Sequence[tuple[str, str, Path]]) -> str:
    """Returns lines of known_hosts for (name, address, public key file)."""
    lines = []
    for name, address, public in hosts:
        kind, key = public.read_text().split()[:2]
        lines.append(f"{name},{address} {kind} {key}\n")
    return "".join(lines)


def ssh_config(directory: Path, hosts: Sequence[tuple[str, str]], user: str) -> str:
    """The client's configuration for (name, address)."""
    text = "".join(f"Host {name}\n  HostName {address}\n" for name, address in hosts)
    return text + (
        f"Host *\n"
        f"  User {user}\n"
        f"  IdentityFile {directory}/key\n"
        f"  IdentitiesOnly yes\n"
        f"  UserKnownHostsFile {directory}/known_hosts\n"
        f"  StrictHostKeyChecking yes\n"
        f"  BatchMode yes\n"
        f"  LogLevel ERROR\n"
    )
