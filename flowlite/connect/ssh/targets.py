"""The address of a host and how to log in, from what the user wrote and OpenSSH's configuration."""

from __future__ import annotations

import ipaddress
import os
import re
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from flowlite.connect.ssh import config
from flowlite.connect.ssh.kept_values import KeptValues, Sources
from flowlite.errors import ConfigError
from flowlite.node.quick_dataclass import dataclass

PORT = 22
# The keys that OpenSSH tries if no IdentityFile is set, as far as paramiko can read them.
_DEFAULT_IDENTITIES = ("~/.ssh/id_ed25519", "~/.ssh/id_ecdsa", "~/.ssh/id_rsa")
_DEFAULT_KNOWN = ("~/.ssh/known_hosts", "~/.ssh/known_hosts2")
_GLOBAL_KNOWN = ("/etc/ssh/ssh_known_hosts", "/etc/ssh/ssh_known_hosts2")
_MOST_JUMPS = 8
_WRITTEN = re.compile(
    r"(?:ssh://)?(?:(?P<user>.+)@)?(?:\[(?P<bare>[^\]]+)\]|(?P<host>[^@:]+|[^@]*:[^@]*:[^@]*))"
    r"(?::(?P<port>[^:\]]*))?/?"
)
_KEYS = ("host", "user", "port", "identity_file", "jump", "name")
# Refused by OpenSSH, too: names are inserted unquoted into commands of the configuration (`%h`, `%n`, `%r`).
_NOT_IN_NAMES = set("'`\"$;&<>|(){}")


@dataclass(frozen=True, slots=True)
class SshTarget:
    """One host to log in to.

    Attributes:
        name: The host's name in messages: an alias of the configuration, or what the user wrote.
        host: Name or address to connect to.
        identities: Private key files, in order.
        jump: Jump hosts in order; each is reached through those before it.
        host_key_name: The name its key is listed under; `host` with the port where that is not 22.
        config_file: The configuration it came from; None for OpenSSH's usual files.
        explicit: Whether `identities` were configured, rather than being the default files.
        identities_only: Whether other keys of the SSH agent are ignored.
        agent: Socket of the SSH agent; None for `SSH_AUTH_SOCK`, "" for no agent.
        known_hosts: Files of known host keys, besides flowlite's own.
        revoked_keys: Files of keys that no host may have (RevokedHostKeys).
        proxy_command: A command whose standard input and output lead to the host.
        family: The only kind of addresses to connect to, "inet" or "inet6"; "" for both.
        bind_address: The address here to connect from; "" for any.
    """

    name: str
    user: str
    host: str
    port: int = PORT
    identities: tuple[str, ...] = ()
    jump: tuple[SshTarget, ...] = ()
    host_key_name: str = ""
    config_file: str | None = None
    explicit: bool = False
    identities_only: bool = False
    certificates: tuple[str, ...] = ()
    agent: str | None = None
    known_hosts: tuple[str, ...] = ()
    revoked_keys: tuple[str, ...] = ()
    proxy_command: str | None = None
    family: str = ""
    bind_address: str = ""

    @property
    def address(self) -> str:
        """`user@host:port`, the port only where it is not 22."""
        host = f"[{self.host}]" if ":" in self.host and self.port != PORT else self.host
        return f"{self.user}@{host}" + (f":{self.port}" if self.port != PORT else "")

    @property
    def label(self) -> str:
        """The host's name in messages: `lab1 (user@10.0.0.3)`, with its jump hosts."""
        way = f" through {', '.join(hop.name for hop in self.jump)}" if self.jump else ""
        if self.name in (self.host, self.address):
            return f"{self.address}{way}"
        return f"{self.name} ({self.address}{way})"


