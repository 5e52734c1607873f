"""Connections to the nodes of a job, and the facts that the nodes report when the job starts."""

from __future__ import annotations

import ipaddress
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flowlite.connect.base import File
from flowlite.connect.step.connection import StepConnection
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.slurm_step.daemon import home_of, instance_id
from provider_adapters.slurm.queries import hostlists, parse
from provider_adapters.slurm.script import WAIT

if TYPE_CHECKING:
    from flowlite.connect.base import Connection
    from provider_adapters.slurm.login import SlurmLogin

_MOST_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class Place:
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


def places_of(
    login: SlurmLogin, job: parse.Job, told: Mapping[str, str], node_dir: str, program: str
) -> list[Place]:
    """The nodes of a running job, by their number in it. Raises ProviderError, Silent."""
    try:
        hosts = hostlists.expand(told.get("NodeList", ""))
    except ValueError as error:
        raise ProviderError(f"job {job.id}: its list of nodes cannot be read: {error}") from error
    addresses = _addresses(login, hosts)
    places = []
    for nodeid, host in enumerate(hosts):
        name = instance_id(job.id, job.restarts, nodeid)
        places.append(
            Place(
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
    """The address of each node according to Slurm; names are resolved on the login node."""
    text = login.ask("scontrol", "-o", "show", "node", ",".join(hosts))
    told = {
        f["NodeName"]: f for line in parse.lines(text) if "NodeName" in (f := parse.fields(line))
    }
    named = {host: told.get(host, {}).get("NodeAddr", host) or host for host in hosts}
    names = sorted({each for each in named.values() if not _is_address(each)})
    found = dict(_resolved(login, names)) if names else {}
    if unknown := [each for each in names if each not in found]:
        raise ProviderError(
            f"the addresses of {', '.join(unknown[:5])} are not known on {login.name} (getent ahosts)"
        )
    return {host: found.get(name, name) for host, name in named.items()}


def _resolved(login: SlurmLogin, names: Sequence[str]) -> Iterator[tuple[str, str]]:
    script = (
        'for n in "$@"; do a=$(getent ahosts "$n" 2>/dev/null | head -n 1 | cut -d" " -f1); '
        'printf "%s %s\\n" "$n" "$a"; done'
    )
    done = login.run(["sh", "-c", script, "sh", *names])
    for line in done.stdout.decode("utf-8", "replace").splitlines():
        name, _, address = line.partition(" ")
        if address.strip():
            yield name, address.strip()


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
                    _bring_once(self._login, file.content, f"{file.cache}/{file.sha256}", file)
        super().put_many(files)


_brought: set[tuple[str, str]] = set()
_bringing = threading.Lock()


def _bring_once(login: SlurmLogin, source: Path, target: str, file: File) -> None:
    key = (login.key, target)
    with _bringing:
        if key not in _brought:
            login.connection.put_cached(source, target, file.sha256 or "", mode=file.mode)
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
        anchor=home,
        terminal=shell,
    )


def base_of(login: SlurmLogin, data: Mapping[str, Any]) -> Connection:
    """The login node. From elsewhere, one program of ours there carries all traffic to nodes."""
    program, facts = str(data.get("login_program") or ""), login.facts
    if not login.written or not program or not facts.python:
        return login.another()
    return StepConnection(
        login.another(),
        [],
        label=f"the login node {login.written}",
        python=facts.python,
        program=program,
    )


def meet(
    login: SlurmLogin, places: Sequence[Place], data: Mapping[str, Any]
) -> list[dict[str, Any] | str]:
    """For each node, its facts as instance data, or the reason why there are none."""

    def meet_one(place: Place) -> dict[str, Any] | str:
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
                anchor = connection.open().get("anchor")
        except (NodeUnreachable, OSError) as error:
            return f"{place.host}: {error}"
        if not anchor:
            return f"{place.host}: its step daemon does not answer yet"
        if int(anchor["nodeid"]) != place.nodeid:
            return (
                f"{place.host} is node {anchor['nodeid']} of the job, and should be {place.nodeid}"
            )
        shared = str(data["shared"]) if anchor["shared"] else ""
        found = {"python": anchor["executable"], "version": anchor["python"], "shared": shared}
        return {**known, **found}

    with ThreadPoolExecutor(min(_MOST_AT_ONCE, len(places))) as pool:
        return list(pool.map(meet_one, places))
