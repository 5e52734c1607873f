"""`flow doctor`: diagnoses a hanging gang from the stacks of its ranks and the state of its nodes."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from flowlite import terminal
from flowlite.cli import output
from flowlite.cli.common_options import Json
from flowlite.cli.node_queries import ask_program, in_parallel
from flowlite.cli.task_argument import OptionalRunningTask, task_or_newest
from flowlite.connect.bounded import parse_object
from flowlite.errors import FlowError, NotFound

if TYPE_CHECKING:
    from flowlite.api.task import Task
    from flowlite.diagnosis.hang import Diagnosis, Group

_TOOL_SECONDS = 60.0
_LINK_SECONDS = 30.0
# Up to this many nodes, all pairs are measured; with more nodes, each node and the next.
_ALL_PAIRS = 4
_SHOWN_FRAMES = 8
_LOOKED_THROUGH = 200
_LONGEST_LINE = 4096
# Variables with these prefixes are always shown; others only if nodes differ in them.
_TRANSPORT = ("NCCL_", "GLOO_", "TORCH_NCCL_", "TORCH_DIST", "FI_", "UCX_")
_CLOCK_OFF = 5.0
_DISK_LOW = 0.05


def doctor(
    task: OptionalRunningTask = None,
    links: Annotated[
        bool, typer.Option("--links/--no-links", help="Measure the network between the nodes.")
    ] = True,
    json: Json = False,
) -> None:
    """Diagnose a hanging task: where each rank is, which one the others wait for, and the state of the nodes."""
    from flowlite.api.client import Flow
    from flowlite.diagnosis.hang import Rank, diagnose

    found = task_or_newest(Flow(), task, unfinished=True)
    if found.record.final:
        raise _ended(found)
    nodes = in_parallel(lambda node: _look(found, node), range(found.num_instances))
    ranks = [
        Rank.of(node, worker)
        for node, seen in enumerate(nodes)
        for worker in seen.get("workers", ())
    ]
    answering = [node for node, seen in enumerate(nodes) if "error" not in seen]
    # The ranks of a node that is not there yet have not started.
    there = {each.rank for each in found.nodes}
    silent = [node for node in range(len(nodes)) if node in there and node not in answering]
    expected = _expected_ranks(found)
    diagnosis = diagnose(
        ranks,
        sum(map(len, expected.values())),
        {node: expected.get(node, ()) for node in silent},
    )
    measured = _measure_links(found, answering) if links and len(answering) > 1 else []
    stands_out = _findings(found, nodes, measured, diagnosis)
    if json:
        document = _document(found, nodes, diagnosis, measured)
        output.print_json("doctor", {**document, "findings": stands_out})
        return
    _show_stacks(diagnosis)
    _show_nodes(nodes)
    _show_links(measured)
    output.say()
    for text in stands_out:
        output.say(f"- {terminal.in_one_line(text)}")
    output.say(diagnosis.verdict or _nothing_found(diagnosis))


def _ended(task: Task[Any]) -> NotFound:
    """The error for a task that has ended, which includes advice on its failure."""
    from flowlite.api.failures import advice_for

    error = NotFound(
        f"task {task.name} ({task.id}) has ended ({task.status}); its nodes are given back. "
        f"`flow logs {task.id}` shows what it wrote"
    )
    if task.status == "failed":
        error.add_note(task.reason)
        for text in advice_for(task.record, task.events()):
            error.add_note(text)
    return error


def _findings(
    task: Task[Any],
    nodes: Sequence[Mapping[str, Any]],
    measured: Sequence[Mapping[str, Any]],
    diagnosis: Diagnosis,
) -> list[str]:
    """The anomalies of the nodes, and the warnings from the start of the attempt."""
    from flowlite.diagnosis.findings import findings

    attempt = task.record.attempt
    warned = [
        event.text
        for event in task.events()
        if event.kind == "warning" and event.data.get("attempt", attempt) == attempt
    ]
    lines = [line.text[:_LONGEST_LINE] for line in task.logs(tail=_LOOKED_THROUGH)]
    return [*findings(nodes, measured, lines, all_wait=diagnosis.nobody_is_late), *warned]


def _look(task: Task[Any], node: int) -> dict[str, Any]:
    before = time.time()
    seen = ask_program(task, node, "look", check=_check)
    if "time" in seen:
        seen["clock_off"] = _late(seen, before, time.time())
    return seen


def _late(seen: Mapping[str, Any], before: float, after: float) -> float:
    """How far the clock of a node is off at least, which it read between two times here."""
    late: float = max(0.0, before - seen["time"], seen["time"] - after)
    return late if seen["time"] > after else -late


def _check(seen: dict[str, Any]) -> None:
    """Processes one node's answer as the command does with all answers. Raises any error of a malformed answer."""
    from flowlite.diagnosis.findings import findings
    from flowlite.diagnosis.hang import Rank, diagnose

    diagnose([Rank.of(0, worker) for worker in seen.get("workers", ())], 0)
    findings([seen], [], all_wait=True)
    _state(seen)
    _variables([seen])
    if "time" in seen:
        _late(seen, 0.0, 0.0)


