"""SIGUSR2 for workers that listen for it rather than ask `should_stop()`: those, and no others."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from flowlite.node.agent.agent import Agent
from flowlite.node.config.agent_config import AttemptPaths
from flowlite.node.forkserver.worker_group import Workers
from flowlite.node.preemption import stop_watch
from flowlite.node.preemption.stop_watch import StopWatch
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


# A bash with a trap for its exit has handlers for all signals that end it, and ends by them.
BASHES = {
    "exit": ("trap 'echo gone' EXIT", False),
    "both": ("trap 'echo gone' EXIT; trap 'echo got' USR2", True),
    "number": ("trap 'echo gone' EXIT; trap 'echo got' 12", True),
    "alone": ("trap 'echo got' SIGUSR2", True),
}


@pytest.mark.parametrize("name", BASHES)
@pytest.mark.parametrize("in_a_file", [True, False])
def test_a_shell_that_only_cleans_up_does_not_listen(
    tmp_path: Path, name: str, in_a_file: bool
) -> None:
    trap, listens = BASHES[name]
    text = f"{trap}; touch {tmp_path}/up; while :; do sleep 0.1; done"
    (tmp_path / "script").write_text(text)
    words = [str(tmp_path / "script")] if in_a_file else ["-c", text]
    shell = subprocess.Popen(["bash", *words])
    try:
        eventually((tmp_path / "up").exists)
        assert caught_signals.catches(shell.pid, signal.SIGUSR2)
        assert (shell.pid in caught_signals.listeners([os.getpid()], signal.SIGUSR2)) == listens
    finally:
        shell.kill()
        shell.wait()


# A Java virtual machine has handlers for these, SIGUSR2 among them, and the runtime of Go for all that there are.
JAVA = (1, 2, 3, 4, 7, 8, 11, 12, 13, 15, 25)
GO = tuple(each for each in range(1, 65) if each not in (9, 19, 20, 21, 22, 18, 32, 33, 34))
# As a trainer that asks for its stack when it crashes, and stops when SIGUSR2 comes.
TRAINER = (2, 4, 6, 7, 8, 11, 12, 15)
HANDLES = """
import ctypes, sys, time
handler = ctypes.CFUNCTYPE(None, ctypes.c_int)(lambda number: None)
for number in map(int, sys.argv[2:]):
    ctypes.CDLL(None).signal(number, handler)
