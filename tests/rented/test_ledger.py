"""The ledger of launches: whatever dies at whatever point, nothing that may cost money is forgotten."""

from __future__ import annotations

import io
import itertools
import json
import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from flowlite.errors import ProviderError
from provider_adapters.rented.ledger import (
    INTENDED,
    MADE,
    REFUSED,
    Call,
    Launch,
    Ledger,
    Unsettled,
    accounts,
)

ROOT = Path(__file__).parents[2]
# Where fsync costs nothing; these tests write thousands of times.
MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@pytest.fixture
def ledger(tmp_path: Path) -> Ledger:
    return Ledger(tmp_path / "cloud" / "launches")


def begun(ledger: Ledger, token: str = "t1-launch-1", task: str = "t1") -> str:
    ledger.begin(token, task, 2, lambda: {"image": "i1", "user_data": "secret"})
    return token


def test_a_launch_is_frozen_when_it_begins(ledger: Ledger) -> None:
    token = begun(ledger)
    again = ledger.begin(token, "t1", 2, lambda: pytest.fail("it was begun already"))
    assert again.frozen == {"image": "i1", "user_data": "secret"}
    assert ledger.launches("t1") == [again]
    assert ledger.launches("t2") == []


def test_a_call_is_known_before_it_is_made_and_repeated_as_it_was(ledger: Ledger) -> None:
    token = begun(ledger)
    parameters = {"zone": "a", "tags": [["x", 1]]}
    call = ledger.intend(token, "zone-a", parameters)
    parameters["zone"] = "b"
    found = Ledger(ledger._directory).read(token)
    assert found is not None
    assert found.open_call == call
    assert call.parameters == {"zone": "a", "tags": [["x", 1]]}
    assert [each.token for each in ledger.launches() if each.open_call] == [token]


def test_nothing_else_is_called_before_the_outcome_is_known(ledger: Ledger) -> None:
    token = begun(ledger)
    call = ledger.intend(token, "zone-a", {})
    with pytest.raises(Unsettled, match=re.escape(call.name)):
        ledger.intend(token, "zone-b", {})
    with pytest.raises(Unsettled):
        ledger.end(token)
    ledger.refused(token, call.name, {"code": "InsufficientInstanceCapacity"})
    other = ledger.intend(token, "zone-b", {})
    launch = ledger.made(token, other.name, ["i-1", "i-2"])
    assert launch.made is not None
    assert (launch.made.where, launch.ids, launch.open_call) == ("zone-b", ("i-1", "i-2"), None)
    assert launch.calls[0].detail["code"] == "InsufficientInstanceCapacity"


def test_an_outcome_stays(ledger: Ledger) -> None:
    token = begun(ledger)
    call = ledger.intend(token, "z", {})
    ledger.made(token, call.name, ["i-1"])
    assert ledger.made(token, call.name, ["i-1", "i-2"]).ids == ("i-1", "i-2")
    with pytest.raises(ProviderError, match="was made"):
        ledger.refused(token, call.name)
    with pytest.raises(ProviderError, match="no call another"):
        ledger.made(token, "another", [])


def test_what_was_made_and_what_was_refused_are_told_apart(ledger: Ledger) -> None:
    token = begun(ledger)
    for where, outcome in [("a", "refused"), ("a", "made"), ("b", "made"), ("c", "refused")]:
        call = ledger.intend(token, where, {})
        if outcome == "made":
            launch = ledger.made(token, call.name, [f"i-{where}"])
        else:
            launch = ledger.refused(token, call.name, {"at": where})
    assert launch.made is not None
    assert launch.made.where == "b"
    assert [call.detail for call in launch.calls] == [{"at": "a"}, {}, {}, {"at": "c"}]
    assert [call.state for call in launch.calls] == [REFUSED, MADE, MADE, REFUSED]


def test_launches_of_other_accounts_are_not_ours_but_are_found(tmp_path: Path) -> None:
    ours, theirs = ({"region": "r", "key": key} for key in ("ours", "theirs"))
    one, other = Ledger(tmp_path, ours), Ledger(tmp_path, theirs)
    begun(one, "t1-launch-1")
    begun(one, "t1-launch-2")
    begun(other, "t1-launch-3")

    def tokens(ledger: Ledger, **options: bool) -> list[str]:
        return [each.token[-1] for each in ledger.launches("t1", **options)]

    assert (tokens(one), tokens(other)) == (["1", "2"], ["3"])
    assert tokens(other, everywhere=True) == ["1", "2", "3"]
    assert one.launches("t2", everywhere=True) == []
    # Whoever looks for leftovers asks each account once, until nothing of it exists.
    (tmp_path / "torn.json").write_text("{")
    assert [each.values for each in accounts(tmp_path, "cloud")] == [ours, theirs]
    one.end("t1-launch-1")
    assert [each.values for each in accounts(tmp_path, "cloud")] == [ours, theirs]
    one.end("t1-launch-2")
    assert [each.values for each in accounts(tmp_path, "cloud")] == [theirs]


