"""The facts of hosts: collected in one round trip, and cached until the host reboots."""

from __future__ import annotations

import collections
import ipaddress
import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flowlite.connect import programs
from flowlite.connect.bounded import last_line, parse_object
from flowlite.errors import ConfigError, NodeUnreachable, ProviderError
from flowlite.node.host_lease.client import NAME as LEASE
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.system.atomic_files import place
from flowlite.state import clock
from provider_adapters.ssh import host_answers
from provider_adapters.ssh.pools import Host

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.connect.ssh.targets import SshTarget

Item = TypeVar("Item")
Value = TypeVar("Value")

# How long cached facts are used for planning; a launch uses them until the host reboots.
FRESH_SECONDS = 600.0
_PROBE_SECONDS = 60.0
# A host that has to answer promptly and does not within this time counts as unreachable.
PATIENCE = 5.0
TROUBLE = (ProviderError, ConfigError, OSError)
"""What one host may raise while the others go on."""
_THREADS = 64
# A Python that worked before is used again if it still exists.
_KNOWN = """\
[ -x "$2" ] && exec "$2" -I -S - "$1"
"""
FIND = """\
asked=$1; shift
for p in "$@" python3 /usr/bin/python3 /usr/local/bin/python3 "$HOME"/.pyenv/versions/*/bin/python3 \
    "$HOME"/miniconda3/bin/python3 "$HOME"/miniforge3/bin/python3 "$HOME"/anaconda3/bin/python3 \
    "$HOME"/.local/share/uv/python/*/bin/python3 /opt/*/bin/python3; do
  case $p in "~/"*) p=$HOME/${p#"~/"};; esac
  if "$p" -I -S -c 'import sys; sys.exit(sys.version_info < (3, 6))' </dev/null >/dev/null 2>&1; then
    exec "$p" -I -S - "$asked"
  fi
done
printf '{"pythons": [], "machine": "%s", "home": "%s"}\n' "$(uname -m)" "$HOME"
"""
"""Any Python 3 of recent years can report the facts; the program is sent on standard input."""
_PROBE = Path(__file__).with_name("on_hosts") / "probe_script.py"
_PROBE_NEEDS = (
    "system.peer_credentials",
    "system.ownership",
    "system.runtime_dir",
    "host_lease.requests",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """The facts that a host reports.

    Attributes:
        boot: The kernel's boot id.
        pythons: Path and version of every interpreter found, the preferred ones first.
        gpus: {"index", "uuid", "name", "memory_gb"} each, as `nvidia-smi` lists them.
        ssh_address: Its own address on the interface through which the client connected.
        default_address: Its own address on the default route; "" if there is none.
        root: Absolute path of flowlite's directory on the host.
        unsafe: Why other users can change that directory; "" if they cannot.
        unwritable: Why it cannot be written to; "" if it can.
        sockets: Why the default directory for sockets is unusable, so that another one is used; "" if it is usable.
        no_sockets: Why there is no place for sockets at all; "" if there is.
        ends_at_logout: Whether the user's processes are killed when the last session ends.
        clock_ahead: Seconds by which its clock is ahead of this machine's.
        seen_at: Unix time of this machine when the facts were reported.
    """

    boot: str = ""
    machine: str = ""
    home: str = ""
    root: str = ""
    unsafe: str = ""
    unwritable: str = ""
    sockets: str = ""
    no_sockets: str = ""
    pythons: tuple[tuple[str, str], ...] = ()
    cores: int = 0
    memory_gb: float = 0.0
    gpus: tuple[dict[str, Any], ...] = ()
    ssh_address: str = ""
    default_address: str = ""
    disk: dict[str, float] = field(default_factory=dict)
    tools: tuple[str, ...] = ()
    ends_at_logout: bool = False
    clock_ahead: float = 0.0
    seen_at: float = 0.0

    @property
    def address(self) -> str:
        """The address at which other hosts can probably reach it."""
        if self.ssh_address and not _is_local(self.ssh_address):
            return self.ssh_address
        return self.default_address or self.ssh_address

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Reads the host's output, or the cached facts."""
        names = {each.name for each in fields(cls)}
        values = {key: value for key, value in data.items() if key in names}
        values["pythons"] = tuple((str(p), str(v)) for p, v in values.get("pythons", ()))
        for name in ("gpus", "tools"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def _is_local(address: str) -> bool:
    """Whether others cannot use an address: 127.0.0.1 behind a tunnel, or fe80::1 on a cable."""
    return ipaddress.ip_address(address).is_loopback or is_of_one_link(address)


def is_of_one_link(address: str) -> bool:
    """Whether it is an IPv6 address that means nothing without the name of an interface, and so no rank can use."""
    try:
        found = ipaddress.ip_address(address)
    except ValueError:
        return False
    return found.version == 6 and found.is_link_local


def lacks_address(host: Host, address: str) -> str:
    """Why a host cannot be in a gang, if its address is of one link."""
    return (
        f"the only address of {host.name} that is known here is {address}, which other hosts cannot use as it is; set "
        "its `private_ip`"
    )


def connect(host: Host) -> Connection:
    """A connection to a host. Raises NodeUnreachable or ConfigError."""
    return connect_to(host.target)


def connect_to(target: Mapping[str, Any]) -> Connection:
    """A connection to the target of a pool's entry."""
    from flowlite.connect.ssh.connection import SshConnection

    return SshConnection(_resolved(target))


def target_of(host: Host) -> SshTarget:
    """The address of a host and how to log in. Raises ConfigError."""
    return _resolved(host.target)


def _resolved(target: Mapping[str, Any]) -> SshTarget:
    from flowlite.connect.ssh.targets import resolve_target

    table = {key: value for key, value in target.items() if key != "config_file"}
    return resolve_target(table, target.get("config_file"))


def probe(host: Host, connection: Connection) -> tuple[Facts, dict[str, Any] | None]:
    """Collects the facts of a host, and the holder of its lease. Raises NodeUnreachable, ProviderError."""
    asked = {"node_dir": host.node_dir, "lease": LEASE, "pythons": _preferred(host)}
    began = time.time()
    told = _ask(host, connection, asked)
    ahead = float(told.get("now", began)) - (began + time.time()) / 2
    if told.get("system", "linux") != "linux":
        raise ProviderError(f"{host.name} runs {told['system']}; hosts need Linux")
    if not told.get("root"):
        # The host has no Python that could expand the path.
        told["root"] = host.node_dir.replace("~", str(told.get("home", "")), 1)
    facts = Facts.from_json({**told, "clock_ahead": round(ahead, 2), "seen_at": clock.now()})
    return facts, told.get("held")


def held_by(
    host: Host, connection: Connection, facts: Facts | None = None
) -> dict[str, Any] | None:
    """The holder of a host's lease; None if it is free. Raises NodeUnreachable, ProviderError.

    Args:
        facts: Known facts of the host; their Python need not be searched for.
    """
    asked = {"node_dir": host.node_dir, "lease": LEASE, "brief": True}
    held = _ask(host, connection, asked, facts).get("held")
    return dict(held) if held else None


def _ask(
    host: Host, connection: Connection, asked: dict[str, Any], facts: Facts | None = None
) -> dict[str, Any]:
    program = programs.sent(_PROBE, *_PROBE_NEEDS)
    known = [facts.pythons[0][0]] if facts is not None and facts.pythons else []
    first = [*known, *([host.python] if host.python else [])]
    argv = ["sh", "-c", _KNOWN + FIND, "sh", json.dumps(asked), *first]
    if not known:
        argv[2] = FIND
    try:
        done = connection.run(argv, input=program, timeout=_PROBE_SECONDS)
    except TimeoutError as error:
        raise NodeUnreachable(
            f"{host.name} lets us log in, but runs nothing within {_PROBE_SECONDS:.0f} s; look at its load and disks"
        ) from error
    with suppress(ValueError):
        # Login scripts may print a greeting.
        told = parse_object(last_line(done.stdout))
        return host_answers.of_host(told)
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
    raise ProviderError(f"{host.name} does not say what it is (exit code {done.code}): {said}")


def _preferred(host: Host) -> list[str]:
    # Machines of one lab often have the same setup, or share home directories.
    return [host.python] if host.python else [sys.executable]


# The cache


class Memory:
    """The cached facts of hosts, in files under FLOW_HOME."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def facts(self, host: Host, younger_than: float | None = None) -> Facts | None:
        """The cached facts of a host; None if there are none, or they are too old."""
        try:
            facts = Facts.from_json(json.loads(self._path(host).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        age = clock.now() - facts.seen_at
        return facts if younger_than is None or 0 <= age < younger_than else None

    def keep(self, host: Host, facts: Facts) -> None:
        """Caches the facts of a host."""
        with suppress(OSError):
            place(json.dumps(asdict(facts)).encode(), str(self._path(host)))

    def forget(self, host: Host) -> None:
        """Drops the cached facts of a host."""
        with suppress(OSError):
            self._path(host).unlink()

    def _path(self, host: Host) -> Path:
        import hashlib

        digest = hashlib.sha256(f"{host.key}|{host.python}".encode()).hexdigest()[:16]
        return self._directory / f"{digest}.json"


def ask_now(host: Host, memory: Memory) -> tuple[Facts, dict[str, Any] | None]:
    """As `probe`, over a connection of its own. The facts are cached. Raises as `connect`, too."""
    with connect(host) as connection:
        facts, held = probe(host, connection)
    memory.keep(host, facts)
    return facts, held


def everywhere(
    items: Iterable[Item],
    do: Callable[[Item], Value],
    *expected: type[Exception],
    patience: float | None = None,
) -> list[Value | Exception]:
    """Calls a function for all items in parallel. An expected error is returned in place of the value, others raised.

    Once no call has ended for `patience` seconds, those in progress count as unreachable and are left to finish in the
    background, and those that have not begun are not made and count as unreachable, too.
    """
    listed = list(items)
    results: dict[int, Value | BaseException] = {}
    waiting = collections.deque(enumerate(listed))
    changed = threading.Condition()
    ended_at = time.monotonic()

    def work() -> None:
        nonlocal ended_at
        while True:
            try:
                index, item = waiting.popleft()
            except IndexError:
                return
            try:
                result: Value | BaseException = do(item)
            except BaseException as error:
                result = error
            with changed:
                results[index], ended_at = result, time.monotonic()
                if len(results) == len(listed):
                    changed.notify()

    if len(listed) == 1 and patience is None:
        work()
    else:
        for _ in range(min(_THREADS, len(listed))):
            threading.Thread(target=work, daemon=True).start()
    with changed:
        while len(results) < len(listed):
            left = None if patience is None else ended_at + patience - time.monotonic()
            if left is not None and left <= 0:
                break
            changed.wait(left)
        waiting.clear()
        late = NodeUnreachable(f"no answer within {patience or 0:.0f} s")
        ended = [results.get(index, late) for index in range(len(listed))]
    found: list[Value | Exception] = []
    for each in ended:
        if isinstance(each, BaseException) and not isinstance(each, expected):
            raise each
        found.append(each)
    return found