def _expected_ranks(task: Task[Any]) -> dict[int, range]:
    """The ranks of each node; empty if the task's own command or a launcher decides on them."""
    from flowlite.api.gang_shape import workers_per_node
    from flowlite.node.config.distributed_modes import AUTO
    from flowlite.node.config.ranks import global_rank

    record = task.record
    if record.config.get("distributed_mode", AUTO) != AUTO:
        return {}
    each = workers_per_node(record)
    return {
        node: range(global_rank(node, each, 0), global_rank(node + 1, each, 0))
        for node in range(task.num_instances)
    }


# Links


def _measure_links(task: Task[Any], nodes: Sequence[int]) -> list[dict[str, Any]]:
    """Measures the links between some nodes. A node that once fails to answer is not asked again.

    A link has "error" if a node says that it does not work, and "not_measured" if a node did not answer.
    """
    token = secrets.token_bytes(32)
    servers = dict(zip(nodes, in_parallel(lambda n: _serve(task, n, token), nodes), strict=True))
    silent = {node: found for node, found in servers.items() if "port" not in found}
    count = len(nodes)
    pairs = [
        (nodes[a], nodes[b])
        for a in range(count)
        for b in range(count)
        if a != b and (count <= _ALL_PAIRS or b == (a + 1) % count)
    ]
    links = []
    # Measured one after the other, since parallel measurements would share the network.
    for a, b in pairs:
        link = silent.get(a) or silent.get(b)
        if link is None:
            link = _measure(task, a, _address(task, b), servers[b]["port"], token)
            if "not_measured" in link:
                silent[a] = link
        links.append({"from": a, "to": b, **link})
    return links


def _address(task: Task[Any], node: int) -> str:
    # A replacement comes after the node that it replaced.
    return [each.address for each in task.nodes if each.rank == node][-1]


def _serve(task: Task[Any], node: int, token: bytes) -> dict[str, Any]:
    arguments = ["serve", _address(task, node), str(_LINK_SECONDS)]
    return _links_program(task, node, arguments, token, ("port",))


def _measure(task: Task[Any], node: int, address: str, port: float, token: bytes) -> dict[str, Any]:
    arguments = ["measure", address, f"{port:.0f}"]
    return _links_program(task, node, arguments, token, ("round_trip", "bytes_per_second"))


def _links_program(
    task: Task[Any], node: int, arguments: Sequence[str], token: bytes, numbers: Sequence[str]
) -> dict[str, Any]:
    """The answer of a node's `links` program: these numbers, or "error"; "not_measured" if it does not answer."""
    try:
        with task.reach(node) as there:
            argv = [*there.program, "links", *arguments]
            done = there.connection.run(argv, input=token, timeout=_TOOL_SECONDS)
        answer = parse_object(done.stdout)
        if "error" in answer:
            return {"error": str(answer["error"])}
        return {name: float(answer[name]) for name in numbers}
    except (FlowError, OSError, LookupError, TypeError, ValueError) as error:
        return {"not_measured": f"node {node}: {str(error) or type(error).__name__}"}


# Text


def _show_stacks(diagnosis: Diagnosis) -> None:
    from flowlite.diagnosis.hang import spans

    for group in diagnosis.groups:
        waits = f", waiting in {group.waits_in}" if group.waits_in else ""
        many = "ranks" if len(group.ranks) > 1 else "rank"
        nodes = spans(rank.node for rank in group.ranks)
        output.say(f"{many} {spans(group.numbers)} (node {nodes}){waits}")
        for line in _stack_lines(group):
            output.say(f"    {line}")
    if diagnosis.missing:
        output.say(f"ended or not started: rank {spans(diagnosis.missing)}")
    if diagnosis.unknown:
        output.say(f"unknown, since their node does not answer: rank {spans(diagnosis.unknown)}")


def _stack_lines(group: Group) -> list[str]:
    if not group.frames:
        return [f"no stack: {group.ranks[0].why}"]
    lines = [f"{function}  {file}:{line}" for file, line, function in group.frames]
    if len(lines) > _SHOWN_FRAMES:
        more = len(lines) - _SHOWN_FRAMES
        lines = [*lines[:_SHOWN_FRAMES], f"… {more} more"]
    return lines


