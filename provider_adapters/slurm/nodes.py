"""Connections to the nodes of a job, and the facts that the nodes report when the job starts."""

from __future__ import annotations

import dataclasses
import ipaddress
import re
import shlex
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.programs import SAFE_IN_SHELL, UNSAFE, unsafe
from flowlite.connect.step.connection import StepConnection
from flowlite.connect.step.errors import srun_lost
from flowlite.connect.values import File
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.helper.daemon_client import home_of, instance_id
from flowlite.node.protocol.json_shapes import count, fields, flag, text
from flowlite.node.quick_dataclass import dataclass
from flowlite.node.sbatch import hostlist
from provider_adapters.slurm.queries import parse
from provider_adapters.slurm.script import WAIT

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from provider_adapters.slurm.login import SlurmLogin

AT_START = "at_start"
"""Key of a node's facts: the hosts that its job had when its step started, in Slurm's notation."""
_MOST_AT_ONCE = 64
_DAEMON = fields(
    {"nodeid": count, "executable": text, "python": text, "shared": flag}, {"hosts": text}
)
# How long a job that fetches kept files may wait for its node; below the time that a connection may take to open.
_FREE_WITHIN_SECONDS = 90
_LONGEST_MINUTES = 60
_NO_LONGER_THERE = 107
# Runs a command on a node where outputs are kept, in the directory of a step daemon that has ended.
_FIND = (
    f'{SAFE_IN_SHELL}[ -d "$1" ] || exit {_NO_LONGER_THERE}; safe "$1" || exit {UNSAFE}; '
    'shift; exec "$@"'
)
# Options of `sbatch` that say where, and on whose account, a user may run jobs.
_WHERE = ("account", "partition", "qos", "reservation")
_WHERE_IN_SHORT = ("-A", "-p", "-q")


@dataclass(frozen=True, slots=True)
class JobNode:
    """One node of a job.

    Attributes:
        instance: Its instance id.
        host: Slurm's name of it.
        address: The address at which the other nodes reach it.
        home: The instance's directory on it.
        program: flowlite's program on it.
    """

    instance: str
    job: str
    restart: int
    nodeid: int
    host: str
    address: str
    home: str
    program: str


def hosts_of(job: parse.Job, told: Mapping[str, str]) -> list[str]:
    """The hosts that a running job has now. Raises ProviderError."""
    try:
        return hostlist.expand(told.get("NodeList", ""))
    except ValueError as error:
        raise ProviderError(f"job {job.id}: its list of nodes cannot be read: {error}") from error


def places_of(
    login: SlurmLogin,
    job: parse.Job,
    hosts: Sequence[str],
    at_start: Sequence[str],
    node_dir: str,
    program: str,
) -> list[JobNode]:
    """The nodes of a running job, by their number in it. Raises ProviderError, Silent.

    Args:
        hosts: Those that it has now.
        at_start: Those that it had when it started, from which the numbers are. They do not change when one fails.
    """
    addresses = _addresses(login, hosts)
    places = []
    for nodeid, host in enumerate(at_start):
        if host not in addresses:
            continue
        name = instance_id(job.id, job.restarts, nodeid)
        places.append(
            JobNode(
                instance=name,
                job=job.id,
                restart=job.restarts,
                nodeid=nodeid,
                host=host,
                address=addresses[host],
                home=home_of(node_dir, name),
                program=f"{node_dir}/blobs/{program}",
            )
        )
    return places


def _addresses(login: SlurmLogin, hosts: Sequence[str]) -> dict[str, str]:
    """The address of each node according to Slurm; names are resolved on the login node.

    Where Slurm does not show its nodes, their names are resolved.
    """
    text = login.ask_if_shown("scontrol", "-o", "show", "node", ",".join(hosts))
    told = {
        f["NodeName"]: f for line in text.splitlines() if "NodeName" in (f := parse.fields(line))
    }
    named = {host: told.get(host, {}).get("NodeAddr", host) or host for host in hosts}
    names = sorted({each for each in named.values() if not _is_address(each)})
    found = _resolved(login, names) if names else {}
    if unknown := [each for each in names if each not in found]:
        raise ProviderError(
            f"the addresses of {', '.join(unknown[:5])} are not known on {login.name} (getent ahosts)"
        )
    # The login node may be a node of the job, and know itself as 127.0.1.1, where the others do not reach it.
    itself = [name for name, address in found.items() if _is_local(address)]
    others = [each for name in named.values() if not _is_local(each := found.get(name, name))]
    if itself and others:
        own = _own_address(login, others[0])
        found.update(dict.fromkeys(itself, own) if own else {})
    return {host: found.get(name, name) for host, name in named.items()}


