"""The system's `ssh`, for shells and commands on our own terminal: with keys pinned, and nothing of ours forwarded.

It reads a configuration that we write and no other, so that it goes where flowlite goes, and believes the same keys.
"""

from __future__ import annotations

import hashlib
import os
import re
import shlex
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from flowlite.connect.local import stream_here
from flowlite.connect.ssh import host_key_scan, host_keys
from flowlite.connect.ssh.quoting import command, login_line
from flowlite.connect.ssh.targets import SshTarget
from flowlite.errors import NodeUnreachable
from flowlite.settings.settings import ensure_home

_ALIAS = "flowlite-host"
# Until a host has to have answered and exchanged keys, for each host on the way and the last.
CONNECT_SECONDS = 20
# With this status `ssh` ends when it fails itself.
_FAILED = 255


def stream(target: SshTarget, argv: Sequence[str], *, terminal: bool) -> int:
    """Runs a command on a host on our own stdin, stdout and stderr. Returns its exit status as a shell gives it.

    Raises:
        NodeUnreachable: There is no `ssh` here, or the host does not answer.
        HostKeyError: The key of the host, or of one on the way, is unknown or has changed.
    """
    program = shutil.which("ssh")
    if program is None:
        raise NodeUnreachable(
            f"host {target.label}: a shell needs OpenSSH's `ssh` on this machine; install openssh-client"
        )
    require_known(target)
    path = _configuration(target)
    # `ssh` ends with 255 for whatever died of a signal; a shell around it says which. It outlives Ctrl-C to say so.
    script = b"trap : INT QUIT\n" + command(argv) + b"\nexit $?"
    line = login_line(script).decode("ascii")
    code = stream_here([program, "-F", str(path), "-t" if terminal else "-T", _ALIAS, line])
    if code == _FAILED:
        # Of the command, or of `ssh` itself; then it has said why, but not what to do here.
        for hop in _hops(target):
            host_keys.check(hop, host_key_scan.fetch(hop))
    return code


def require_known(target: SshTarget) -> None:
    """Makes sure that the keys of a host and of those on the way are known. Raises HostKeyError, NodeUnreachable."""
    for hop in _hops(target):
        if not host_keys.pinned_lines(hop):
            # The error says which fingerprint it has now, and how to accept it.
            host_keys.check(hop, host_key_scan.fetch(hop))


def _hops(target: SshTarget) -> list[SshTarget]:
    """The hosts on the way and the host itself, each with the way to it."""
    hops = (*target.jump, target)
    return [replace(hop, jump=hops[:position]) for position, hop in enumerate(hops)]


def _configuration(target: SshTarget) -> Path:
    """Writes what `ssh` reads for one host, under a name made of what is in it."""
    directory = ensure_home() / "ssh"
    known = directory / "known_hosts"
    text, keys = entries(_ALIAS, target, known)
    name = hashlib.sha256(f"{text}\0{keys}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
    directory = directory / name
    text, keys = entries(_ALIAS, target, directory / "known_hosts")
    write(directory, text, keys)
    return directory / "config"


def write(directory: Path, text: str, keys: str) -> Path:
    """Writes `config` and `known_hosts`, readable by their owner only. Returns the path of the first."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in (("known_hosts", keys), ("config", text)):
        partial = directory / f".{name}.{os.getpid()}.part"
        descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(content)
        os.replace(partial, directory / name)
    return directory / "config"


def entries(alias: str, target: SshTarget, known: Path) -> tuple[str, str]:
    """`Host` entries for a host and those on the way to it, and what is known of their keys."""
    blocks: list[str] = []
    keys: dict[str, None] = {}
    jump = ""
    for position, hop in enumerate(target.jump):
        name = f"{alias}-jump-{position}"
        blocks.append(_block(name, hop, jump, known, position))
        jump = name
    blocks.append(_block(alias, target, jump, known, len(target.jump)))
    for hop in (*target.jump, target):
        keys.update(dict.fromkeys(host_keys.pinned_lines(hop)))
    return "\n".join(blocks), "".join(f"{line}\n" for line in keys)


def _block(alias: str, target: SshTarget, jump: str, known: Path, before: int) -> str:
    """The entry of one host. `before` is the number of hosts on the way to it."""
    options = [
        ("HostName", _word(target.host)),
        ("Port", str(target.port)),
        ("User", _word(target.user)),
        ("HostKeyAlias", _word(target.host_key_name)),
        ("UserKnownHostsFile", _quoted(str(known))),
        ("GlobalKnownHostsFile", "none"),
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
        ("ForwardAgent", "no"),
        ("ForwardX11", "no"),
        ("PasswordAuthentication", "no"),
        # Nobody may be there to answer a question, and flowlite logs in with keys only.
        ("BatchMode", "yes"),
        # Its clock runs from the start, while those on the way still connect. Without it, `ssh` waits for ever for a
        # host behind another one that takes the connection and says nothing.
        ("ConnectTimeout", str(CONNECT_SECONDS * (before + 1))),
        ("ServerAliveInterval", "15"),
        ("LogLevel", "ERROR"),
        *(("CertificateFile", _quoted(path)) for path in target.certificates),
    ]
    if target.explicit:
        # Also of a file that is not there: its public half may be, and the rest in the agent.
        options += [("IdentityFile", _quoted(path)) for path in target.identities or ("none",)]
    if target.identities_only:
        options.append(("IdentitiesOnly", "yes"))
    if target.agent is not None:
        options.append(("IdentityAgent", _quoted(target.agent) if target.agent else "none"))
    if jump:
        options.append(_through(jump, known.with_name("config")))
    elif target.proxy_command is not None:
        options.append(("ProxyCommand", target.proxy_command.replace("%", "%%")))
    return f"Host {alias}\n" + "".join(f"  {key} {value}\n" for key, value in options)


def _through(jump: str, path: Path) -> tuple[str, str]:
    """How to go through another host of the same configuration."""
    if re.fullmatch(r"[\w./+-]+", str(path), re.ASCII):
        return "ProxyJump", jump
    # Of a ProxyJump, OpenSSH makes a command line in which the path of the configuration is not quoted.
    quoted = shlex.quote(str(path)).replace("%", "%%")
    return "ProxyCommand", f"ssh -F {quoted} -W '[%h]:%p' {jump}"


def _word(text: str) -> str:
    """A name as a configuration holds it."""
    return text if re.fullmatch(r"[^\s\"'\\#%]+", text) else _quoted(text)


def _quoted(path: str) -> str:
    """A path as a configuration holds it: percent signs would be tokens, spaces would end it."""
    escaped = path.replace("%", "%%").replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