def resolve_target(
    written: str | Mapping[str, object], config_file: str | Path | None = None
) -> SshTarget:
    """Resolves an alias, `user@host:port`, or a table with host, user, port, identity_file, jump.

    What the user wrote takes precedence over the configuration. No connection is made.

    Args:
        config_file: An OpenSSH configuration; the default is `FLOW_SSH_CONFIG`, else OpenSSH's usual files.

    Raises:
        ConfigError: `written` is invalid, or the configuration cannot be read.
    """
    config_file = config_file or os.environ.get("FLOW_SSH_CONFIG") or None
    file = str(config_file) if config_file else None
    # `~`, `%l` and the default user stand for the same as long as these are the same.
    person = (os.environ.get("HOME"), os.environ.get("USER"), os.getuid())
    given = repr(written if isinstance(written, str) else dict(written))
    key = (*person, socket.gethostname(), file, given)
    found = _resolved.find(key)
    if found is not None:
        return found
    sources = Sources()
    target = _resolve(_table(written), file, 0, sources, with_jump=True)
    return _resolved.keep(key, target, sources)


_resolved: KeptValues[SshTarget] = KeptValues()


def _table(written: str | Mapping[str, object]) -> dict[str, object]:
    if isinstance(written, str):
        return parse_written(written)
    unknown = [key for key in written if key not in _KEYS]
    if unknown:
        raise ConfigError(
            f"host {dict(written)!r}: {unknown[0]!r} is not one of {', '.join(_KEYS)}"
        )
    host = written.get("host")
    if not isinstance(host, str) or not host:
        raise ConfigError(f"host {dict(written)!r}: give host, a name or an address")
    given = {key: value for key, value in written.items() if value is not None}
    return {**parse_written(host), **{k: v for k, v in given.items() if k != "host"}}


def parse_written(text: str) -> dict[str, object]:
    """The parts of `[ssh://][user@]host[:port]`; the host of a bare IPv6 address needs no brackets.

    As with `ssh`, the last `@` ends the user, whose name may have a domain: `ada@corp.example@gpu1`.
    """
    found = _WRITTEN.fullmatch(text)
    host = found and (found["bare"] or found["host"])
    if found is None or not host or not _is_host(host):
        raise ConfigError(f"host {text!r}: give a name, an address, or user@host:port")
    parts: dict[str, object] = {"host": host, "name": text}
    if found["user"]:
        parts["user"] = found["user"]
    if found["port"]:
        parts["port"] = found["port"]
    return parts


def _is_host(text: str) -> bool:
    """Whether a text may be a name or an address. A leading dash would make it an option of `ssh`."""
    if ":" not in text:
        return not text.startswith("-") and re.fullmatch(r"[^\s/'\"]+", text) is not None
    try:
        ipaddress.IPv6Address(text.partition("%")[0])
    except ValueError:
        return False
    return True


def is_host_name(text: str) -> bool:
    """Whether a text may be used as a host name; like OpenSSH, refuses characters that a shell could interpret."""
    return _is_name(text) and "\\" not in text


def is_user_name(text: str) -> bool:
    """Whether a text may be used as a user name; like OpenSSH, refuses characters that a shell could interpret."""
    return _is_name(text) and not text.endswith("\\")


def _is_name(text: str) -> bool:
    plain = text.isprintable() and not any(each.isspace() for each in text)
    return bool(text) and plain and not text.startswith("-") and not _NOT_IN_NAMES & set(text)


def _check_names(host: str, user: str | None, alias: str) -> None:
    """Raises ConfigError for a name that is unsafe in a command."""
    if not is_host_name(host):
        raise ConfigError(f"host {alias!r}: its name {host!r} has invalid characters")
    if user is not None and not is_user_name(user):
        raise ConfigError(f"host {alias!r}: the name of its user {user!r} has invalid characters")


