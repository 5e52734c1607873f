"""`flow hosts check`, where a host answers what no program of ours says: it is named, and the others are checked."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import pytest

from flowlite.connect.values import Completed
from flowlite.errors import NodeUnreachable
from flowlite.provider import Instance
from provider_adapters.ssh import checking
from provider_adapters.ssh.pools import Host
from provider_adapters.ssh.unfit_hosts import UnfitHosts

GOOD, BAD = (
    Host(name, at, "lab", {}, private_ip="10.0.0.1") for at, name in enumerate(("good", "bad"))
)
ANSWERS = [
    ("serve", "12"),
    ("serve", "99999 5"),
    ("serve", "22 -1"),
    ("serve", "9" * 5000 + " 1"),
    ("serve", "\x1b[2J"),
    ("reach", "["),
    ("reach", "[" * 100_000),
    ("reach", "[]"),
    ("reach", json.dumps({"nobody": "x", "good": ["\x1b[2J"]})),
    ("reach", json.dumps({"good": "x" * 1_000_000})),
]


@pytest.mark.parametrize(("what", "answer"), ANSWERS, ids=range(len(ANSWERS)))
def test_a_host_that_answers_nonsense(
    what: str, answer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[str] = []

    def run(host: Host, found: Any, *arguments: str) -> str:
        if host is BAD and arguments[0] == what:
            return answer
        if arguments[0] == "end":
            ended.append(f"{host.name} {arguments[1]}")
        return {"serve": "4000 77", "reach": "{}"}.get(arguments[0], "")

    monkeypatch.setattr(checking, "_run", run)
    monkeypatch.setattr(checking, "_forwarding", lambda able, ports: [])
    told = checking._between([GOOD, BAD], {})
    assert {each.host for each in told} <= {"bad"}
    assert told or "nobody" in answer
    assert all(len(each.problem) < 3000 for each in told)
    # Listeners end with the check.
    assert "good 77" in ended


GPUS = [
    (b"", b"9" * 5000),
    (b"", "²".encode()),
    (b"0, 00000000:41:00.0, " + b"9" * 5000, b"1"),
    ("0, 00000000:41:00.0, ²".encode(), b"1"),
    (b"9" * 1_000_000 + b", 00000000:41:00.0, 5", b"1"),
    (b"GPU is lost \x1b[2J" + b"x" * 1_000_000, b""),
    NodeUnreachable("it does not answer any more"),
    TimeoutError("it did not end within 60 s"),
]


@pytest.mark.parametrize("answer", GPUS, ids=range(len(GPUS)))
def test_a_host_that_tasks_found_broken_answers_nonsense(
    answer: tuple[bytes, bytes] | Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is asked for its GPUs after all hosts have answered, and the check goes on."""

    class Asked:
        def run(self, argv: list[str], *, timeout: float) -> Completed:
            if isinstance(answer, Exception):
                raise answer
            return Completed(0, *answer)

    monkeypatch.setattr(checking.hosts, "connect", lambda host: contextlib.nullcontext(Asked()))
    unfit = UnfitHosts(tmp_path)
    unfit.note([Instance("i1", "t1", sick="GPU 3", data={"key": BAD.key, "host": "bad"})])
    [told] = checking._of_what_tasks_found(BAD, unfit)
    assert told.host == "bad"
    assert len(told.problem) < 3000
    if isinstance(answer, Exception):
        assert str(answer) in told.problem
        assert unfit.why(BAD.key)