def test_a_launch_is_handed_over_with_its_notes(ledger: Ledger) -> None:
    token = begun(ledger)
    ledger.note(token, seen=1)
    launch = ledger.hand_over(token, "t2", held={"by": "t2"})
    assert (launch.task, launch.notes) == ("t2", {"seen": 1, "held": {"by": "t2"}})
    assert (ledger.launches("t1"), ledger.launches("t2")) == ([], [launch])


def test_launches_of_other_tasks_and_ended_ones_are_not_parsed(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(6):
        token = begun(ledger, f"t{number}-launch-1", f"t{number}")
        ledger.note(token, over=[{"task": "t4", "ended": True}, {"ended": False}])
        if number < 3:
            ledger.end(token)
    ledger.hand_over("t5-launch-1", "t4")
    parsed: list[str] = []
    parse = Launch.from_json

    def counted(data: dict[str, Any]) -> Launch:
        parsed.append(data["token"])
        return parse(data)

    monkeypatch.setattr(Launch, "from_json", counted)
    found = [each.token for each in ledger.launches("t4")]
    assert (found, parsed) == (["t4-launch-1", "t5-launch-1"],) * 2
    parsed.clear()
    found = [each.token for each in ledger.live()]
    assert (found, parsed) == ([f"t{number}-launch-1" for number in (3, 4, 5)],) * 2
    assert len(ledger.launches()) == 6


def test_the_file_of_a_launch_that_has_ended_is_looked_at_once(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A supervisor looks for the launches of its task every few seconds, among those of weeks."""
    for number in range(4):
        token = begun(ledger, f"t{number}-launch-1", f"t{number}")
        if number < 3:
            ledger.end(token)
    opened: list[str] = []
    file_io = io.FileIO

    def counted(path: str) -> io.FileIO:
        opened.append(Path(path).stem)
        return file_io(path)

    monkeypatch.setattr(io, "FileIO", counted)
    for _ in range(2):
        assert [each.token for each in ledger.launches("t0")] == ["t0-launch-1"]
        assert [each.token for each in ledger.live()] == ["t3-launch-1"]
    expected = {"t0-launch-1": 2, "t1-launch-1": 1, "t2-launch-1": 1, "t3-launch-1": 4}
    assert Counter(opened) == expected
    # Another process ends the last one.
    Ledger(ledger._directory).end("t3-launch-1")
    assert ledger.live() == []
    opened.clear()
    assert (ledger.live(), opened) == ([], [])


@pytest.mark.parametrize("content", [b"", bytes(4096), b'{"token": "t1-launch-1", "ta'])
def test_a_damaged_file_hides_no_launch(ledger: Ledger, content: bytes) -> None:
    begun(ledger)
    begun(ledger, "t2-launch-1", "t2")
    ledger._path("t1-launch-1").write_bytes(content)
    for task in ("t1", "t2", None):
        with pytest.raises(ProviderError, match="look with `flow gc`"):
            ledger.launches(task)
    with pytest.raises(ProviderError, match="look with `flow gc`"):
        ledger.live()


def test_a_full_disk_is_an_error_that_people_understand(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun(ledger)

    def full(path: Path, text: str) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("provider_adapters.rented.ledger.write_durably", full)
    with pytest.raises(ProviderError, match=r"cannot be written: No space left on device"):
        ledger.intend("t1-launch-1", "z", {})
    (tmp_path / "file").touch()
    with pytest.raises(ProviderError, match="cannot be made"):
        begun(Ledger(tmp_path / "file" / "launches"))


def test_who_waits_for_a_lock_uses_up_no_descriptors(ledger: Ledger) -> None:
    token = begun(ledger)
    held, done = threading.Event(), threading.Event()

    def other() -> None:
        with ledger.hold(token):
            held.set()
            done.wait(30)

    thread = threading.Thread(target=other)
    thread.start()
    assert held.wait(30)
    before = len(os.listdir("/proc/self/fd"))
    with (
        pytest.raises(ProviderError, match="another process has been busy"),
        ledger.hold(token, patience=0.1),
    ):
        pass
    assert len(os.listdir("/proc/self/fd")) == before
    done.set()
    thread.join()


def test_names_are_never_used_again_and_short_enough(ledger: Ledger) -> None:
    token = begun(ledger, "t" * 90)
    names = []
    for _ in range(20):
        call = ledger.intend(token, "z", {})
        ledger.refused(token, call.name)
        names.append(call.name)
    assert len(set(names)) == 20
    assert all(re.fullmatch(r"[A-Za-z0-9._-]{1,64}", name) for name in names)


def test_secrets_can_be_forgotten_and_an_end_forgets_all(ledger: Ledger, tmp_path: Path) -> None:
    token = begun(ledger)
    call = ledger.intend(token, "z", {"UserData": "secret"})
    ledger.made(token, call.name, ["i-1"])
    ledger.note(token, seen=1, other=2)
    assert ledger.note(token, other=None).notes == {"seen": 1}
    assert ledger.forget(token, "user_data").frozen == {"image": "i1"}
    ended = ledger.end(token)
    assert ended.ended
    assert ended.ids == ("i-1",)
    files = list((tmp_path / "cloud" / "launches").glob("*"))
    assert all(file.stat().st_mode & 0o077 == 0 for file in files)
    assert not any(b"secret" in file.read_bytes() for file in files)
    ledger.prune(older_than=3600)
    assert ledger.read(token) is not None
    # One that goes on is kept however old it is: nothing else knows its machines.
    going_on = begun(ledger, "t1-launch-2")
    ledger.prune(older_than=-1)
    assert ledger.read(token) is None
    assert [each.token for each in ledger.launches()] == [going_on]
    ledger.end(going_on)
    ledger.prune(older_than=-1)
    assert list((tmp_path / "cloud" / "launches").iterdir()) == []


def test_a_file_that_cannot_be_read_is_not_taken_for_nothing(ledger: Ledger) -> None:
    token = begun(ledger)
    ledger._path(token).write_text("{")
    with pytest.raises(ProviderError, match="flow gc"):
        ledger.launches()


def test_launches_that_were_written_before_an_upgrade_are_read(ledger: Ledger) -> None:
    """Else no launch of the provider is, and no machine is given back."""
    token = begun(ledger)
    call = ledger.intend(token, "zone-a", {"count": 2})
    path = ledger._path(token)
    written = json.loads(path.read_bytes())
    written["calls"][0]["hash"] = "5fcb6ee4"
    path.write_text(json.dumps(written))
    assert ledger.launches("t1")[0].calls == (call,)


def test_launches_that_are_written_after_an_upgrade_are_read_by_the_version_before(
    ledger: Ledger,
) -> None:
    """Its supervisors go on, and read the launches of all tasks: with all of these fields, and no others."""
    token = begun(ledger)
    ledger.made(token, ledger.intend(token, "zone-a", {"count": 2}).name, ["i-1"])
    written = json.loads(ledger._path(token).read_bytes())
    shared = {"token", "task", "count", "at", "frozen", "calls", "notes", "ended", "account"}
    assert set(written) == shared
    call = {"where", "name", "parameters", "hash", "state", "at", "ids", "detail"}
    assert set(written["calls"][0]) == call


@pytest.mark.parametrize("token", ["../x", "", "a/b", ".hidden"])
def test_a_token_is_no_path(ledger: Ledger, token: str) -> None:
    with pytest.raises(ProviderError, match="not a launch token"):
        begun(ledger, token)


def test_one_at_a_time_but_the_same_thread_again(ledger: Ledger) -> None:
    token = begun(ledger)
    tried: list[str] = []

    def other() -> None:
        try:
            with ledger.hold(token, patience=0.05):
                tried.append("held")
        except ProviderError:
            tried.append("busy")

    with ledger.hold(token), ledger.hold(token):
        ledger.intend(token, "z", {})
        thread = threading.Thread(target=other)
        thread.start()
        thread.join()
    other()
    assert tried == ["busy", "held"]


def _intend_many(directory: str, count: int, names: Any) -> None:
    ledger = Ledger(Path(directory))
    for _ in range(count):
        with ledger.hold("t1-launch-1"):
            call = ledger.intend("t1-launch-1", "z", {})
            ledger.refused("t1-launch-1", call.name)
            names.put(call.name)


def test_processes_do_not_write_over_each_other(ledger: Ledger) -> None:
    begun(ledger)
    spawn = multiprocessing.get_context("fork")
    names = spawn.Queue()
    workers = [
        spawn.Process(target=_intend_many, args=(str(ledger._directory), 10, names))
        for _ in range(3)
    ]
    for worker in workers:
        worker.start()
    said = {names.get(timeout=90) for _ in range(30)}
    for worker in workers:
        worker.join()
    launch = ledger.read("t1-launch-1")
    assert launch is not None
    assert {call.name for call in launch.calls} == said


_WRITER = """
import sys
from pathlib import Path
from provider_adapters.rented.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]))
ledger.begin("k", "t", 1, dict)
while True:
    call = ledger.intend("k", "z", {"x": "y" * 20000})
    print(call.name, flush=True)
    ledger.refused("k", call.name)
    if len(ledger.read("k").calls) > 50:
        ledger.end("k"); ledger.prune(-1); ledger.begin("k", "t", 1, dict); print("anew", flush=True)
