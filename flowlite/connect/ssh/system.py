"""Runs the system's `ssh` for shells and commands on our own terminal, with pinned host keys and no forwarding.

`ssh` reads only a configuration that is written here, so that it takes the same route and trusts the same keys as
flowlite.
"""

from __future__ import annotations

import hashlib
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
from flowlite.node.system.atomic_files import write_atomically
from flowlite.settings.flow_home import ensure_home

_ALIAS = "flowlite-host"
# Time for a host to answer and exchange keys, for each jump host and the last one.
CONNECT_SECONDS = 20
# The exit status of `ssh` when `ssh` itself fails.
_FAILED = 255


def stream(target: SshTarget, argv: Sequence[str], *, terminal: bool) -> int:
    """Runs a command on a host on our own stdin, stdout and stderr. Returns its exit status as a shell does.

    Raises:
        NodeUnreachable: There is no `ssh` here, or the host does not answer.
        HostKeyError: The key of the host, or of a jump host, is unknown or has changed.
    """
    program = shutil.which("ssh")
    if program is None:
        raise NodeUnreachable(
            f"host {target.label}: a shell needs OpenSSH's `ssh` on this machine; install openssh-client"
        )
    require_known(target)
    path = _configuration(target)
    # `ssh` returns 255 for any command killed by a signal; a shell around it returns 128 + the signal. The shell
    # ignores Ctrl-C so that it can do so.
    script = b"trap : INT QUIT\n" + command(argv) + b"\nexit $?"
    line = login_line(script).decode("ascii")
    code = stream_here([program, "-F", str(path), "-t" if terminal else "-T", _ALIAS, line])
    if code == _FAILED:
        # The status is the command's, or that of `ssh` itself, which has printed the reason but not what to do here.
        for hop in _hops(target):
            host_keys.check(hop, host_key_scan.fetch(hop))
    return code


def require_known(target: SshTarget) -> None:
    """Checks that the keys of a host and its jump hosts are known. Raises HostKeyError, NodeUnreachable."""
    for hop in _hops(target):
        if not host_keys.pinned_lines(hop):
            # The error names the present fingerprint and says how to accept it.
            host_keys.check(hop, host_key_scan.fetch(hop))


def _hops(target: SshTarget) -> list[SshTarget]:
    """The jump hosts and the host itself, each with the jump hosts before it."""
    hops = (*target.jump, target)
    return [replace(hop, jump=hops[:position]) for position, hop in enumerate(hops)]


def _configuration(target: SshTarget) -> Path:
    """Writes the configuration for one host, in a directory named after the content's hash."""
    directory = ensure_home() / "ssh"
    known = directory / "known_hosts"
    text, keys = entries(_ALIAS, target, known)
    name = hashlib.sha256(f"{text}\0{keys}".encode("utf-8", "surrogateescape")).hexdigest()[:16]
    directory = directory / name
    text, keys = entries(_ALIAS, target, directory / "known_hosts")
    write(directory, text, keys)
    return directory / "config"


def write(directory: Path, text: str, keys: str) -> Path:
    """Writes `config` and `known_hosts`, readable by their owner only. Returns the path of `config`."""
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in (("known_hosts", keys), ("config", text)):
        write_atomically(directory / name, content.encode("utf-8", "surrogateescape"))
    return directory / "config"


def entries(alias: str, target: SshTarget, known: Path) -> tuple[str, str]:
    """`Host` entries for a host and its jump hosts, and the lines with their known keys."""
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
    """The entry of one host. `before` is the number of jump hosts before it."""
    options = [
        ("HostName", _word(target.host)),
        ("Port", str(target.port)),
        ("User", _word(target.user)),
        ("HostKeyAlias", _word(target.host_key_name, tokens=False)),
        ("UserKnownHostsFile", _quoted(str(known))),
        ("GlobalKnownHostsFile", "none"),
        ("StrictHostKeyChecking", "yes"),
        ("UpdateHostKeys", "no"),
        ("ForwardAgent", "no"),
        ("ForwardX11", "no"),
        ("PasswordAuthentication", "no"),
        # No questions: nobody may be there to answer them, and flowlite logs in with keys only.
        ("BatchMode", "yes"),
        # The timeout starts with `ssh`, while the jump hosts still connect. Without it, `ssh` would wait for ever for a
        # host behind a jump host that accepts the connection and sends nothing.
        ("ConnectTimeout", str(CONNECT_SECONDS * (before + 1))),
        ("ServerAliveInterval", "15"),
        ("LogLevel", "ERROR"),
        *(("CertificateFile", _quoted(path)) for path in target.certificates),
    ]
    if target.revoked_keys:
        options.append(("RevokedHostKeys", " ".join(map(_quoted, target.revoked_keys))))
    if target.family:
        options.append(("AddressFamily", target.family))
    if target.bind_address:
        options.append(("BindAddress", _word(target.bind_address, tokens=False)))
    if target.explicit:
        # Also files that do not exist: the public half may, with the private key in the SSH agent.
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
    """The options for going through another host of the same configuration."""
    if re.fullmatch(r"[\w./+-]+", str(path), re.ASCII):
        return "ProxyJump", jump
    # For a ProxyJump, OpenSSH builds a command line in which the path of the configuration is not quoted.
    quoted = shlex.quote(str(path)).replace("%", "%%")
    return "ProxyCommand", f"ssh -F {quoted} -W '[%h]:%p' {jump}"


def _word(text: str, *, tokens: bool = True) -> str:
    """A name quoted for a configuration file."""
    return text if re.fullmatch(r"[^\s\"'\\#%]+", text) else _quoted(text, tokens=tokens)


def _quoted(text: str, *, tokens: bool = True) -> str:
    """A text quoted for a configuration file, in which spaces would end it.

    Args:
        tokens: Whether the keyword has tokens. In others a percent sign stays one, as in the address `fe80::1%eth0`.
    """
    escaped = text.replace("%", "%%") if tokens else text
    escaped = escaped.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'
