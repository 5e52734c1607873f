"""Pools of hosts in the configuration: `[ssh.pools.NAME]`. Errors name the file and key."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from flowlite.connect.ssh.targets import is_host_name, is_user_name
from flowlite.errors import ConfigError, SpecError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider.json_value import copied
from flowlite.settings.provider_settings import SSH_CONFIG_VARIABLE, ProviderSettings, read_table
from flowlite.settings.suggest import did_you_mean
from flowlite.spec.gpu import GpuRequest

NODE_DIR = "~/.flowlite-node"
# Keys whose values are paths on this machine.
LOCAL_FILES = frozenset({"identity_file", "config_file"})
_POOL_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")


@dataclass(frozen=True, slots=True)
class Host:
    """One host of a pool.

    Attributes:
        name: Its name in messages: as written in the pool, without user and port.
        index: Its position in the pool.
        pool: The pool's name.
        target: The input of `resolve_target`.
        private_ip: The address at which other hosts reach it; "" for the one it reports.
        python: Interpreter to use; "" to search for one.
        gpus: Its GPUs, as a GPU string; "" for those that `nvidia-smi` lists.
        node_dir: flowlite's directory on it.
    """

    name: str
    index: int
    pool: str
    target: dict[str, Any]
    private_ip: str = ""
    python: str = ""
    gpus: str = ""
    node_dir: str = NODE_DIR

    @property
    def key(self) -> str:
        """A key that is equal for two entries that lead to the same login."""
        ask = self.target.get
        login = f"{ask('config_file') or ''}|{ask('user') or ''}|{ask('host') or ''}|{ask('port') or ''}"
        return f"{login}|{self.node_dir}"

    def to_json(self) -> dict[str, Any]:
        """A dict of plain JSON values."""
        return dict(copied(self))

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Host:
        """Rebuilds from `to_json`."""
        return cls(**data)


@dataclass(frozen=True, slots=True)
class Pool:
    """Hosts that can be used together. `origin` is the file it comes from."""

    name: str
    hosts: tuple[Host, ...]
    shared_dir: str = ""
    origin: str = ""


# Reading


def from_environment(found: ProviderSettings, environment: Mapping[str, str]) -> ProviderSettings:
    """The settings, with `config_file` replaced by its environment variable if that is set."""
    if path := environment.get(SSH_CONFIG_VARIABLE):
        return found.with_value("config_file", path, SSH_CONFIG_VARIABLE)
    return found


def read_pools(settings: ProviderSettings) -> dict[str, Pool]:
    """All pools, by name.

    Raises:
        ConfigError: A pool is invalid.
    """
    common = _common(settings)
    tables = settings.values.get("pools", {})
    if not isinstance(tables, dict) or not all(isinstance(t, dict) for t in tables.values()):
        where = settings.origin_of("pools")
        raise ConfigError(f"{where}: write the hosts of a pool under [ssh.pools.NAME]")
    return {
        name: _read_pool(name, table, common, settings.origin_of("pools", name))
        for name, table in tables.items()
    }


def config_file(settings: ProviderSettings) -> str | None:
    """The OpenSSH configuration for all pools; None for the usual ones. Raises ConfigError."""
    return _common(settings).get("config_file")


def _common(settings: ProviderSettings) -> dict[str, Any]:
    """The settings in `[ssh]` that apply to all pools. Raises ConfigError."""
    return _read(settings.values, _TABLE, "[ssh]", settings.origin_of())


def choose_pool(
    settings: ProviderSettings, region: str | None = None, option: str = "region"
) -> Pool:
    """The pool of a task: the one named by `region` or the setting `pool`, or the only one that has hosts.

    Args:
        settings: With the pools.
        region: The name of a pool; None for the usual one.
        option: What the pool is chosen by, for messages.

    Raises:
        ConfigError: There is no pool, or more than one to choose from.
    """
    pools = read_pools(settings)
    if not pools:
        raise ConfigError(
            "the ssh provider has no hosts yet: `flow hosts add NAME` adds one, with NAME as you would write it "
            "after `ssh`; or write a pool under [ssh.pools.NAME] in flow.toml (docs/providers/ssh.md)"
        )
    wanted = region or settings.values.get("pool")
    # `flow hosts remove` leaves a pool without hosts, and its settings.
    usable = [name for name, pool in pools.items() if pool.hosts] or list(pools)
    if wanted is None and len(usable) > 1:
        how = f"{option}=" if option == "region" else option
        raise ConfigError(
            f"there are {len(usable)} pools: {', '.join(usable)}. Say which with {how}, or set `pool` under [ssh]"
        )
    name = wanted or usable[0]
    if name not in pools:
        what = option if region else f"{settings.origin_of('pool')}: [ssh] pool"
        guess = did_you_mean(name, pools) or f"; known: {', '.join(pools)}"
        raise ConfigError(f"{what}: there is no pool {name!r}{guess}")
    if not pools[name].hosts:
        raise ConfigError(
            f"the pool {name!r} has no hosts: `flow hosts add NAME --pool {name}` adds one"
        )
    return pools[name]


def _read_pool(name: str, table: dict[str, Any], common: dict[str, Any], origin: str) -> Pool:
    where = f"[ssh.pools.{name}]"
    if not _POOL_NAME.fullmatch(name):
        raise ConfigError(f"{origin}: {where}: {name!r} cannot name a pool; use letters and digits")
    own = _read(table, _POOL, where, origin)
    hosts = table.get("hosts", [])
    if not isinstance(hosts, list):
        raise ConfigError(f"{origin}: {where} hosts is {hosts!r}; give a list, as in {_EXAMPLE}")
    defaults = {**common, **own}
    defaults.pop("pool", None)
    shared = str(defaults.pop("shared_dir", ""))
    read = [_read_host(each, i, name, defaults, origin) for i, each in enumerate(hosts)]
    for i, host in enumerate(read):
        twin = next((other for other in read[:i] if other.name == host.name), None)
        if twin is not None:
            raise ConfigError(
                f"{origin}: {where} hosts: {host.name!r} stands there twice{_other_name(host, twin)}"
            )
    return Pool(name, tuple(read), shared, origin)


def _read_host(entry: Any, index: int, pool: str, defaults: dict[str, Any], origin: str) -> Host:
    where = f"[ssh.pools.{pool}] hosts[{index}]"
    if not isinstance(entry, str | dict):
        raise ConfigError(
            f"{origin}: {where} is {entry!r}; give a name, or a table as in {_TABLE_EXAMPLE}"
        )
    table = {"host": entry} if isinstance(entry, str) else entry
    own = _read(table, _HOST, where, origin)
    if "host" not in own:
        raise ConfigError(f"{origin}: {where} has no host; write it as in {_TABLE_EXAMPLE}")
    user, host, port = _split(own["host"], f"{origin}: {where}")
    # Values of the entry take precedence over those of its pool.
    parts = {"user": user, "port": port}
    found = {**defaults, **{k: v for k, v in parts.items() if v is not None}, **own}
    target: dict[str, Any] = {
        k: found[k] for k in ("user", "port", "identity_file", "config_file") if k in found
    }
    return Host(
        name=str(own.get("name") or host),
        index=index,
        pool=pool,
        target={"host": host, **target},
        private_ip=str(found.get("private_ip", "")),
        python=str(found.get("python", "")),
        gpus=str(found.get("gpus", "")),
        node_dir=str(found.get("node_dir", NODE_DIR)),
    )


def _other_name(host: Host, twin: Host) -> str:
    """What to write if two ports or users of one address lead to two machines; "" if they are the same."""
    port = host.target.get("port")
    if host.key == twin.key:
        return ""
    written = f"{host.name}:{port}" if port is not None and ":" not in host.name else host.name
    return (
        f"; if these are two machines, name one: {{host = {written!r}, name = "
        f"'{host.name}-{host.index}'}}, or give each a Host of ~/.ssh/config"
    )


def _split(text: str, where: str) -> tuple[str | None, str, int | None]:
    """The parts of `user@host:port`; an IPv6 address needs brackets if it has a port. The last `@` ends the user."""
    match = re.fullmatch(
        r"(?:(\S+)@)?(?:\[([^\]\s]+)\](?::(\d+))?|([^@\s:]+)(?::(\d+))?|([^@\s]+))", text
    )
    if match is None:
        raise ConfigError(
            f"{where}: {text!r} is not a host; write 'alias', 'user@10.0.0.3' or 'user@10.0.0.3:2222'"
        )
    user, bracketed, port6, plain, port, bare = match.groups()
    host, number = bracketed or plain or bare, port6 or port
    if not is_host_name(host):
        raise ConfigError(f"{where}: {host!r} is not a host")
    if user is not None and not is_user_name(user):
        raise ConfigError(f"{where}: {user!r} is not a user's name")
    return user, host, int(number) if number else None


# Readers of single values. A reader returns the value, or raises ValueError with what is allowed.


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value.strip() or not value.isprintable():
        raise ValueError("a text")
    return value


def _word(value: Any) -> str:
    text = _text(value)
    if text.startswith("-") or any(c.isspace() for c in text):
        raise ValueError("a word")
    return text


def _user(value: Any) -> str:
    text = _text(value)
    if not is_user_name(text):
        raise ValueError("the name of a user, without characters that mean something to a shell")
    return text


def _absolute(value: Any) -> str:
    text = _text(value)
    if not text.startswith(("/", "~/")):
        raise ValueError("an absolute path on the host, or one that begins with ~/")
    return text.rstrip("/") or "/"


def _directory(value: Any) -> str:
    text = _text(value)
    if not text.startswith("/"):
        raise ValueError("an absolute path, the same on every host")
    return text.rstrip("/") or "/"


def _local_file(value: Any) -> str:
    return os.path.expanduser(_text(value))


def _port(value: Any) -> int:
    if type(value) is not int or not 0 < value < 65536:
        raise ValueError("a port, 1 to 65535")
    return int(value)


def _address(value: Any) -> str:
    try:
        return str(ipaddress.ip_address(_text(value)))
    except ValueError:
        raise ValueError("an IP address; names are not looked up between hosts") from None


def _gpus(value: Any) -> str:
    try:
        return str(GpuRequest.parse(_text(value)))
    except SpecError as error:
        raise ValueError(f"a GPU string, as in 'h100:8' ({error})") from None


_HOST: dict[str, Callable[[Any], Any]] = {
    "host": _text,
    "name": _word,
    "private_ip": _address,
    "python": _absolute,
    "gpus": _gpus,
    "user": _user,
    "port": _port,
    "identity_file": _local_file,
    "node_dir": _absolute,
}
_SHARED = {k: v for k, v in _HOST.items() if k not in ("host", "name", "private_ip")}
_POOL = {**_SHARED, "hosts": list, "shared_dir": _directory}
_TABLE = {**_SHARED, "pools": dict, "pool": _word, "config_file": _local_file}
_EXAMPLE = "hosts = ['gpu1', 'user@10.0.0.3:2222']"
_TABLE_EXAMPLE = "{host = 'gpu1', private_ip = '10.0.0.3'}"
_NESTED = ("hosts", "pools")


def _read(
    table: Mapping[str, Any], known: Mapping[str, Callable[[Any], Any]], where: str, origin: str
) -> dict[str, Any]:
    nested = {key for key in _NESTED if key in known}
    values = {key: value for key, value in table.items() if key not in nested}
    return read_table(values, known, where, lambda _: origin)