"""


@pytest.mark.parametrize("lines", [1, 9, 30, 54])
def test_killed_while_it_writes(lines: int) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        writer = subprocess.Popen(
            [sys.executable, "-c", _WRITER, directory], stdout=subprocess.PIPE, cwd=ROOT
        )
        assert writer.stdout is not None
        said = [writer.stdout.readline().decode().strip() for _ in range(lines)]
        writer.send_signal(signal.SIGKILL)
        said += writer.stdout.read().decode().split()
        writer.wait()
        writer.stdout.close()
        launch = Ledger(Path(directory)).read("k")
        # Whatever may have been asked for is written down.
        known = [call.name for call in launch.calls] if launch is not None else []
        assert said[-1] in known or "anew" in said[-2:]


class Crash(BaseException):
    """The power fails just here."""


@contextmanager
def crashing_at(point: int) -> Iterator[None]:
    """The n-th thing that is done to the disk is the last, or is not done any more."""
    counter = itertools.count()
    names = ("open", "fsync", "replace", "mkdir", "unlink")
    real = {name: getattr(os, name) for name in names}

    def wrapped(name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            if next(counter) == point:
                raise Crash
            return real[name](*arguments, **options)

        return call

    for name in names:
        setattr(os, name, wrapped(name))
    try:
        yield
    finally:
        for name in names:
            setattr(os, name, real[name])


class Launches(RuleBasedStateMachine):
    """An adapter that uses the ledger while everything breaks; `cloud` is what was really asked for."""

    calls = Bundle("calls")

    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir=MEMORY)
        self.ledger = Ledger(Path(self.directory.name) / "launches")
        self.ledger.begin("k", "t", 1, dict)
        self.asked: set[str] = set()
        self.settled: dict[str, str] = {}
        self.truth: dict[str, bool] = {}

    def teardown(self) -> None:
        self.directory.cleanup()

    def attempt(self, point: int, do: Callable[[], Any]) -> Any:
        try:
            with crashing_at(point):
                return do()
        except Crash:
            # Another process goes on.
            self.ledger = Ledger(Path(self.directory.name) / "launches")
        except Unsettled:
            assert self.open() is not None
        return None

    def open(self) -> Call | None:
        launch = self.ledger.read("k")
        assert launch is not None
        return launch.open_call

    @rule(target=calls, point=st.integers(0, 12), where=st.sampled_from("abc"))
    def intend(self, point: int, where: str) -> str:
        before = self.open()
        call = self.attempt(point, lambda: self.ledger.intend("k", where, {"where": where}))
        if call is not None:
            assert before is None
            self.asked.add(call.name)
            return str(call.name)
        left = self.open()
        return left.name if left is not None else ""

    @rule(name=consumes(calls), point=st.integers(0, 12), made=st.booleans())
    def settle(self, name: str, point: int, made: bool) -> None:
        if not name or name in self.settled:
            return
        made = self.truth.setdefault(name, made)
        do = self.ledger.made if made else self.ledger.refused
        arguments: tuple[Any, ...] = (("i-" + name,),) if made else ()
        if self.attempt(point, lambda: do("k", name, *arguments)) is not None:
            self.settled[name] = MADE if made else REFUSED

    @rule(point=st.integers(0, 12))
    def note(self, point: int) -> None:
        self.attempt(point, lambda: self.ledger.note("k", seen=point))

    @invariant()
    def whatever_was_asked_for_is_known(self) -> None:
        launch = self.ledger.read("k")
        assert launch is not None
        known = {call.name: call for call in launch.calls}
        assert self.asked <= set(known)
        assert len(known) == len(launch.calls)
        assert sum(call.state == INTENDED for call in launch.calls) <= 1
        for name, state in self.settled.items():
            assert known[name].state == state
        assert json.loads(self.ledger._path("k").read_text())["token"] == "k"


TestLaunches = Launches.TestCase
TestLaunches.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)