def _show_nodes(nodes: Sequence[Mapping[str, Any]]) -> None:
    output.say()
    for node, seen in enumerate(nodes):
        if "error" in seen:
            output.say(f"node {node}: {seen['error']}")
            continue
        output.say(f"node {node}: {_state(seen)}")
    for line in _variables(nodes):
        output.say(line)


def _state(seen: Mapping[str, Any]) -> str:
    load = f"load {seen['load'][0]:.1f} on {seen['cores']} cores" if "load" in seen else ""
    return "; ".join(part for part in (load, *_trouble(seen)) if part)


def _trouble(seen: Mapping[str, Any]) -> list[str]:
    found = []
    if abs(seen.get("clock_off", 0.0)) > _CLOCK_OFF:
        found.append(f"its clock is off by {seen['clock_off']:+.0f} s")
    found += [
        f"{disk['path']} is nearly full ({disk['free'] / 1e9:.1f} of {disk['total'] / 1e9:.0f} GB free)"
        for disk in seen.get("disks", ())
        if disk["total"] and disk["free"] / disk["total"] < _DISK_LOW
    ]
    found += [
        f"{disk['path']} has nearly no room for further files, however small ({disk['files_free']} of {disk['files']} "
        "inodes free)"
        for disk in seen.get("disks", ())
        if disk.get("files") and disk["files_free"] / disk["files"] < _DISK_LOW
    ]
    found += [
        f"{path} does not answer: its file server, or the network to it, hangs"
        for path in seen.get("silent_disks", ())
    ]
    return found or ["clock and disks OK"]


def _variables(nodes: Sequence[Mapping[str, Any]]) -> list[str]:
    """Lines with NCCL's and Gloo's variables, and with the variables in which nodes differ."""
    from flowlite.diagnosis.findings import variables_of_ranks
    from flowlite.diagnosis.hang import spans

    known = [
        (node, variables)
        for node, seen in enumerate(nodes)
        for variables in variables_of_ranks(seen)
    ]
    lines = []
    for name in sorted({name for _, variables in known for name in variables}):
        values: dict[str, list[int]] = {}
        for node, variables in known:
            values.setdefault(variables.get(name, "(not set)"), []).append(node)
        if len(values) == 1 and name.startswith(_TRANSPORT):
            lines.append(f"{name}={next(iter(values))}")
        elif len(values) > 1:
            told = ", ".join(f"{value} on node {spans(where)}" for value, where in values.items())
            lines.append(f"{name} differs: {told}")
    return lines


def _show_links(links: Sequence[Mapping[str, Any]]) -> None:
    for link in links:
        way = f"node {link['from']} -> node {link['to']}"
        if "bytes_per_second" not in link:
            output.say(f"{way}: {link.get('error') or 'not measured: ' + link['not_measured']}")
        else:
            speed = link["bytes_per_second"] * 8 / 1e9
            output.say(f"{way}: {link['round_trip'] * 1e3:.2f} ms, {speed:.1f} Gbit/s")


def _nothing_found(diagnosis: Diagnosis) -> str:
    if not diagnosis.groups:
        return "no rank runs"
    if all(not group.frames for group in diagnosis.groups):
        return "no stack could be read; see the reason above"
    return "no rank is waited for: the stacks above say what each is doing"


def _document(
    task: Task[Any],
    nodes: Sequence[Mapping[str, Any]],
    diagnosis: Diagnosis,
    links: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    from flowlite.diagnosis.findings import variables_of_ranks

    return {
        "task": task.id,
        "verdict": diagnosis.verdict,
        "waited_for": list(diagnosis.waited_for),
        "missing": list(diagnosis.missing),
        "unknown": list(diagnosis.unknown),
        "groups": [
            {
                "ranks": group.numbers,
                "nodes": sorted({rank.node for rank in group.ranks}),
                "waits_in": group.waits_in or None,
                "how": group.ranks[0].how or None,
                "frames": [
                    {"file": file, "line": line, "function": function}
                    for file, line, function in group.frames
                ],
            }
            for group in diagnosis.groups
        ],
        "nodes": [
            {
                "node": node,
                **{k: v for k, v in seen.items() if k != "workers"},
                "variables": _shared(variables_of_ranks(seen)),
            }
            for node, seen in enumerate(nodes)
        ],
        "links": list(links),
        "looked_from": os.uname().nodename,
    }


def _shared(several: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """The variables in which all ranks of a node agree."""
    if not several:
        return {}
    return dict(sorted(set.intersection(*(set(variables.items()) for variables in several))))
