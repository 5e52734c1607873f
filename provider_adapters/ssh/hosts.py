"""What a host is: asked in one round trip, and remembered until it has been started anew."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from flowlite.connect import programs
from flowlite.connect.bounded import last_line, parse_object
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.host_lease.client import NAME as LEASE
from flowlite.state import clock
from provider_adapters.ssh.pools import Host

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from flowlite.connect.ssh.targets import SshTarget

Item = TypeVar("Item")
Value = TypeVar("Value")

# What a host said of itself is believed so long when a task is planned; at the launch, until it was started anew.
FRESH_SECONDS = 600.0
_PROBE_SECONDS = 60.0
# A host that is to answer at once, and does not within this time, is out of reach.
PATIENCE = 5.0
_THREADS = 64
# A Python that answered before is taken as it is, if it is still there.
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
"""Any Python of the last years can say what the host is: its program comes on standard input."""
_PROBE = Path(__file__).with_name("probe_script.py")
_PROBE_NEEDS = (
    "system.peer_credentials",
    "system.ownership",
    "system.runtime_dir",
    "host_lease.asking",
)


@dataclass(frozen=True, slots=True)
class Facts:
    """What a host says of itself.

    Attributes:
        boot: The kernel's id of this run of the machine.
        pythons: Path and version of every interpreter that was found, those to prefer first.
        gpus: {"index", "uuid", "name", "memory_gb"} each, as `nvidia-smi` lists them.
        ssh_address: Its own address on the way that the client came.
        default_address: Its own address on the way to the world; "" if there is none.
        root: Absolute path of everything flowlite keeps there.
        unsafe: Why others can change what lies there; "" if they cannot.
        unwritable: Why nothing can be written there; "" if it can.
        sockets: What is wrong with the usual place of sockets, so that another one serves; "" if nothing is.
        no_sockets: Why there is no place for them at all; "" if there is.
        ends_at_logout: Whether processes of the user are killed when his last session ends.
        clock_ahead: Seconds its clock is ahead of this machine's.
        seen_at: Unix time of this machine when it said so.
    """

    boot: str = ""
    hostname: str = ""
    system: str = ""
    machine: str = ""
    home: str = ""
    root: str = ""
    unsafe: str = ""
    unwritable: str = ""
    sockets: str = ""
    no_sockets: str = ""
    uid: int = -1
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
        """Where others probably reach it."""
        loopback = self.ssh_address.startswith("127.") or self.ssh_address in ("", "::1")
        return (self.default_address or self.ssh_address) if loopback else self.ssh_address

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Facts:
        """Reads what the host printed, or what was remembered of it."""
        names = {each.name for each in fields(cls)}
        values = {key: value for key, value in data.items() if key in names}
        values["pythons"] = tuple((str(p), str(v)) for p, v in values.get("pythons", ()))
        for name in ("gpus", "tools"):
            values[name] = tuple(values.get(name, ()))
        return cls(**values)


def connect(host: Host) -> Connection:
    """A connection to a host. Raises NodeUnreachable or ConfigError."""
    return connect_to(host.target)


def connect_to(target: Mapping[str, Any]) -> Connection:
    """A connection to what a pool's entry says."""
    from flowlite.connect.ssh.connection import SshConnection

    return SshConnection(_resolved(target))


def target_of(host: Host) -> SshTarget:
    """Where a host is, and how to log in there. Raises ConfigError."""
    return _resolved(host.target)


def _resolved(target: Mapping[str, Any]) -> SshTarget:
    from flowlite.connect.ssh.targets import resolve_target

    table = {key: value for key, value in target.items() if key != "config_file"}
    return resolve_target(table, target.get("config_file"))


def probe(host: Host, connection: Connection) -> tuple[Facts, dict[str, Any] | None]:
    """Asks a host what it is, and who holds it. Raises NodeUnreachable, ProviderError."""
    asked = {"node_dir": host.node_dir, "lease": LEASE, "pythons": _preferred(host)}
    began = time.time()
    told = _ask(host, connection, asked)
    ahead = float(told.get("now", began)) - (began + time.time()) / 2
    if told.get("system", "linux") != "linux":
        raise ProviderError(f"{host.name} runs {told['system']}; hosts need Linux")
    if not told.get("root"):
        # No Python has expanded it.
        told["root"] = host.node_dir.replace("~", str(told.get("home", "")), 1)
    facts = Facts.from_json({**told, "clock_ahead": round(ahead, 2), "seen_at": clock.now()})
    return facts, told.get("held")


def held_by(
    host: Host, connection: Connection, facts: Facts | None = None
) -> dict[str, Any] | None:
    """Who holds a host now; None if nobody does. Raises NodeUnreachable, ProviderError.

    Args:
        facts: What is known of the host: a Python that need not be looked for.
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
        # A login script may greet.
        return parse_object(last_line(done.stdout))
    said = (done.stderr or done.stdout).decode("utf-8", "replace").strip()[-300:]
    raise ProviderError(f"{host.name} does not say what it is (exit code {done.code}): {said}")


def _preferred(host: Host) -> list[str]:
    # Machines of one lab are often set up alike, or share their home directories.
    return [host.python] if host.python else [sys.executable]


# Remembering


class Memory:
    """What hosts said of themselves, in files under FLOW_HOME."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def facts(self, host: Host, younger_than: float | None = None) -> Facts | None:
        """What is remembered of a host; None if it is nothing, or too old."""
        try:
            facts = Facts.from_json(json.loads(self._path(host).read_bytes()))
        except (OSError, ValueError, TypeError):
            return None
        age = clock.now() - facts.seen_at
        return facts if younger_than is None or 0 <= age < younger_than else None

    def keep(self, host: Host, facts: Facts) -> None:
        """Remembers what a host said."""
        from flowlite.node.config.agent_config import write_atomically

        with suppress(OSError):
            self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
            write_atomically(self._path(host), json.dumps(asdict(facts)))

    def forget(self, host: Host) -> None:
        """Forgets it again."""
        with suppress(OSError):
            self._path(host).unlink()

    def _path(self, host: Host) -> Path:
        import hashlib

        digest = hashlib.sha256(f"{host.key}|{host.python}".encode()).hexdigest()[:16]
        return self._directory / f"{digest}.json"


def everywhere(
    items: Iterable[Item],
    do: Callable[[Item], Value],
    *expected: type[Exception],
    patience: float | None = None,
) -> list[Value | Exception]:
    """Calls a function for every item at once. An expected error stands in the place of its value.

    What takes longer than `patience` seconds counts as out of reach; it is left to come to its end by itself.
    """
    listed = list(items)
    results: dict[int, Value | Exception] = {}
    places = threading.BoundedSemaphore(_THREADS)

    def call(index: int, item: Item) -> None:
        with places:
            try:
                results[index] = do(item)
            except Exception as error:
                results[index] = error

    if len(listed) == 1 and patience is None:
        call(0, listed[0])
    else:
        _wait_for(
            [threading.Thread(target=call, args=each, daemon=True) for each in enumerate(listed)],
            patience,
        )
    late = NodeUnreachable(f"no answer within {patience or 0:.0f} s")
    found = [results.get(index, late) for index in range(len(listed))]
    for each in found:
        if isinstance(each, Exception) and not isinstance(each, expected):
            raise each
    return found


def _wait_for(threads: list[threading.Thread], patience: float | None) -> None:
    until = None if patience is None else time.monotonic() + patience
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(None if until is None else max(0.0, until - time.monotonic()))
