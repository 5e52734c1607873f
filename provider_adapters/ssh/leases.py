"""The client's side of a host's lease: taking, showing and releasing it over a connection."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from flowlite.connect import programs
from flowlite.connect.agent_program import built_last
from flowlite.connect.base import Connection, NotStarted
from flowlite.connect.bounded import last_line, parse_object
from flowlite.connect.values import Completed
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.node.quick_dataclass import dataclass
from flowlite.provider import Instance
from provider_adapters import remote_commands
from provider_adapters.ssh import host_answers
from provider_adapters.ssh.hosts import Facts

# Ending the processes of a task may take a while.
_SECONDS = 30.0
# Exit statuses of a shell, and of Python, for a program that does not exist.
_ABSENT = (2, 126, 127)


class NotThere(Exception):
    """The interpreter or the agent is no longer on the host."""


@dataclass(frozen=True, slots=True)
class Agent:
    """The node's program: its local path, and its path by hash on every host that has received it."""

    path: Path
    sha256: str

    def on_host(self, root: str) -> str:
        """The program's path on a host."""
        return f"{root}/blobs/{self.sha256}"


def find_agent(home: Path, given: str | None) -> Agent:
    """The agent of a launch, else the one that was built last. Raises ProviderError."""
    path = Path(given) if given else built_last(home)
    return Agent(path, path.stem)


