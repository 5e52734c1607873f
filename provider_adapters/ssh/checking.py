"""`flow hosts check`: finds problems with the hosts of a pool before a task runs into them."""

from __future__ import annotations

import asyncio
import json
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from flowlite.connect import programs
from flowlite.connect.bounded import last_line, parse_object
from flowlite.errors import HostKeyError, NodeUnreachable, ProviderError
from flowlite.node.host_lease.client import NAME as LEASE
from flowlite.node.preflight import gpu_health
from flowlite.node.preflight.gpu_health import GpuHealth
from flowlite.node.quick_dataclass import dataclass
from provider_adapters import remote_commands
from provider_adapters.ssh import host_requirements, hosts, leases
from provider_adapters.ssh.hosts import Facts, Memory
from provider_adapters.ssh.pools import Host, Pool
from provider_adapters.ssh.unfit_hosts import UnfitHosts

_SKEW_SECONDS = 5.0
_LEAST_FREE_GB = 2.0
_SERVE_SECONDS = 40.0
_MOST_SAID = 2000
_ANSWER_SECONDS = 10.0
_RUN_SECONDS = 60.0
_PCI_ADDRESS = re.compile(r"^[0-9a-fA-F:.]{7,20}$", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem with a host. `serious` says whether tasks fail because of it."""

    host: str
    problem: str
    fix: str
    serious: bool = True


def check(pool: Pool, memory: Memory, unfit: UnfitHosts) -> tuple[dict[str, Facts], list[Problem]]:
    """The facts of every host that answers, and the problems of the pool. Lets hosts be used again that are well."""
    answers = hosts.everywhere(pool.hosts, lambda host: hosts.ask_now(host, memory), *hosts.TROUBLE)
    found: dict[str, Facts] = {}
    problems: list[Problem] = []
    for host, answer in zip(pool.hosts, answers, strict=True):
        if isinstance(answer, Exception):
            problems.append(_unreachable(host, answer))
        else:
            facts, held = answer
            found[host.name] = facts
            problems += _of_one(host, facts)
            problems += _of_the_lease(host, held)
            problems += _of_what_tasks_found(host, unfit)
    able = [host for host in pool.hosts if host.name in found and _python(host, found)]
    if able:
        problems += _between(able, found)
        problems += _gpus_differ(able, found)
    if pool.shared_dir and able:
        problems += _shared(pool, able, found)
    return found, problems


def _unreachable(host: Host, error: Exception) -> Problem:
    if isinstance(error, HostKeyError):
        return Problem(host.name, str(error).splitlines()[0], error.cure)
    if isinstance(error, NodeUnreachable | OSError):
        return Problem(
            host.name, str(error), f"`ssh {host.name} true` must work without being asked anything"
        )
    return Problem(host.name, str(error), "see the message")


def _of_one(host: Host, facts: Facts) -> list[Problem]:
    found = []
    wrong = host_requirements.python_problem(host, facts)
    if wrong:
        found.append(Problem(host.name, wrong, "install Python 3.11 or newer, or set `python`"))
    here = f"{sys.version_info.major}.{sys.version_info.minor}"
    chosen = host_requirements.choose_python(host, facts, here)
    if chosen is not None and not chosen[1].startswith(f"{here}."):
        found.append(
            Problem(
                host.name,
                f"it has no Python {here}, which functions from here need (found {chosen[1]})",
                f"install Python {here} there; else it is fetched when a task needs it",
                serious=False,
            )
        )
    if abs(facts.clock_ahead) > _SKEW_SECONDS:
        way = "ahead of" if facts.clock_ahead > 0 else "behind"
        found.append(
            Problem(
                host.name,
                f"its clock is {abs(facts.clock_ahead):.0f} s {way} this machine's",
                "set it by NTP; only the times in logs depend on it",
                serious=False,
            )
        )
    address = host.private_ip or facts.address
    if hosts.is_of_one_link(address):
        fix = (
            "give it an address in the network of the other hosts, and set that as its `private_ip`"
        )
        found.append(Problem(host.name, hosts.lacks_address(host, address), fix))
    if facts.ends_at_logout:
        found.append(
            Problem(
                host.name,
                "processes end there when you log out (KillUserProcesses), and so would every task",
                f"`sudo loginctl enable-linger {host.target.get('user', '$USER')}` there",
            )
        )
    found += _of_directories(host, facts)
    if facts.disk.get("noexec"):
        found.append(
            Problem(
                host.name,
                f"no program can run where {facts.root} is (mounted noexec): tasks with dependencies= or python= fail",
                "set `node_dir` to a directory of another file system",
                serious=False,
            )
        )
    free = facts.disk.get("free_gb", _LEAST_FREE_GB)
    # A file system of 0 bytes has no limit.
    if free < _LEAST_FREE_GB and facts.disk.get("total_gb") != 0:
        found.append(
            Problem(
                host.name,
                f"{free:.1f} GB are free where {facts.root} is",
                "make room, or set `node_dir` to a larger disk",
                serious=free < 0.5,
            )
        )
    return found


def _of_directories(host: Host, facts: Facts) -> list[Problem]:
    """Problems with flowlite's directory on the host, and with its sockets."""
    found = []
    if facts.unsafe:
        problem = f"others could change what runs as you there: {facts.unsafe}"
        found.append(Problem(host.name, problem, f"{programs.CURE} as `node_dir`"))
    if facts.unwritable:
        problem = f"nothing can be written where {facts.root} is: {facts.unwritable}"
        fix = "make it writable for you, or set `node_dir` to a directory that is"
        found.append(Problem(host.name, problem, fix))
    if facts.no_sockets:
        found.append(Problem(host.name, f"no place for sockets: {facts.no_sockets}", "do so"))
    elif facts.sockets:
        problem = f"the place for sockets is taken, and one in your home serves: {facts.sockets}"
        found.append(Problem(host.name, problem, "have it removed", serious=False))
    return found


def _of_the_lease(host: Host, held: Mapping[str, Any] | None) -> list[Problem]:
    """Whether another user holds the lease, for a task or with any other process that blocks it."""
    if not held or held.get("state") != "foreign":
        return []
    fix = (
        f"wait for a task of {held['user']}, or ask them; `sudo ss -xap src @{LEASE}` there shows the process, "
        "also one that is no task"
    )
    return [Problem(host.name, leases.in_words(host.name, held), fix, serious=False)]


def _of_what_tasks_found(host: Host, unfit: UnfitHosts) -> list[Problem]:
    """What tasks found wrong with a host. If its GPUs are well now, tasks may use it again."""
    why = unfit.why(host.key)
    if not why:
        return []
    try:
        health = _gpu_health(host)
    except hosts.TROUBLE as error:
        return [
            Problem(
                host.name, f"{why}. Its GPUs cannot be looked at now: {error}", "see the message"
            )
        ]
    if wrong := health.troubles(GpuHealth()):
        fix = "restart it; if that does not help, have the GPU replaced"
        return [Problem(host.name, f"{why}. Now: {'; '.join(wrong)}", fix)]
    unfit.lift(host.key)
    fix = "nothing is to be done; if it is lost again, look at its power, network and memory"
    return [Problem(host.name, f"{why}. It is well now, and used again", fix, serious=False)]


def _gpu_health(host: Host) -> GpuHealth:
    """What a host says of its GPUs now, which is not taken for true beyond numbers. Raises one of `hosts.TROUBLE`."""
    with hosts.connect(host) as connection:
        asked = f"nvidia-smi --query-gpu={gpu_health.QUERY} --format=csv,noheader,nounits"
        listed = connection.run(
            ["sh", "-c", f"{asked} 2>&1\nexec >&2\n{gpu_health.USABLE}"],
            timeout=_RUN_SECONDS,
        )
    known = _PCI_ADDRESS.findall(listed.stderr.decode(errors="replace"))
    return gpu_health.parse(listed.stdout.decode(errors="replace"), "", known)


def _gpus_differ(able: Sequence[Host], found: Mapping[str, Facts]) -> list[Problem]:
    has = {host.name: host_requirements.gpus_in_words(host, found[host.name]) for host in able}
    if len(set(has.values())) < 2:
        return []
    told = "; ".join(f"{name}: {gpus}" for name, gpus in has.items())
    return [
        Problem(
            able[0].pool, f"its hosts differ: {told}", "make a pool of each kind", serious=False
        )
    ]


# Between hosts


def _between(able: Sequence[Host], found: Mapping[str, Facts]) -> list[Problem]:
    """Whether each host can connect to every other on any TCP port, and the client through its SSH server."""
    answers = hosts.everywhere(
        able, lambda host: _serving(_run(host, found, "serve", str(_SERVE_SECONDS))), *hosts.TROUBLE
    )
    serving = [
        (host, *answer)
        for host, answer in zip(able, answers, strict=True)
        if not isinstance(answer, Exception)
    ]
    try:
        listening = [
            [host.name, host.private_ip or found[host.name].address, port]
            for host, port, _ in serving
        ]
        silent = [
            Problem(host.name, str(answer), "see the message")
            for host, answer in zip(able, answers, strict=True)
            if isinstance(answer, Exception)
        ]
        return silent + _unreached(able, found, listening)
    finally:
        # A host that can no longer be told so ends it by itself, after `_SERVE_SECONDS`.
        pids = {host.name: str(pid) for host, _, pid in serving}
        listeners = [host for host, _, _ in serving]
        hosts.everywhere(
            listeners, lambda host: _run(host, found, "end", pids[host.name]), *hosts.TROUBLE
        )


def _serving(answer: str) -> tuple[int, int]:
    """The port and the process id of a host's listener. Raises ProviderError."""
    words = answer.split()
    if len(words) == 2 and all(re.fullmatch("[0-9]{1,10}", each) for each in words):
        port, pid = map(int, words)
        if 0 < port < 65536:
            return port, pid
    raise ProviderError(f"it does not say where it listens: {answer[:80]}")


def _unreached(
    able: Sequence[Host], found: Mapping[str, Facts], listening: Sequence[Sequence[object]]
) -> list[Problem]:
    """The hosts that do not reach others, and those whose SSH server does not pass connections on."""

    def reach(host: Host) -> dict[str, str]:
        others = [each for each in listening if each[0] != host.name]
        try:
            said = parse_object(_run(host, found, "reach", json.dumps(others)))
        except ValueError as error:
            raise ProviderError(f"it does not say which hosts it reaches: {error}") from None
        names = {str(each[0]) for each in others}
        return {name: str(why)[:_MOST_SAID] for name, why in said.items() if name in names}

    served = {str(name): int(str(port)) for name, _, port in listening}
    problems = _forwarding([host for host in able if host.name in served], served)
    addresses = {str(name): f"{address}:{port}" for name, address, port in listening}
    for host, failed in zip(able, hosts.everywhere(able, reach, *hosts.TROUBLE), strict=True):
        if isinstance(failed, Exception):
            problems.append(Problem(host.name, str(failed), "see the message"))
            continue
        for other, why in failed.items():
            problems.append(
                Problem(
                    host.name,
                    f"it does not reach {other} at {addresses[other]}: {why}",
                    f"allow TCP between the hosts on all ports; if that is not {other}'s address "
                    "towards the others, set its `private_ip`",
                )
            )
    return problems


def _forwarding(able: Sequence[Host], ports: Mapping[str, int]) -> list[Problem]:
    """Whether the hosts' SSH servers forward connections to ports of the host itself, which log lines need."""

    async def say(host: Host) -> None:
        with hosts.connect(host) as connection:
            reader, writer = await connection.open_tcp("127.0.0.1", ports[host.name])
            try:
                async with asyncio.timeout(_ANSWER_SECONDS):
                    await reader.readexactly(1)
            finally:
                writer.close()

    trouble = (*hosts.TROUBLE, EOFError)
    answers = hosts.everywhere(able, lambda host: asyncio.run(say(host)), *trouble)
    return [
        Problem(
            host.name,
            f"its SSH server does not pass TCP connections on: {answer}",
            "set `AllowTcpForwarding yes` (or local) in its sshd_config, or what the message names",
        )
        for host, answer in zip(able, answers, strict=True)
        if isinstance(answer, Exception)
    ]


def _shared(pool: Pool, able: Sequence[Host], found: Mapping[str, Facts]) -> list[Problem]:
    """Whether `shared_dir` is really shared: all hosts must be able to read what the first one writes there."""
    text = secrets.token_hex(8)
    path = f"{pool.shared_dir}/.flowlite-check-{text}"
    first, *others = able
    try:
        _run(first, found, "write", path, text)
    except hosts.TROUBLE as error:
        return [Problem(first.name, str(error), f"make {pool.shared_dir} writable for you there")]
    answers = hosts.everywhere(others, lambda host: _run(host, found, "read", path), *hosts.TROUBLE)
    with suppress(*hosts.TROUBLE):
        _run(first, found, "remove", path)
    return [
        Problem(
            host.name,
            f"{pool.shared_dir} is not the same place as on {first.name}",
            "mount the same file system on every host of the pool",
        )
        for host, answer in zip(others, answers, strict=True)
        if answer != text
    ]


def _run(host: Host, found: Mapping[str, Facts], *arguments: str) -> str:
    program = (Path(__file__).with_name("on_hosts") / "links_script.py").read_bytes()
    argv = [_python(host, found), "-I", "-S", "-", *arguments]
    with hosts.connect(host) as connection:
        done = remote_commands.run(connection, argv, _RUN_SECONDS, input=program)
    if done.code != 0:
        said = last_line(done.stderr)[:_MOST_SAID].decode("utf-8", "replace").strip()
        raise ProviderError(said or f"exit code {done.code}")
    return done.stdout.decode("utf-8", "replace").strip()


def _python(host: Host, found: Mapping[str, Facts]) -> str:
    chosen = host_requirements.choose_python(host, found[host.name], None)
    return chosen[0] if chosen else ""
