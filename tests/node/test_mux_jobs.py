"""Requests of a mux server that cannot be carried out."""

from __future__ import annotations

import errno
import itertools
import os
import sys
from typing import Any

import pytest

from flowlite.node.helper.jobs import Job


class Outlet:
    """Where the frames go."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []

    def send(self, kind: int, stream: int, payload: bytes = b"") -> None:
        self.sent.append(payload)

    def watch(self, descriptor: int, events: int, job: Job) -> None: ...


@pytest.mark.skipif(sys.platform != "linux", reason="descriptors are counted in /proc")
@pytest.mark.parametrize(("name", "after"), [("fork", 0), ("pipe", 0), ("pipe", 2)])
def test_a_child_that_cannot_be_forked_leaves_no_descriptor(
    name: str, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    call, calls = getattr(os, name), itertools.count()

    def lack() -> Any:
        if next(calls) % (after + 1) == after:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return call()

    monkeypatch.setattr(os, name, lack)
    before = os.listdir("/proc/self/fd")
    for _ in range(5):
        job = Job(Outlet(), 1)
        with pytest.raises(BlockingIOError):
            job.fork({"do": "run", "argv": ["true"]}, None)
        job.fail(OSError(errno.EAGAIN, ""))
    assert len(os.listdir("/proc/self/fd")) == len(before)
