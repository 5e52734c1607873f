"""SIGUSR2 for workers that listen for it rather than ask `should_stop()`: those, and no others."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flowlite.node.system import caught_signals
from tests.helpers import eventually
from tests.node.test_should_stop import Notified

pytestmark = pytest.mark.skipif(
    sys.platform != "linux", reason="only Linux tells who has a handler"
)

LISTENS = "trap 'echo warned; exit 0' USR2; echo ready; while :; do sleep 0.1; done"
# One that knows nothing of it, and one below it that does.
BELOW = f'sh -c "{LISTENS}" & wait $!'


@pytest.fixture
def children(tmp_path: Path) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    made = {}
    for name, trap in (("listens", "trap 'echo got' USR2"), ("deaf", ":")):
        script = f"{trap}; touch $0.up; while :; do sleep 0.1; done"
        made[name] = subprocess.Popen(["sh", "-c", script, str(tmp_path / name)])
    for name in made:
        eventually(lambda name=name: (tmp_path / f"{name}.up").exists())  # type: ignore[misc]
    yield made
    for each in made.values():
        each.kill()
        each.wait()


def test_who_has_a_handler(children: dict[str, subprocess.Popen[bytes]]) -> None:
    listens, deaf = children["listens"], children["deaf"]
    assert caught_signals.catches(listens.pid, signal.SIGUSR2)
    assert not caught_signals.catches(listens.pid, signal.SIGUSR1)
    assert not caught_signals.catches(deaf.pid, signal.SIGUSR2)
    assert not caught_signals.catches(2**22 + 1, signal.SIGUSR2)
    found = caught_signals.listeners([os.getpid()], signal.SIGUSR2)
    assert listens.pid in found
    assert deaf.pid not in found


@pytest.mark.parametrize("script", [LISTENS, BELOW], ids=["the command", "what it started"])
def test_workers_of_all_nodes_are_warned(tmp_path: Path, script: str) -> None:
    with Notified(tmp_path, {"kind": "command", "argv": ["sh", "-c", script]}, grace=30.0) as gang:
        report = gang.run_until("ready", lambda: gang.take_away(0))
        said = {name: bytes(text) for name, text in gang.streams.items() if name.endswith(".out")}
    assert len(said) == 4
    assert all(b"warned" in text for text in said.values()), said
    # That they ended well does not mean that they had come to their end.
    assert report["outcome"] == "preempted"


def test_a_worker_that_does_not_listen_is_not_killed_by_it(tmp_path: Path) -> None:
    script = "echo ready; exec sleep 1000"
    with Notified(tmp_path, {"kind": "command", "argv": ["sh", "-c", script]}) as gang:
        report = gang.run_until("ready", lambda: gang.take_away(1))
        ends = [event["signal"] for event in gang.events if event["kind"] == "worker"]
    assert report["outcome"] == "preempted"
    assert ends == [signal.SIGTERM] * 4


def test_sigterm_of_slurm_is_all_the_notice_there_is(tmp_path: Path) -> None:
    # At preemption it sends that to everything in a job.
    both = "trap 'echo warned' USR2; trap 'echo ending' TERM; echo ready; while [ ! -e $0 ]; do sleep 0.1; done"
    argv = ["sh", "-c", both, str(tmp_path / "go")]
    gang = Notified(tmp_path, {"kind": "command", "argv": argv}, grace=30.0)
    for config in gang.configs:
        config.preemption = {"kind": "slurm", "file": str(tmp_path / "none")}
    with gang:

        def preempt() -> None:
            agent = json.loads(gang.paths[1].pid.read_bytes())["pid"]
            os.kill(agent, signal.SIGTERM)
            warned = [paths.stream(2, "out") for paths in gang.paths[1:]]
            eventually(lambda: all("warned" in each.read_text() for each in warned))
            (tmp_path / "go").touch()

        report = gang.run_until("ready", preempt)
        assert report["outcome"] == "preempted"
