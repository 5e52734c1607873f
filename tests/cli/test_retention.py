"""Removing and pruning tasks that have ended, and never any other."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import re
import shutil
import sqlite3
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flowlite.api.session import open_session
from flowlite.bundle.project_files import list_files
from flowlite.bundle.project_snapshot import MANIFEST, take_snapshot
from flowlite.errors import NotFound
from flowlite.node.host_lease import cleanup
from flowlite.node.mount_namespace import unmount
from flowlite.retention import pruning
from flowlite.retention.pruning import (
    DAY,
    GB,
    INPUTS,
    LOGS,
    Limits,
    Part,
    prune,
    prune_in_background,
    remove_contents,
    to_prune,
)
from flowlite.retention.removal import forget
from flowlite.retention.usage import by_task, usage
from flowlite.state.records import TaskRecord
from flowlite.state.store import InstanceRecord
from tests.cli.conftest import Flow
from tests.cli.terminals import OnTerminal
from tests.helpers import deep_tree, eventually
from tests.tasks_made_by_hand import HandMade

LIMITS = Limits(30, 90, 20)


@pytest.fixture(autouse=True)
def no_supervisors(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "flowlite.supervise.process.launch.start_supervisor", lambda home, task_id, **_: 0
    )


def ended(name: str, days: float, *, size: int = 1000) -> HandMade:
    """A task that ended so many days ago, with inputs and logs of this size."""
    at = time.time() - days * DAY
    made = HandMade(name, created_at=at)
    with_files(made, size)
    made.change("completed", finished_at=at)
    return made


def with_files(made: HandMade, size: int = 1000) -> None:
    (made.paths.bundle / "call.bin").write_bytes(b"x" * size)
    made.write(0, b"y" * (size - 1) + b"\n")
    made.returns(0, 42)


def has(made: HandMade) -> tuple[bool, bool]:
    """Whether its inputs and its logs are there."""
    return any(made.paths.bundle.iterdir()), any(made.paths.logs.iterdir())


# flow rm


def test_a_task_that_has_ended_is_removed(flow: Flow) -> None:
    made, other = ended("one", 0), ended("two", 0)
    ran = flow("rm", "one")
    assert (ran.code, ran.out) == (0, f"one ({made.id}) is removed\n")
    assert not made.paths.directory.exists()
    assert [task["id"] for task in flow("status", "--json").json] == [other.id]


def test_what_must_stay_is_not_removed(flow: Flow) -> None:
    fine, running, kept, warm = (
        ended("fine", 99),
        HandMade("running"),
        ended("kept", 99),
        ended("warm", 99),
    )
    kept.store.add_event(
        kept.id,
        "lacking",
        "not all is here",
        {
            "attempt": 1,
            "ended_well": True,
            "nodes": [{"node": 0, "instance": "i", "files": {}, "kept": True}],
        },
    )
    warm.instance(0, ended=True)
    (row,) = warm.store.instances(warm.id)
    until = time.time() + 600
    warm.store.put_instances(warm.lease, [dataclasses.replace(row, state="warm", ended_at=until)])
    assert isinstance(row, InstanceRecord)
    for made, said in (
        (running, "it is running; end it first: flow cancel"),
        (kept, "results or logs of it are still on its nodes"),
        (warm, "its nodes are kept warm until"),
    ):
        ran = flow("rm", "-y", "fine", made.id)
        assert (ran.code, ran.out) == (2, "")
        assert said in ran.err
        assert made.paths.directory.exists()
    assert fine.paths.directory.exists()
    assert prune(open_session(), Limits(1, 1, 0.001), time.time()) != []
    assert (has(fine), has(kept), has(warm)) == ((False, False), (True, True), (True, True))
    for words in (("rm", "-y", "--older-than", "7d"), ("gc", "--older-than", "1m")):
        assert flow(*words).code == 0
        assert all(made.paths.directory.exists() for made in (running, kept, warm))
    assert not fine.paths.directory.exists()


def test_old_tasks_are_removed_together(flow: Flow) -> None:
    ended("old", 8), ended("new", 1)
    # The last of them is a date, for `flow logs --since`.
    for wrong in ("a week", "7x", "7", "7.d", "20251231"):
        ran = flow("rm", "-y", "--older-than", wrong)
        assert (ran.code, ran.err) == (
            2,
            f"error: --older-than: {wrong!r} is not allowed; write 12h or 7d\n",
        )
    assert flow("rm").code == 2
    assert "old" in flow("rm", "--older-than", "7d").out
    assert flow("rm", "--older-than", "7d").out == "no task is that old\n"
    assert [task["name"] for task in flow("status", "--json").json] == ["new"]


def test_a_wall_clock_that_was_set_makes_no_task_old(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended("new", 1)
    flow("status")
    wall = time.time
    monkeypatch.setattr(time, "time", lambda: wall() + 30 * 86400)
    assert flow("rm", "-y", "--older-than", "7d").out == "no task is that old\n"
    assert flow("gc", "--older-than", "7d", "--json").json["forgotten"] == []


def test_a_task_whose_files_cannot_be_deleted_stays(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = ended("one", 8)
    unlink = os.unlink

    def refused(path: str, **more: int) -> None:
        if os.fspath(path).endswith("call.bin"):
            raise PermissionError(13, "Permission denied", path)
        unlink(path, **more)

    with monkeypatch.context() as patch:
        patch.setattr(os, "unlink", refused)
        ran = flow("rm", "-y", "one")
        assert (ran.code, ran.out) == (1, "")
        assert f"one ({made.id}) cannot be removed: not all files in" in ran.err
        ran = flow("rm", "--json", "one")
        assert (ran.code, ran.json) == (1, [])
        assert "cannot be removed: not all files in" in ran.err
        found = flow("gc", "--older-than", "7d", "--json").json
        assert found["forgotten"] == []
        assert "cannot be removed" in found["problems"][0]
        assert [task["name"] for task in flow("status", "--json").json] == ["one"]
    assert flow("rm", "-y", "one").code == 0
    assert not made.paths.directory.exists()


def test_a_task_that_cannot_be_removed_holds_up_no_other(
    flow: Flow, monkeypatch: pytest.MonkeyPatch
) -> None:
    after, stuck, before = (ended(name, days) for name, days in (("c", 10), ("b", 9), ("a", 8)))
    remove = cleanup.remove_tree

    def refused(path: str) -> None:
        if not path.endswith(stuck.id):
            remove(path)

    monkeypatch.setattr(cleanup, "remove_tree", refused)
    ran = flow("rm", "-y", "--older-than", "7d")
    assert ran.code == 1
    assert ran.out.splitlines() == [
        f"{name} ({made.id}) is removed" for name, made in (("a", before), ("c", after))
    ]
    assert f"b ({stuck.id}) cannot be removed" in ran.err
    assert [task["name"] for task in flow("status", "--json").json] == ["b"]


def test_files_of_any_depth_are_removed(flow: Flow) -> None:
    made = ended("one", 8)
    deep_tree(made.paths.directory)
    assert flow("store", "usage").code == 0
    assert flow("rm", "-y", "one").code == 0
    assert not made.paths.directory.exists()


@pytest.mark.needs("mounts")
@pytest.mark.parametrize("unmounts", [True, False])
def test_what_is_mounted_below_a_task_is_not_deleted_with_it(
    flow: Flow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, unmounts: bool
) -> None:
    made, bucket = ended("one", 0), tmp_path / "bucket"
    point = made.paths.directory / "nodes" / "n0" / "data"
    for directory in (bucket, point):
        directory.mkdir(parents=True)
    (bucket / "precious").write_bytes(b"of the user")
    subprocess.run(["mount", "--bind", bucket, point], check=True)
    try:
        with monkeypatch.context() as patch:
            if not unmounts:
                patch.setattr(unmount, "unmount", lambda point: False)
            ran = flow("rm", "-y", "one")
        assert ran.code == (0 if unmounts else 1)
        assert unmounts or f"what is mounted at {point} would be deleted with it" in ran.err
        assert (bucket / "precious").read_bytes() == b"of the user"
        assert made.paths.directory.exists() == (not unmounts)
    finally:
        unmount.unmount_below(made.paths.directory)


@pytest.mark.parametrize(("answer", "code"), [("y", 0), ("n", 1)])
def test_a_person_is_asked(flow_home: Path, answer: str, code: int) -> None:
    made = ended("one", 0)
    asked = OnTerminal("rm", "one")
    asked.read_until(lambda said: "[y/N]" in said)
    asked.type(f"{answer}\n")
    assert asked.end()[0] == code
    assert made.paths.directory.exists() == (code == 1)


# Pruning


def test_inputs_go_first_then_logs_and_results_stay(flow: Flow) -> None:
    month, season, new = ended("month", 31), ended("season", 91), ended("new", 1)
    running = HandMade("running", created_at=time.time() - 400 * DAY)
    with_files(running)
    prune(open_session(), LIMITS, time.time())
    assert [has(made) for made in (month, season, new, running)] == [
        (False, True),
        (False, False),
        (True, True),
        (True, True),
    ]
    assert flow("result", "season").out == "42\n"
    ran = flow("logs", "season")
    removed = (
        r"its logs \(1\.\d+ kB\) were removed: it ended 91 days ago \(setting keep_logs_days\)"
    )
    assert re.search(removed, ran.err)
    assert "its inputs" in flow("status", "month").out


def test_beyond_the_room_the_oldest_go_first(flow: Flow) -> None:
    old, middle, new = ended("old", 3), ended("middle", 2), ended("new", 0)
    with_index = 16 / 3000
    room = Limits(30, 90, (4000 + 3 * 16 + with_index) / GB)
    assert [part.record.name for part, _ in prune(open_session(), room, time.time())] == [
        "old",
        "middle",
    ]
    assert [has(made) for made in (old, middle, new)] == [
        (False, True),
        (False, True),
        (True, True),
    ]
    # What ended within the last hour stays, whatever there is room for.
    prune(open_session(), Limits(30, 90, 1 / GB), time.time())
    assert [has(made) for made in (old, middle, new)] == [
        (False, False),
        (False, False),
        (True, True),
    ]


def test_a_task_that_is_removed_meanwhile_holds_up_no_other(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    removed, other = ended("removed", 99), ended("other", 99)

    def removing(*given: Any) -> list[tuple[Part, str]]:
        found = to_prune(*given)
        forget(open_session(), removed.store.get_task(removed.id))
        return found

    monkeypatch.setattr(pruning, "to_prune", removing)
    pruned = prune(open_session(), LIMITS, time.time())
    assert [part.record.name for part, _ in pruned] == ["other", "other"]
    assert has(other) == (False, False)
    with pytest.raises(NotFound, match=f"no task '{removed.id}'"):
        removed.store.add_event(removed.id, "warning", "too late")


def test_the_project_of_a_task_with_a_damaged_row_stays(flow_home: Path, tmp_path: Path) -> None:
    made = HandMade("running")
    (tmp_path / "train.py").write_text("the project")
    take_snapshot(flow_home, list_files(str(tmp_path)), {}, made.paths.bundle / MANIFEST)
    contents = [path for path in (flow_home / "files").iterdir() if len(path.name) == 64]
    for path in contents:
        os.utime(path, (1, 1))
    with contextlib.closing(sqlite3.connect(made.store.path, isolation_level=None)) as db:
        db.execute("UPDATE tasks SET plan = '{' WHERE id = ?", (made.id,))
    assert open_session().store.list_tasks() == []
    remove_contents(open_session())
    assert [path.read_text() for path in contents] == ["the project"]


def test_it_is_done_once_a_day_in_the_background(flow_home: Path) -> None:
    made = ended("old", 99)
    assert not prune_in_background(flow_home)
    long_ago = time.time() - 99 * DAY
    os.utime(made.paths.directory, (long_ago, long_ago))
    assert prune_in_background(flow_home)
    assert not prune_in_background(flow_home)
    eventually(lambda: has(made) == (False, False))


def test_a_clock_that_jumps_removes_nothing(
    flow_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a day all tasks look old, and no task runs, so that the next submission takes that time for right."""
    made = ended("new", 1)
    marker, tasks = flow_home / "pruned", made.paths.directory
    marker.touch()
    yesterday = time.time() - 1.5 * DAY
    for path in (marker, tasks):
        os.utime(path, (yesterday, yesterday))
    right = time.time()
    monkeypatch.setattr(pruning.time, "time", lambda: right + 400 * DAY)
    assert not prune_in_background(flow_home)
    os.utime(marker, (right + 400 * DAY,) * 2)
    assert not prune_in_background(flow_home)
    # The clock is right again.
    monkeypatch.setattr(pruning.time, "time", lambda: right)
    assert has(made) == (True, True)
    assert prune_in_background(flow_home)
    # After a real pause, the second day prunes.
    for path in (marker, tasks):
        os.utime(path, (right - 10 * DAY,) * 2)
    assert not prune_in_background(flow_home)
    os.utime(marker, (right - 1.5 * DAY,) * 2)
    assert prune_in_background(flow_home)


