"""Public key authentication: keys of the configuration first, then the SSH agent's, then the default files."""

from __future__ import annotations

import base64
import os
import socket
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING

from flowlite.connect.ssh.kept_values import KeptValues, Sources
from flowlite.connect.ssh.library import paramiko
from flowlite.errors import NodeUnreachable
from flowlite.node.quick_dataclass import dataclass
from flowlite.settings import ssh_agent

if TYPE_CHECKING:
    from flowlite.connect.ssh.targets import SshTarget

_MAGIC = b"openssh-key-v1\0"
# A booting host may refuse logins, too: logins are not allowed yet, or the user's home is not mounted yet.
_REFUSED_SECONDS = 60.0
# Keys that need no passphrase. They sign the logins at all hosts, so a process has them in memory anyway.
_keys: KeptValues[paramiko.PKey] = KeptValues()


class _Agent(paramiko.Agent):
    """The SSH agent behind one socket. It signs; it is never forwarded."""

    def __init__(self, path: str) -> None:
        paramiko.agent.AgentSSH.__init__(self)
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            connection.settimeout(10.0)
            connection.connect(path)
            # The owner may have to confirm the use of a key.
            connection.settimeout(60.0)
            self._connect(connection)  # type: ignore[attr-defined]
        except BaseException:
            connection.close()
            raise


@dataclass(slots=True)
class _TriedKeys:
    """The keys that were tried, for the error message."""

    keys: list[str] = field(default_factory=list)
    hints: list[str] = field(default_factory=list)
    broke: bool = False


def log_in(transport: paramiko.Transport, target: SshTarget) -> None:
    """Authenticates with a host whose own key has been compared already.

    Raises:
        NodeUnreachable: No key was accepted; the message says which were tried and what to do.
    """
    tried = _TriedKeys()
    agent = _open_agent(target, tried)
    try:
        for words, key in _candidates(target, agent, tried):
            tried.keys.append(words)
            try:
                more = transport.auth_publickey(target.user, key)
            except paramiko.BadAuthenticationType as error:
                what = f"takes no keys, only {', '.join(error.allowed_types)}"
                raise _keys_only(
                    target,
                    what,
                    "Allow publickey for this user there (PubkeyAuthentication in its sshd_config)",
                ) from None
            except paramiko.AuthenticationException:
                if not transport.is_active():
                    break
                continue
            except (paramiko.SSHException, EOFError, OSError) as error:
                tried.hints.append(f"{words}: {error or type(error).__name__}")
                if not transport.is_active():
                    tried.broke = True
                    break
                continue
            if more:
                what = f"asks for {', '.join(more)} besides a key"
                raise _keys_only(target, what, "Allow publickey alone for this user there")
            return
        raise _refused(target, tried, transport)
    finally:
        if agent is not None:
            agent.close()


def _open_agent(target: SshTarget, tried: _TriedKeys) -> _Agent | None:
    path = os.environ.get("SSH_AUTH_SOCK", "") if target.agent is None else target.agent
    if not path:
        return None
    try:
        return _Agent(path)
    except (OSError, paramiko.SSHException, EOFError) as error:
        hint = f"the agent at {path} does not answer ({error})"
    later = ssh_agent.seen_last() if target.agent is None else ""
    if later and later != path:
        with suppress(OSError, paramiko.SSHException, EOFError):
            return _Agent(later)
    if target.agent is None:
        hint += ", and any `flow` command in a shell that has an agent makes that one known"
    tried.hints.append(hint)
    return None


def _candidates(
    target: SshTarget, agent: _Agent | None, tried: _TriedKeys
) -> Iterator[tuple[str, paramiko.PKey]]:
    """Yields keys in the order in which they are tried, each once, with a description."""
    held = {key.asbytes(): key for key in agent.get_keys()} if agent else {}
    used: set[bytes] = set()
    files = list(target.identities)
    if target.explicit:
        yield from _files(target, files, held, used, tried)
    if not target.identities_only:
        for blob, key in held.items():
            if blob not in used:
                used.add(blob)
                yield f"{key.comment or key.name} of the agent", key
    if not target.explicit:
        yield from _files(target, files, held, used, tried)


def _files(
    target: SshTarget,
    files: list[str],
    held: dict[bytes, paramiko.AgentKey],
    used: set[bytes],
    tried: _TriedKeys,
) -> Iterator[tuple[str, paramiko.PKey]]:
    for path in files:
        blob = public_blob(Path(path)) if held else None
        if blob is not None and blob in held:
            if blob not in used:
                used.add(blob)
                yield from _of_the_agent(path, held[blob], target)
            continue
        key = _load(path, target, tried)
        if key is not None and key.asbytes() not in used:
            used.add(key.asbytes())
            for certificate in _certificates(path, target):
                yield f"{path} with {certificate}", _certified(path, certificate)
            yield path, key