def take(
    connection: Connection, python: str, agent: Agent, root: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    """Takes the lease of a host, or returns its holder; the agent is sent if the host lacks it.

    Raises:
        NodeUnreachable: The host does not answer.
        ProviderError: The answer cannot be a lease.
    """
    program = agent.on_host(root)
    try:
        return _checked(_ask(connection, python, program, "take", request))
    except NotThere:
        connection.put_cached(agent.path, program, agent.sha256, mode=0o700)
    try:
        return _checked(_ask(connection, python, program, "take", request))
    except NotThere as error:
        raise ProviderError(str(error)) from error


def _checked(answer: dict[str, Any]) -> dict[str, Any]:
    """An answer to `take`, which has a lease if it is ok. Raises ProviderError."""
    if answer["ok"] and "client" not in answer.get("lease", {}):
        raise ProviderError("it answers what cannot be a lease: there is none in it")
    return answer


def release(
    connection: Connection,
    data: Mapping[str, Any],
    task: str,
    client: str,
    *,
    retain: bool = False,
    token: str | None = None,
) -> dict[str, Any]:
    """Releases a host and removes the task's files. Raises NodeUnreachable, NotThere.

    Args:
        retain: Keep the output of its ranks, since not all of it was fetched.
        token: Release only the lease of this launch, not a later one of the same task.
    """
    request: dict[str, Any] = {
        "task": task,
        "client": client,
        "root": data["root"],
        "home": data["home"],
    }
    if retain:
        request["retain"] = True
    if token is not None:
        request["token"] = token
    return _ask(connection, str(data["python"]), str(data["agent"]), "release", request)


def keep(connection: Connection, instance: Instance, client: str, seconds: float) -> dict[str, Any]:
    """Ends a task on a host, but keeps the host for the next one. Raises NodeUnreachable, NotThere."""
    request = {
        "task": instance.task_id,
        "client": client,
        "seconds": seconds,
        "data": {"task": instance.task_id, "instance": instance.id},
    }
    data = instance.data
    return _ask(connection, str(data["python"]), str(data["agent"]), "keep", request)


def tidy(
    connection: Connection, python: str, agent: Agent, root: str, *, dry_run: bool
) -> list[str]:
    """Removes secrets of tasks that ended on a host without being released; returns the names of their instances.

    Raises:
        NodeUnreachable: The host does not answer.
        NotThere: The interpreter or the agent is no longer on the host.
    """
    request = {"root": root, "dry_run": dry_run}
    answer = _ask(connection, python, agent.on_host(root), "tidy", request)
    return [str(home).rpartition("/")[2] for home in answer.get("homes") or ()]


def show(connection: Connection) -> dict[str, Any] | None:
    """The holder of the host: {"held": ...}; None if no courier can answer at once. Raises NodeUnreachable."""
    answer = _of_courier(connection, "show", {})
    return answer if answer is not None and "held" in answer else None


def _ask(
    connection: Connection, python: str, program: str, what: str, request: Mapping[str, Any]
) -> dict[str, Any]:
    courier = programs.started(python, program, "courier")
    answer = _of_courier(connection, what, request, start=courier)
    if answer is not None:
        return answer
    argv = programs.started(python, program, "lease", what)
    text = json.dumps(dict(request)).encode()
    done = remote_commands.run(connection, argv, _SECONDS, input=text)
    answer = _answer(done)
    if answer is None:
        said = remote_commands.said(done)
        if done.code in _ABSENT:
            raise NotThere(f"{python} {program}: {said}")
        _check_safe(done.code, said)
        raise ProviderError(f"the lease cannot be asked for (exit code {done.code}): {said}")
    return answer


def _of_courier(
    connection: Connection,
    what: str,
    request: Mapping[str, Any],
    start: Sequence[str] | None = None,
) -> dict[str, Any] | None:
    """The courier's answer to a request; None if there is no courier."""
    order = {"do": "lease", "what": what, "request": dict(request)}
    try:
        answer = connection.ask(order, timeout=_SECONDS, start=start)
    except NotStarted as error:
        if start is not None and error.code in _ABSENT:
            raise NotThere(f"{start[0]}: {error}") from error
        _check_safe(error.code, str(error))
        return None
    except TimeoutError as error:
        raise NodeUnreachable(f"it runs nothing within {_SECONDS:.0f} s") from error
    return host_answers.of_lease(answer["lease"]) if answer and "lease" in answer else None


def _check_safe(code: int, said: str) -> None:
    """Raises ProviderError if other users could have changed the program, so that it was not started."""
    if code == programs.UNSAFE:
        raise ProviderError(programs.unsafe(said.rpartition("\n")[2]))


def _answer(done: Completed) -> dict[str, Any] | None:
    try:
        told = parse_object(last_line(done.stdout))
    except ValueError:
        return None
    return host_answers.of_lease(told)


def refused(host: str, answer: Mapping[str, Any]) -> str:
    """Why a host does not give its lease, as a text for the user."""
    error = answer.get("error")
    return f"{host}: {error}" if error else in_words(host, answer.get("held"))


def in_words(host: str, held: Mapping[str, Any] | None) -> str:
    """The holder of a host's lease, as a text for the user."""
    if not held:
        return f"{host} was not free"
    if held.get("state") == "foreign":
        # Only the kernel's information is available; it may be a task of that user, or any other process.
        return f"{host} is held by uid {held['uid']} ({held['user']}), another user of that host"
    who = f"by {held['user']}" if held.get("user") else "by another user"
    if held.get("state") == "silent":
        return f"{host} is leased {who}, by a process that does not answer"
    if held.get("state") == "warm":
        return f"{host} is kept warm {who}, {_about(held.get('left'))} more"
    since = _about(held.get("seconds"))
    label = f" on {held['label']}" if held.get("label") else ""
    return f"{host} is leased {who} (task {held.get('task')}{label}, {since})"


def _about(seconds: Any) -> str:
    """`for 4 min`: coarse, so that the reason of a waiting task does not change every second."""
    minutes = int(float(seconds or 0) / 60)
    if minutes < 1:
        return "for less than a minute"
    return f"for {minutes} min" if minutes < 120 else f"for {minutes // 60} h"


def same_machine(facts: Facts, answer: Mapping[str, Any]) -> bool:
    """Whether the host has not rebooted since it reported its facts."""
    return not answer.get("boot") or answer["boot"] == facts.boot