def _resolved(login: SlurmLogin, names: Sequence[str]) -> dict[str, str]:
    """The address of each name, as far as the login node knows one: if it can be, one that other machines reach."""
    script = (
        'for n in "$@"; do getent ahosts "$n" 2>/dev/null | '
        'while read -r a rest; do printf "%s %s\\n" "$n" "$a"; done; done'
    )
    done = login.run(["sh", "-c", script, "sh", *names])
    told: dict[str, list[str]] = {}
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        name, _, address = line.partition(" ")
        if _is_address(address):
            told.setdefault(name, []).append(address)
    return {
        name: next((each for each in listed if not _is_local(each)), listed[0])
        for name, listed in told.items()
    }


def _own_address(login: SlurmLogin, other: str) -> str:
    """The login node's own address on the route to another node; "" if it is not known."""
    script = 'PATH=$PATH:/usr/sbin:/sbin; exec ip -o route get "$1"'
    done = login.run(["sh", "-c", script, "sh", other])
    found = re.search(r"\bsrc (\S+)", done.stdout.decode("utf-8", "replace"))
    return found[1] if found and _is_address(found[1]) and not _is_local(found[1]) else ""


def _is_local(address: str) -> bool:
    """Whether other machines cannot use an address."""
    known = ipaddress.ip_address(address)
    return known.is_loopback or known.is_link_local


def _is_address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


# Connections


class NodeConnection(StepConnection):
    """A node of a job. Content named by its hash is sent to the shared directory once, not to each node."""

    def __init__(self, *, login: SlurmLogin, shared: str, **how: Any) -> None:
        super().__init__(**how)
        self._login = login
        self._shared = f"{shared}/blobs" if shared else ""

    def put_many(self, files: Sequence[File]) -> None:
        if self._shared:
            for file in files:
                if file.cache == self._shared and file.sha256 and isinstance(file.content, Path):
                    place = f"{file.cache}/{file.sha256}"
                    _bring_once(self._login, dataclasses.replace(file, target=place, cache=None))
        super().put_many(files)


_brought: set[tuple[str, str]] = set()
_bringing = threading.Lock()


def _bring_once(login: SlurmLogin, file: File) -> None:
    key = (login.key, file.target)
    with _bringing:
        if key not in _brought:
            login.connection.put_many([file])
            _brought.add(key)


def connect(login: SlurmLogin, data: Mapping[str, Any]) -> StepConnection:
    """A connection to a node, from its instance's data.

    Args:
        data: {"job", "host", "home", "program"}, and {"shared", "login_program", "raw"} if present; "raw" is the job
            number of an element of an array.
    """
    job, host = str(data.get("raw") or data["job"]), str(data["host"])
    step = [
        # Never `--unbuffered`: it gives the task a terminal, which changes bytes.
        *("srun", "--overlap", "--quiet", f"--jobid={job}", "--nodes=1"),
        *("--ntasks=1", f"--nodelist={host}", "--cpu-bind=none", "--export=ALL"),
    ]
    home = str(data["home"])
    shell = login.argv(step[0], *step[1:], "--pty")
    return NodeConnection(
        login=login,
        shared=str(data.get("shared") or ""),
        base=base_of(login, data),
        prefix=[*login.argv(step[0], *step[1:]), "sh", "-c", WAIT, "sh", home],
        label=f"node {host} (job {job})",
        # WAIT replaces it with the Python of the step daemon.
        python="python3",
        program=str(data["program"]),
        daemon=home,
        terminal=shell,
    )