open(sys.argv[1], "w").close()
time.sleep(600)
"""


@pytest.mark.parametrize(
    ("handles", "asks"), [(JAVA, False), (GO, False), (TRAINER, True), ((12,), True), ((2,), False)]
)
def test_a_rank_whose_runtime_handles_all_signals_asks_for_none(
    handles: tuple[int, ...], asks: bool, tmp_path: Path
) -> None:
    up = tmp_path / "up"
    words = [sys.executable, "-c", HANDLES, str(up), *map(str, handles)]
    with subprocess.Popen(words) as rank:
        try:
            eventually(up.exists)
            assert caught_signals.catches(rank.pid, signal.SIGUSR2) == (12 in handles)
            group: Any = object.__new__(Workers)
            group._orders, group._pids = {0: None}, {0: (rank.pid, "")}
            assert group.listening_ranks(signal.SIGUSR2) == ([rank.pid] if asks else [])
        finally:
            rank.kill()


def ready(gang: Notified, *words: str) -> bool:
    """Whether every rank has said these words."""
    said = [
        paths.stream(rank, "out")
        for config, paths in zip(gang.configs, gang.paths, strict=True)
        for rank in config.ranks
    ]
    return all(
        each.exists() and each.read_text().count(word) >= words.count(word)
        for each in said
        for word in words
    )


def test_a_rank_that_listens_is_asked_so_that_its_gang_grows(tmp_path: Path) -> None:
    call = {"kind": "command", "argv": ["sh", "-c", LISTENS]}
    with Notified(tmp_path, call, grace=30.0, tells_stoppable=True) as gang:

        async def grow() -> dict[str, Any]:
            await gang.until("stoppable")
            await asyncio.to_thread(eventually, lambda: ready(gang, "ready"))
            assert gang.link is not None
            await gang.link.grow("room for one more")
            return await gang.finish()

        gang.start()
        ended = asyncio.run(grow())
        assert (ended["outcome"], ended["reason"]) == ("growing", "room for one more"), gang.logs()
        assert all(gang.text(rank).count("warned") == 1 for rank in range(4))


def test_what_a_rank_has_started_is_not_asked_so_that_its_gang_grows(tmp_path: Path) -> None:
    # As a Java virtual machine does, it has a handler for the signal and goes on. So does the rank here.
    script, below, go = (tmp_path / name for name in ("rank", "below", "go"))
    wait = f"while [ ! -e {go} ]; do sleep 0.1; done"
    below.write_text(f"trap 'echo below' USR2; echo ready; {wait}")
    script.write_text(f"trap 'echo asked' USR2; sh {below} & {wait}")
    call = {"kind": "command", "argv": ["sh", str(script)]}
    with Notified(tmp_path, call, grace=30.0, tells_stoppable=True) as gang:

        async def grow_and_preempt() -> dict[str, Any]:
            await gang.until("stoppable")
            await asyncio.to_thread(eventually, lambda: ready(gang, "ready"))
            assert gang.link is not None
            await gang.link.grow("room for one more")
            await asyncio.to_thread(eventually, lambda: ready(gang, "asked"))
            await gang.link.grow("")
            gang.take_away(0, seconds=3000)
            both = ("asked", "asked", "below")
            await asyncio.to_thread(eventually, lambda: ready(gang, *both))
            go.touch()
            return await gang.finish()

        gang.start()
        ended = asyncio.run(grow_and_preempt())
        assert ended["outcome"] == "preempted", gang.logs()
        said = [sorted(gang.text(rank).split()) for rank in range(4)]
        assert said == [["asked", "asked", "below", "ready"]] * 4


def test_a_gang_in_which_only_what_ranks_started_listens_cannot_be_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stop_watch, "LOOK_FOR_CALLERS", 0.0)
    call = {"kind": "command", "argv": ["true"]}
    config = Notified(tmp_path, call, nodes=1, tells_stoppable=True).configs[0]
    said: list[str] = []
    looks: list[int] = []

    class Link:
        def stoppable(self) -> None:
            said.append("stoppable")

    def ranks() -> list[int]:
        looks.append(len(looks))
        assert not said
        return [os.getpid()] if len(looks) > 3 else []

    async def look() -> None:
        watch = StopWatch(config, AttemptPaths(tmp_path), lambda: [os.getpid()], ranks)
        watch.join(cast(Any, Link()))
        watch.workers_start()
        async with asyncio.timeout(60):
            while not said:
                await asyncio.sleep(0.01)

    asyncio.run(look())
    assert looks == [0, 1, 2, 3]


@pytest.mark.parametrize("mode", ["auto", "manual", "mpi"])
def test_mpirun_has_a_handler_whether_or_not_its_processes_listen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    call = {"kind": "command", "argv": ["true"]}
    config = Notified(tmp_path, call, nodes=1, mode=mode).configs[0]
    agent = Agent(config, AttemptPaths(tmp_path), b"secret")
    monkeypatch.setattr(agent._workers, "listening_ranks", lambda number: [number])
    listening = [] if mode == "mpi" else [signal.SIGUSR2]
    assert agent._stop_watch._find_listening_ranks() == listening


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
            # On the other node, too, whether or not Slurm's signal reaches its agent before the leader's order to stop.
            warned = [gang.paths[rank // 2].stream(rank, "out") for rank in range(4)]
            eventually(lambda: all("warned" in each.read_text() for each in warned))
            (tmp_path / "go").touch()

        report = gang.run_until("ready", preempt)
        assert report["outcome"] == "preempted"