def _resolve(
    table: Mapping[str, object],
    config_file: str | None,
    depth: int,
    sources: Sources,
    *,
    with_jump: bool,
) -> SshTarget:
    if depth > _MOST_JUMPS:
        raise ConfigError(f"host {table['host']!r}: its ProxyJump leads in a circle, or too far")
    alias = str(table["host"])
    given_user = str(table["user"]) if table.get("user") else None
    # Checked before the configuration is read: `Match exec` runs commands that contain these names.
    _check_names(alias, given_user, alias)
    options = config.lookup(
        alias, config.default_files(config_file), user=given_user, sources=sources
    )
    if any("$" in word for words in options.values() for word in words):
        # It names variables.
        sources.depend()

    def first(keyword: str, default: str = "") -> str:
        return options.get(keyword, [default])[0]

    user = given_user or first("user") or config.local_user()
    port = _port(table.get("port") or first("port") or PORT, alias)
    # What the user wrote has no tokens: `%` begins the zone of an address (`fe80::1%hsn0`).
    named = first("hostname")
    hostname = (config.expand(named, {"h": alias}) if named else alias).lower()
    _check_names(hostname, user, alias)
    values = config.tokens(alias, hostname, user, str(port))
    own = str(table["identity_file"]) if table.get("identity_file") else ""
    identities = [own] if own else options.get("identityfile", [])
    expanded = [config.expand_path(text, values) for text in identities if text != "none"]
    target = SshTarget(
        name=str(table.get("name") or alias),
        user=user,
        host=hostname,
        port=port,
        identities=tuple(
            expanded if identities else (os.path.expanduser(p) for p in _DEFAULT_IDENTITIES)
        ),
        # Names in `known_hosts` are compared in lower case.
        host_key_name=first("hostkeyalias").lower() or key_name(hostname, port),
        config_file=config_file,
        explicit=bool(identities),
        identities_only=first("identitiesonly").lower() in ("yes", "true"),
        certificates=tuple(
            config.expand_path(text, values)
            for text in options.get("certificatefile", [])
            if text != "none"
        ),
        agent=_agent(first("identityagent"), values),
        known_hosts=_known_hosts(options, values),
        revoked_keys=tuple(
            config.expand_path(text, values)
            for text in options.get("revokedhostkeys", [])
            if text.lower() != "none"
        ),
        family=first("addressfamily").lower() if first("addressfamily").lower() != "any" else "",
        bind_address=first("bindaddress"),
    )
    if not with_jump:
        return target
    if table.get("jump"):
        return replace(target, jump=_jump(str(table["jump"]), values, config_file, depth, sources))
    if first("proxyjump", "none").lower() != "none":
        return replace(target, jump=_jump(first("proxyjump"), values, config_file, depth, sources))
    command = first("proxycommand")
    if command and command.lower() != "none":
        return replace(target, proxy_command=config.expand(command, values))
    return target


def _jump(
    text: str, values: dict[str, str], config_file: str | None, depth: int, sources: Sources
) -> tuple[SshTarget, ...]:
    """The hosts of a ProxyJump. The first one's own ProxyJump counts, too; that of the others does not."""
    if text.lower() == "none":
        return ()
    hops: list[SshTarget] = []
    for position, part in enumerate(config.expand(text, values).split(",")):
        table = parse_written(part.strip())
        hop = _resolve(table, config_file, depth + 1, sources, with_jump=position == 0)
        hops += [*hop.jump, replace(hop, jump=())] if position == 0 else [hop]
    return tuple(hops)


def _port(value: object, alias: str) -> int:
    text = str(value)
    if not text.isdecimal() or not 0 < int(text) < 65536:
        raise ConfigError(f"host {alias!r}: {text!r} is not a port; give 1 to 65535")
    return int(text)


def key_name(host: str, port: int) -> str:
    """The name under which a host's key is listed."""
    return host.lower() if port == PORT else f"[{host.lower()}]:{port}"


def _agent(text: str, values: dict[str, str]) -> str | None:
    if not text or text == "SSH_AUTH_SOCK":
        return None
    if text.lower() == "none":
        return ""
    if text.startswith("$") and not text.startswith("${"):
        return os.environ.get(text[1:], "")
    return config.expand_path(text, values)


def _known_hosts(options: config.Options, values: dict[str, str]) -> tuple[str, ...]:
    own = options.get("userknownhostsfile", list(_DEFAULT_KNOWN))
    shared = options.get("globalknownhostsfile", list(_GLOBAL_KNOWN))
    texts = [text for text in (*own, *shared) if text.lower() != "none"]
    # A file of keys that everybody may write to proves nothing.
    paths = [config.expand_path(text, values) for text in texts]
    return tuple(path for path in paths if path != os.devnull)
