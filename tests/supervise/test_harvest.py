"""Bringing home what a gang left: what is not here is not given up, and nobody who cancels has to wait for it."""

from __future__ import annotations

import asyncio
import errno
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flowlite.connect import fetching
from flowlite.connect.local import LocalConnection
from flowlite.errors import NodeUnreachable
from flowlite.provider import Instance, NodeSettings
from flowlite.supervise.attempt import fetch_outputs as harvest_module
from flowlite.supervise.attempt import node_verdict, unfetched
from flowlite.supervise.attempt import reachability as reach_module
from flowlite.supervise.attempt.fetch_outputs import FetchOutputs
from flowlite.supervise.attempt.log_writer import Collector
from flowlite.supervise.attempt.node_handle import Finding, Node
from flowlite.supervise.attempt.node_verdict import ProbeAnswer
from flowlite.supervise.attempt.reachability import Reachability
from flowlite.supervise.attempt.unfetched import MissingFilesDecision
from flowlite.supervise.record.paths import TaskPaths
from flowlite.supervise.threads import Threads
from tests.connect.test_fetching import small_disk
from tests.helpers import eventually
from tests.supervise.test_holdings import kept, lost


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same decisions, without the seconds."""
    for name, value in (("PROBE_EVERY", 0.01), ("PROBE_SECONDS", 0.2), ("_LOOK_AFTER", 0.05)):
        monkeypatch.setattr(reach_module, name, value)
    monkeypatch.setattr(reach_module, "_AT_ONCE", 0.05)
    monkeypatch.setattr(node_verdict, "PATIENCE", 0.0)
    monkeypatch.setattr(harvest_module, "KEEP_EVERY", 0.02)
    monkeypatch.setattr(harvest_module, "_TELL_AFTER", 0.0)


class Clock:
    """The time by which is decided how long files are waited for. It passes when a test has it pass."""

    def __init__(self) -> None:
        self._now = 1000.0

    def monotonic(self) -> float:
        # Something is told only once some time has passed.
        self._now += 1e-6
        return self._now

    def advance(self, seconds: float) -> None:
        self._now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """A pause of this machine must not count as time in which nothing came."""
    made = Clock()
    times = SimpleNamespace(
        monotonic=made.monotonic, time=time.time, strftime=time.strftime, localtime=time.localtime
    )
    monkeypatch.setattr(harvest_module, "time", times)
    return made


class DiskNode(Node):
    """A node that is a directory here, and answers as it is told to."""

    def __init__(self, rank: int, home: Path) -> None:
        settings = NodeSettings(home=str(home), python="python")
        super().__init__(None, Instance(f"n{rank}", "t1"), settings, rank, 1)  # type: ignore[arg-type]
        Path(self.directory).mkdir(parents=True)
        self.life = ProbeAnswer.ALIVE
        self.trouble: OSError | None = None
        self.gets = 0
        self.stops: list[float] = []
        self.last_words = b""
        self.stopping: Callable[[], object] = lambda: None
        self.sends: Callable[[], Iterator[bytes]] | None = None
        self.is_over = False

    def stop(self, grace: float) -> bool:
        """Its worker writes something more before it ends."""
        self.stops.append(grace)
        self.stopping()
        with open(f"{self.directory}/r{self.rank}.out", "ab") as file:
            file.write(self.last_words)
        return True

    @property
    def connection(self) -> LocalConnection:
        self.check()
        return LocalConnection()

    def check(self) -> None:
        if self.life in (ProbeAnswer.UNREACHABLE, ProbeAnswer.GONE):
            raise NodeUnreachable("no answer")

    def probe(self) -> Finding:
        return Finding(self.life, f"as {self.life}", True)

    def received(self) -> int:
        return 0

    def read(self, name: str, offset: int) -> Iterator[bytes]:
        return super().read(name, offset) if self.sends is None else self._sent()

    def _sent(self) -> Iterator[bytes]:
        assert self.sends is not None
        for block in self.sends():
            if self.is_over:
                return
            yield block

    def get(self, name: str, target: Path, size: int | None = None) -> bool:
        self.gets += 1
        if self.sends is not None:
            fetching.fetch(lambda offset: self.read(name, offset), target, size)
            return True
        if self.trouble is not None and name.endswith(".result"):
            raise self.trouble
        return super().get(name, target, size)


class Scene:
    """Two nodes with one rank each that have ended."""

    def __init__(self, home: Path) -> None:
        (home / "tasks").mkdir()
        self.paths = TaskPaths(home, "t1")
        self.paths.make()
        self.paths.secrets.write_text("{}")
        self.nodes = [DiskNode(rank, home / f"node{rank}") for rank in range(2)]
        self.told: list[str] = []
        self.relayed: list[frozenset[int]] = []
        self.at_each_look: Callable[[], None] = lambda: None
        self.given_up: asyncio.Event
        self.workers: dict[int, dict[str, Any]] = {}
        for rank, node in enumerate(self.nodes):
            files = {"out": b"said\n", "err": b"", "result": bytes(100) + bytes([rank])}
            for name, content in files.items():
                Path(node.directory, f"r{rank}.{name}").write_bytes(content)
            self.workers[rank] = {"rank": rank, "sizes": {n: len(c) for n, c in files.items()}}

    def play(
        self,
        act: Callable[[], None] | None = None,
        *,
        began: bool = True,
        **options: Any,
    ) -> MissingFilesDecision:
        """Collects; `act` is done when that has begun."""

        async def run() -> MissingFilesDecision:
            self.given_up = asyncio.Event()
            asked = Reachability(self.nodes, Threads(), lambda: "another host", lambda since: None)
            collector = Collector(self.paths, 1)
            made = FetchOutputs(
                self.paths, 1, 1, collector, self.workers, Threads(), asked, began=began
            )

            async def relay(nodes: frozenset[int]) -> None:
                # At every look at what is missing.
                self.relayed.append(nodes)
                self.at_each_look()

            if act is not None:
                asyncio.get_running_loop().call_soon(act)
            async with asyncio.timeout(90):
                return await made.bring_in(
                    self.nodes,
                    given_up=self.given_up,
                    relay=relay,
                    before_writing=lambda: None,
                    **{"ended_well": True, "lost": (), "tell": self.told.append, **options},
                )

        return asyncio.run(run())

    def here(self) -> list[str]:
        return sorted(path.name for path in self.paths.results.iterdir())

    def let_time_pass(self, clock: Clock, once: str) -> None:
        """A hundred seconds at every look, once this is told of what node 1 has, and nothing is waited for but that."""

        def pass_some() -> None:
            if self.waits_only_for_node_1(once):
                clock.advance(100.0)

        self.at_each_look = pass_some

    def waits_only_for_node_1(self, words: str) -> bool:
        """Whether this is told of what node 1 has, and nothing else is waited for."""
        last = self.told[-1] if self.told else ""
        return words in last and "node 1 " in last and "node 0 " not in last

    def looks(self, more: int) -> None:
        """Waits in the thread of a node until it was looked so many times more at what is missing."""
        before = len(self.relayed)
        eventually(lambda: len(self.relayed) >= before + more, every=0.001)


@pytest.fixture
def scene(tmp_path: Path) -> Iterator[Scene]:
    made = Scene(tmp_path)
    yield made
    # A thread that was not waited for still reads; what has no end would fill the disk of this machine.
    for node in made.nodes:
        node.is_over = True


def test_workers_that_have_not_heard_of_the_end_are_stopped_before_their_logs_are_read(
    scene: Scene,
) -> None:
    """The leader has given up waiting for a node that it cannot reach, and we can."""
    del scene.workers[1]
    scene.nodes[1].last_words = b"said at the stop signal\n"
    scene.play(ended_well=False)
    assert scene.nodes[0].stops == []
    assert scene.nodes[1].stops == [0.0]
    assert scene.paths.stream(1, 1, 1, "out").read_bytes() == b"said\nsaid at the stop signal\n"


def test_a_cancellation_waits_for_workers_that_are_being_stopped(
    scene: Scene, clock: Clock
) -> None:
    del scene.workers[1]
    node = scene.nodes[1]
    node.last_words = b"said at the stop signal\n"

    def stop_slowly() -> None:
        eventually(lambda: scene.given_up.is_set())
        for _ in range(3):
            scene.looks(2)
            clock.advance(2 * harvest_module._MOMENT)
        scene.looks(2)

    node.stopping = stop_slowly
    scene.play(lambda: scene.given_up.set(), ended_well=False)
    assert scene.paths.stream(1, 1, 1, "out").read_bytes() == b"said\nsaid at the stop signal\n"


def test_before_workers_could_run_none_are_stopped(scene: Scene) -> None:
    scene.workers.clear()
    scene.play(ended_well=False, began=False)
    assert [node.stops for node in scene.nodes] == [[], []]


def test_results_and_logs_come_from_the_disks(scene: Scene) -> None:
    assert scene.play().lacking == ()
    assert scene.here() == ["a1.r0.result", "a1.r1.result"]
    assert scene.paths.stream(1, 1, 1, "out").read_bytes() == b"said\n"


def test_where_nothing_is_missing_nobody_waits(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harvest_module, "KEEP_EVERY", 3600.0)
    scene.workers.clear()
    assert scene.play(began=False).lacking == ()
    assert scene.nodes[0].gets == 0


def test_a_node_that_is_lost_is_waited_for_and_comes_back(scene: Scene) -> None:
    scene.nodes[1].life = ProbeAnswer.UNREACHABLE

    def back(text: str) -> None:
        scene.told.append(text)
        if "has not answered since" in text:
            scene.nodes[1].life = ProbeAnswer.ALIVE

    assert scene.play(tell=back).lacking == ()
    assert scene.here() == ["a1.r0.result", "a1.r1.result"]
    assert frozenset({1}) in scene.relayed
    assert any(
        "logs and results (101 B) of node 1 (n1), which has not answered since" in text
        for text in scene.told
    ), scene.told


def test_a_node_that_the_gang_has_lost_is_asked_if_every_rank_ended_well(scene: Scene) -> None:
    """It did not answer for a while; meanwhile the reports of its ranks showed that they were done."""
    assert scene.play(lost=("n0", "n1")).lacking == ()
    assert scene.here() == ["a1.r0.result", "a1.r1.result"]


def test_what_never_comes_is_kept_there(scene: Scene, clock: Clock) -> None:
    scene.nodes[1].life = ProbeAnswer.UNREACHABLE
    scene.let_time_pass(clock, once="has not answered since")
    seen = scene.play()
    assert [(each.node, dict(each.files)) for each in kept(seen)] == [
        (1, {"r1.out": 5, "r1.result": 101})
    ]
    assert lost(seen) == []


def test_a_machine_that_does_not_exist_any_more_is_not_waited_for(scene: Scene) -> None:
    scene.nodes[1].life = ProbeAnswer.GONE
    assert [each.node for each in lost(scene.play())] == [1]


def test_a_result_that_is_not_on_its_node_any_more_is_lost(scene: Scene) -> None:
    Path(scene.nodes[1].directory, "r1.result").unlink()
    assert [each.files for each in lost(scene.play())] == [(("r1.result", 101),)]


@pytest.mark.parametrize("life", [ProbeAnswer.ALIVE, ProbeAnswer.UNREACHABLE])
def test_a_cancellation_is_heard_while_something_is_waited_for(
    scene: Scene, life: ProbeAnswer
) -> None:
    full = OSError(errno.ENOSPC, "No space left on device: 40 MB are to come, and 1 MB are free")
    scene.nodes[1].trouble = full
    scene.nodes[1].life = life
    once = "40 MB are to come" if life is ProbeAnswer.ALIVE else "has not answered since"
    cancelled = 0.0

    def cancel() -> None:
        nonlocal cancelled
        if not cancelled and scene.waits_only_for_node_1(once):
            cancelled = time.monotonic()
            scene.given_up.set()

    scene.at_each_look = cancel
    seen = scene.play()
    # Far less, but for a busy machine; what is waited for without a cancellation is minutes.
    assert time.monotonic() - cancelled < 60.0
    assert [each.node for each in kept(seen)] == [1]
    if life is ProbeAnswer.ALIVE:
        assert kept(seen)[0].ours
        assert any("40 MB are to come, and 1 MB are free" in text for text in scene.told)


def test_after_a_bad_end_a_lost_node_is_not_waited_for(scene: Scene) -> None:
    scene.workers.pop(1)
    seen = scene.play(ended_well=False, lost=("n1",))
    assert [each.node for each in kept(seen)] == [1]
    assert dict(kept(seen)[0].files) == {
        f"r1.{name}": None for name in ("out", "err", "setup", "result")
    }
    assert scene.nodes[1].gets == 0
    assert scene.here() == ["a1.r0.result"]


def test_a_result_that_the_leader_passes_on(scene: Scene) -> None:
    """In pieces, some of them twice, of which a part came directly before."""
    made = FetchOutputs(
        scene.paths, 1, 1, Collector(scene.paths, 1), scene.workers, Threads(), None
    )  # type: ignore[arg-type]
    scene.paths.results.joinpath(".a1.r1.result.part").write_bytes(bytes(60))
    assert made.result_offsets(frozenset({1})) == {"0.result": 101, "1.result": 60}
    made.take(1, 60, bytes(20))
    made.take(1, 60, bytes(30))
    assert scene.here() == [".a1.r1.result.part"]
    made.take(1, 90, bytes(10) + b"\1")
    made.take(1, 90, bytes(10) + b"\1")
    assert scene.here() == ["a1.r1.result"]
    assert scene.paths.result(1, 1).read_bytes() == bytes(100) + b"\1"
    assert made.result_offsets(frozenset({1})) == {"0.result": 101, "1.result": 101}


# Nodes that send without end


def without_end() -> Iterator[bytes]:
    while True:
        yield bytes(64 << 10)


def drop_by_drop() -> Iterator[bytes]:
    while True:
        time.sleep(0.01)
        yield b"x"


def nothing() -> Iterator[bytes]:
    raise NodeUnreachable("it answers, but a command on its files stood still for 60 s")


def test_a_log_without_end_does_not_fill_the_disk(
    scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its worker is not known to have ended, so its size is not known."""
    small_disk(monkeypatch, scene.paths.directory, 8 << 20, 0)
    scene.workers.pop(1)
    scene.nodes[1].sends = without_end
    scene.let_time_pass(clock, once="No space left on device")
    seen = scene.play(ended_well=False)
    (missing,) = kept(seen)
    assert missing.ours
    assert "No space left on device: 8 MB came, more are to come, and 3" in missing.trouble
    assert fetching.room_on_disk(scene.paths.directory)[0] > 0
    assert scene.here() == ["a1.r0.result"]