def way_back(frozen: Mapping[str, Any]) -> list[str]:
    """Options of `srun` for a small job that fetches kept files, from those of the job that has written them.

    Args:
        frozen: The frozen values of the launch.
    """
    asked = {str(name): str(value) for name, value in frozen["directives"]}
    minutes = min(frozen["minutes"] or _LONGEST_MINUTES, _LONGEST_MINUTES)
    found = [f"--{name}={asked[name]}" for name in _WHERE if asked.get(name)]
    found += [f"--time={minutes}"] if frozen["minutes"] else []
    for option in map(shlex.split, frozen["extra"]):
        name = option[0].partition("=")[0].removeprefix("--") if option else ""
        if name in _WHERE or name.startswith(_WHERE_IN_SHORT):
            found += option
    return found


def connect_afterwards(
    login: SlurmLogin, data: Mapping[str, Any], options: Sequence[str]
) -> StepConnection:
    """A connection to a node whose job has ended, through a small job there that ends with the connection.

    Args:
        options: As returned by `way_back`.
    """
    host, home = str(data["host"]), str(data["home"])
    label = f"node {host} (job {data['job']}, which has ended)"
    job = [
        *("srun", "--quiet", "--nodes=1", "--ntasks=1", "--cpus-per-task=1", "--mem=256"),
        *(f"--nodelist={host}", f"--immediate={_FREE_WITHIN_SECONDS}", "--job-name=flow-result"),
        *("--cpu-bind=none", "--export=ALL", *options),
    ]
    return StepConnection(
        base_of(login, data),
        [*login.argv(*job), "sh", "-c", _FIND, "sh", home],
        label=label,
        python=str(data["python"]),
        program=str(data["program"]),
        direct=False,
        lost=_not_fetched(label, home),
    )


def _not_fetched(label: str, home: str) -> Callable[[int | None, str], NodeUnreachable | None]:
    """Makes the error for kept files that cannot be fetched now."""

    def explain(code: int | None, said: str) -> NodeUnreachable | None:
        if code == _NO_LONGER_THERE:
            return NodeUnreachable(f"{label}: {home} is not there any more")
        if code == UNSAFE:
            return NodeUnreachable(f"{label}: {unsafe(said)}")
        if "allocate resources" in said or "allocation" in said:
            return NodeUnreachable(
                f"{label}: what it keeps is fetched by a small job there, and Slurm starts none now: {said}. Try "
                "again when the node is free"
            )
        return srun_lost(label)(code, said)

    return explain


def base_of(login: SlurmLogin, data: Mapping[str, Any]) -> Connection:
    """The login node. From elsewhere, one program of ours there carries all traffic to nodes."""
    program, facts = str(data.get("login_program") or ""), login.facts
    if not login.target or not program or not facts.python:
        return login.another()
    return StepConnection(
        login.another(),
        [],
        label=f"the login node {login.name}",
        python=facts.python,
        program=program,
    )


def meet(
    login: SlurmLogin, places: Sequence[JobNode], data: Mapping[str, Any]
) -> list[dict[str, Any] | str]:
    """For each node, its facts as instance data and `AT_START`, or the reason why there are none."""

    def meet_one(place: JobNode) -> dict[str, Any] | str:
        known = {
            **data,
            "job": place.job,
            "restart": place.restart,
            "nodeid": place.nodeid,
            "host": place.host,
            "home": place.home,
            "program": place.program,
        }
        try:
            with connect(login, {**known, "shared": ""}) as connection:
                daemon = connection.open().get("daemon")
        except (NodeUnreachable, OSError) as error:
            return f"{place.host}: {error}"
        if not daemon:
            return f"{place.host}: its step daemon does not answer yet"
        try:
            _DAEMON(daemon)
        except ValueError as error:
            return f"{place.host}: its step daemon says what none does: daemon{error}"
        if daemon["nodeid"] != place.nodeid:
            return (
                f"{place.host} is node {daemon['nodeid']} of the job, and should be {place.nodeid}"
            )
        shared = str(data["shared"]) if daemon["shared"] else ""
        found = {"python": daemon["executable"], "version": daemon["python"], "shared": shared}
        return {**known, **found, AT_START: daemon.get("hosts", "")}

    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(places))) as pool:
        return list(pool.map(meet_one, places))