def _of_the_agent(
    path: str, key: paramiko.AgentKey, target: SshTarget
) -> Iterator[tuple[str, paramiko.PKey]]:
    """A key of the agent that the configuration names: with its certificates, which may be newer, then alone."""
    for certificate in _certificate_files(path, target):
        with suppress(Exception):
            key.load_certificate(certificate)
            yield f"{path} in the agent with {certificate}", key
    key.public_blob = None
    yield f"{path} in the agent", key


def _load(path: str, target: SshTarget, tried: _TriedKeys) -> paramiko.PKey | None:
    kept = _keys.find(path)
    if kept is not None:
        return kept
    if not os.path.exists(path):
        if target.explicit:
            tried.hints.append(f"{path} is not there")
        return None
    sources = Sources()
    sources.note(path)
    # `from_path` looks for a certificate beside the key, too.
    sources.note(f"{path}-cert.pub")
    try:
        key = paramiko.PKey.from_path(path)
    except (paramiko.PasswordRequiredException, TypeError):
        tried.hints.append(
            f"{path} is encrypted and no agent holds it: run `ssh-add {path}` and try again"
        )
        return None
    except PermissionError:
        tried.hints.append(f"{path} cannot be read by this user")
        return None
    except Exception as error:
        if _of_public_file(Path(path)) is not None:
            tried.hints.append(f"{path} is a public key, and no agent has its private key")
        else:
            tried.hints.append(f"{path} is not a private key that can be used here ({error})")
        return None
    # `from_path` loads a certificate beside the key; the plain key and the certificate are tried one after the other.
    key.public_blob = None
    return _keys.keep(path, key, sources)


def _certificates(path: str, target: SshTarget) -> list[str]:
    """Certificate files for this key, from the configuration or beside it."""
    found = []
    for candidate in _certificate_files(path, target):
        with suppress(Exception):
            if os.path.exists(candidate):
                _certified(path, candidate)
                found.append(candidate)
    return found


def _certificate_files(path: str, target: SshTarget) -> list[str]:
    return list(dict.fromkeys((*target.certificates, f"{path}-cert.pub")))


def _certified(path: str, certificate: str) -> paramiko.PKey:
    key = paramiko.PKey.from_path(path)
    key.public_blob = None
    key.load_certificate(certificate)
    return key


def public_blob(path: Path) -> bytes | None:
    """The public half of a key that a file names, even if encrypted.

    It is that of the `.pub` beside the file, that in the header of the private key, or the file itself: where an agent
    or a token has the key, there may be no other.
    """
    with suppress(OSError, ValueError, IndexError):
        return base64.b64decode(path.with_name(f"{path.name}.pub").read_text().split()[1])
    with suppress(OSError, ValueError, IndexError):
        lines = path.read_text().strip().splitlines()
        if "OPENSSH PRIVATE KEY" in lines[0]:
            return _public_of(base64.b64decode("".join(lines[1:-1])))
    return _of_public_file(path)


def _of_public_file(path: Path) -> bytes | None:
    """The key of a file that holds one public key; None for any other file."""
    with suppress(OSError, ValueError):
        kind, text, *_ = path.read_text().split()
        blob = base64.b64decode(text, validate=True)
        name = kind.encode()
        # A key begins with its own kind.
        return blob if blob.startswith(len(name).to_bytes(4, "big") + name) else None
    return None


def _public_of(content: bytes) -> bytes | None:
    if not content.startswith(_MAGIC):
        return None
    rest = content[len(_MAGIC) :]
    for _ in range(3):  # cipher, key derivation, its options
        length = int.from_bytes(rest[:4], "big")
        rest = rest[4 + length :]
    length = int.from_bytes(rest[4:8], "big")
    return rest[8 : 8 + length]


# Wording


def _keys_only(target: SshTarget, what: str, remedy: str) -> NodeUnreachable:
    return NodeUnreachable(
        f"host {target.label}: it {what}; flowlite logs in with keys only. {remedy}",
        host=target.name,
        patience=_REFUSED_SECONDS,
    )


def _refused(
    target: SshTarget, tried: _TriedKeys, transport: paramiko.Transport
) -> NodeUnreachable:
    keys = ", ".join(tried.keys) or "no key, since none was found"
    hints = "".join(f"; {hint}" for hint in tried.hints)
    if len(tried.keys) > 3 and not transport.is_active():
        hints += "; it hung up after so many: set IdentityFile and IdentitiesOnly for it"
    return NodeUnreachable(
        f"host {target.label}: logging in as {target.user!r} was refused; tried {keys}{hints}. "
        f"Add your public key to ~{target.user}/.ssh/authorized_keys there, or set User and IdentityFile "
        f"for {target.name} in {target.config_file or '~/.ssh/config'}",
        host=target.name,
        patience=None if tried.broke else _REFUSED_SECONDS,
    )