def test_the_settings_are_read(flow: Flow, monkeypatch: pytest.MonkeyPatch) -> None:
    from flowlite.settings.settings import load_settings

    monkeypatch.setenv("FLOW_KEEP_GB", "0.5")
    assert Limits.of(load_settings()) == Limits(30.0, 90.0, 0.5)
    assert flow("config", "set", "keep_logs_days", "-1").code == 2


@given(
    st.lists(st.tuples(st.sampled_from([INPUTS, LOGS]), st.floats(0, 200), st.integers(0, 10**10))),
    st.floats(0.1, 100),
    st.floats(0.1, 100),
    st.floats(0.1, 50),
)
def test_no_more_is_pruned_than_the_limits_say(
    given_parts: list[tuple[str, float, int]], inputs: float, logs: float, gigabytes: float
) -> None:
    now = 1e9
    parts = [
        Part(
            TaskRecord(f"t{i}", "n", "f", "local", {}, {}, {}, now, finished_at=now - days * DAY),
            what,
            Path(),
            size,
        )
        for i, (what, days, size) in enumerate(given_parts)
    ]
    limits = Limits(inputs, logs, gigabytes)
    gone = [part for part, _ in to_prune(parts, limits, now)]
    left = [part for part in parts if part not in gone]
    days = {INPUTS: inputs, LOGS: logs}
    assert all(now - part.ended_at <= days[part.what] * DAY for part in left)
    for_room = [part for part in gone if now - part.ended_at <= days[part.what] * DAY]
    if for_room:
        assert all(now - part.ended_at > 3600 for part in for_room)
        last = for_room[-1]
        assert sum(part.size for part in left) + last.size > gigabytes * GB
    elif all(now - part.ended_at > 3600 for part in left):
        assert sum(part.size for part in left) <= gigabytes * GB


# Disk use


def test_the_room_is_shown(flow: Flow, flow_home: Path) -> None:
    large, small = ended("large", 0, size=3_000_000), ended("small", 0)
    out = flow("store", "usage").out
    assert re.search(r"^inputs of tasks +3 MB$", out, re.MULTILINE)
    assert f"large ({large.id})" in out
    assert out.index(large.id) < out.index(small.id)
    found = flow("store", "usage", "--json").json
    assert found["bytes"] == usage(flow_home)
    assert found["bytes"]["logs of tasks"] >= 3_001_000
    assert list(by_task(flow_home)) == [large.id, small.id]
    shutil.rmtree(flow_home / "tasks")
    assert by_task(flow_home) == {}