@pytest.mark.parametrize("sends", [drop_by_drop, nothing])
def test_files_that_do_not_come_are_not_waited_for_without_end(
    scene: Scene,
    clock: Clock,
    monkeypatch: pytest.MonkeyPatch,
    sends: Callable[[], Iterator[bytes]],
) -> None:
    monkeypatch.setattr(fetching, "_WITHIN", 0.2)
    scene.workers.pop(1)
    scene.nodes[1].sends = sends
    scene.let_time_pass(clock, once="" if sends is nothing else "B came within 0 s")
    (missing,) = kept(scene.play(ended_well=False))
    assert missing.node == 1
    assert missing.trouble == "" if sends is nothing else "B came within 0 s" in missing.trouble


def test_a_result_that_takes_longer_than_the_patience_is_waited_for_while_it_comes(
    scene: Scene, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(harvest_module, "_PROGRESS", 10_000)
    blocks = [bytes(10_000)] * 12
    scene.workers[1]["sizes"]["result"] = 120_000

    def slowly() -> Iterator[bytes]:
        for block in blocks:
            clock.advance(unfetched.PATIENCE / 4)
            scene.looks(2)
            yield block

    scene.nodes[1].sends = slowly
    assert scene.play().lacking == ()
    assert scene.paths.result(1, 1).stat().st_size == 120_000


def test_a_directory_that_was_removed_here_does_not_end_the_collecting(scene: Scene) -> None:
    """It is made anew for what still comes, and what was in it is named as missing."""
    scene.nodes[1].life = ProbeAnswer.UNREACHABLE
    removed_at = 0

    def remove_and_heal() -> None:
        nonlocal removed_at
        looks = len(scene.relayed)
        if not removed_at and scene.here() == ["a1.r0.result"]:
            shutil.rmtree(scene.paths.results)
            removed_at = looks
        elif removed_at and looks > removed_at + 20:
            scene.nodes[1].life = ProbeAnswer.ALIVE

    scene.at_each_look = remove_and_heal
    assert [each.node for each in scene.play().lacking] == [0]
    assert scene.here() == ["a1.r1.result"]
