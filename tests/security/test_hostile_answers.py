"""A host of a pool answers what no program of ours says: it is refused by itself, and the others are used."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from flowlite.api.adapters import settings_here
from flowlite.connect.bounded import process_id
from flowlite.connect.values import Completed
from flowlite.errors import NodeUnreachable, ProviderError
from flowlite.spec.gpu import GpuRequest
from provider_adapters.ssh import checking, host_commands, host_requirements, hosts, leases, volumes
from provider_adapters.ssh.pools import Host
from provider_adapters.ssh.provider import SshProvider

HOST = Host("bad", 0, "lab", {})
DATA = {
    "host": "bad",
    "key": HOST.key,
    "root": "/root/.flowlite-node",
    "home": "/root/.flowlite-node/tasks/t1-000-bad-0000",
    "python": "/usr/bin/python3",
    "pythons": [["/usr/bin/python3", "3.11.7"]],
    "agent": "/root/.flowlite-node/blobs/ab",
    "gpus": [0],
    "launched_at": 1_700_000_000.0,
}
LEASE = {
    "lease": "1",
    "marker": "flowlite-host/1",
    "uid": 0,
    "user": "root",
    "state": "leased",
    "seconds": 12.5,
    "task": "t1",
    "client": "c1",
    "label": "laptop",
    "instance": "t1-000-bad-0000",
    "home": DATA["home"],
    "data": DATA,
    "warm": {"task": "t0", "instance": "t0-000-bad-0000"},
}
FACTS = {
    "boot": "b",
    "held": LEASE,
    "system": "linux",
    "machine": "x86_64",
    "home": "/root",
    "root": "/root/.flowlite-node",
    "unsafe": "",
    "unwritable": "",
    "sockets": "",
    "no_sockets": "",
    "pythons": [["/usr/bin/python3", "3.11.7"]],
    "cores": 2,
    "memory_gb": 16.0,
    "gpus": [{"index": 0, "uuid": "GPU-1", "name": "NVIDIA H100 80GB HBM3", "memory_gb": 85.0}],
    "ssh_address": "10.0.0.1",
    "default_address": "10.0.0.1",
    "disk": {"free_gb": 100.0, "total_gb": 200.0},
    "tools": ["git"],
    "ends_at_logout": False,
    "now": 1_700_000_000.0,
}
FOREIGN = {"state": "foreign", "uid": 4001, "user": "mallory"}
NASTY: list[Any] = [
    None, True, -1, 5, 1e300, 2**70, "", "x", "²", "9" * 5000, "../../x", "a\nb", "\x1b[2J", [], [5], [[]],
    [["a", "3." + "9" * 5000]], [["a", "3.²"]], {}, {"index": 0}, [{"index": "x", "name": 5}], {"task": 5}, {"a": "b"},
]  # fmt: skip


def _damaged(good: Any) -> Iterator[Any]:
    """The good answer with one of its values replaced or left out, at any depth."""
    for path in _paths(good):
        for value in (*NASTY, KeyError):
            bad = copy.deepcopy(good)
            inner = bad
            for key in path[:-1]:
                inner = inner[key]
            if value is KeyError:
                del inner[path[-1]]
            else:
                inner[path[-1]] = value
            yield bad


def _paths(value: Any, above: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    for key, inner in items:
        yield (*above, key)
        if isinstance(inner, dict | list):
            yield from _paths(inner, (*above, key))


class _Says:
    """A connection to a host without a courier that answers everything with the same words."""

    def __init__(self, said: bytes) -> None:
        self._said = said

    def run(self, argv: list[str], **_: Any) -> Completed:
        return Completed(0, self._said, b"")

    def ask(self, request: Mapping[str, Any], **_: Any) -> None:
        return None


def _of(said: Any) -> Any:
    return _Says(json.dumps(said).encode())


def test_what_a_host_says_about_itself() -> None:
    """Whatever `flow hosts list`, `check`, plans and launches read of it."""
    request = GpuRequest.parse("h100:1")
    wanted = {"gpu": "h100:1", "image": True, "cpu": 1, "memory": 1}
    believed = refused = 0
    for said in (FACTS, *_damaged(FACTS), {**FACTS, "held": FOREIGN}):
        try:
            facts, held = hosts.probe(HOST, _of(said))
        except ProviderError as error:
            refused += "it answers what is no description of a host: " in str(error)
            continue
        believed += 1
        hosts.Facts.from_json(json.loads(json.dumps(dict(_fields(facts)))))
        host_requirements.misfit(HOST, facts, wanted)
        host_requirements.choose_python(HOST, facts, "3.11")
        host_requirements.python_problem(HOST, facts)
        host_requirements.usable_gpus(HOST, facts, request)
        host_requirements.gpus_in_words(HOST, facts)
        host_commands._row(HOST, (facts, held), "")
        checking._of_one(HOST, facts)
        checking._of_the_lease(HOST, held)
    assert believed > 50
    assert refused > 500


def _fields(facts: hosts.Facts) -> Iterator[tuple[str, Any]]:
    for name in hosts.Facts.__dataclass_fields__:
        yield name, getattr(facts, name)


def test_who_a_host_says_that_it_is_held_by(flow_home: Path) -> None:
    provider = SshProvider(flow_home, settings_here("ssh"))
    client = provider._records.client
    good = {**LEASE, "client": client}
    for held in (good, FOREIGN, *_damaged(good), *_damaged(FOREIGN)):
        with contextlib.suppress(ProviderError):
            shown = hosts.held_by(HOST, _of({"boot": "b", "held": held}))
            leases.in_words("bad", shown)
            found = provider._instance_of(HOST, shown, {}, {HOST.key})
            if found is not None:
                assert {"root", "home", "python", "agent", "key"} <= found.data.keys()


def test_what_a_host_answers_to_a_request_for_its_lease(flow_home: Path) -> None:
    agent = leases.Agent(flow_home / "agent.pyz", "ab")
    taken = {"ok": True, "lease": LEASE, "boot": "b", "address": "10.0.0.1", "problem": ""}
    held = {"ok": False, "other": True, "held": LEASE}
    believed = refused = 0
    for said in (taken, held, *_damaged(taken), *_damaged(held), {"ok": True}):
        try:
            answer = leases.take(_of(said), "/usr/bin/python3", agent, "/root/.flowlite-node", {})
        except ProviderError as error:
            refused += "it answers what cannot be a lease: " in str(error)
            continue
        believed += 1
        if answer["ok"]:
            lease = answer["lease"]
            names = [lease[name] for name in ("lease", "marker", "instance", "home")]
            names += [lease["data"][name] for name in ("key", "host")]
            assert all(type(each) is str for each in names)
        else:
            leases.in_words("bad", answer.get("held"))
    assert believed > 20
    assert refused > 500


def test_what_a_host_lists_as_its_volumes() -> None:
    said = b"12\tdata\nx\ty\n" + b"9" * 5000 + b"\tz\n-1\tv\n\xc2\xb2\tw\n\t\n7\n"
    assert volumes.sizes(Completed(0, said, b"")) == {"data": 12 * 1024}


@pytest.mark.parametrize(
    "said", ["x", "", "-1", "0", "1.5", "²", "9" * 5000, None, True, [1], {"a": 1}]
)
def test_a_process_id_that_is_none(said: object) -> None:
    with pytest.raises(NodeUnreachable, match=r"host n1: .*no process id"):
        process_id(said, "host n1: starting python3")
    assert process_id(" 12\n", "host n1: starting python3") == 12
